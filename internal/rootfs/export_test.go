package rootfs

import (
	"archive/tar"
	"bytes"
	"errors"
)

// Lay lays plain layers out below dir, as WriteTo does.
func Lay(dir string, l Limits, layers ...[]byte) (err error) {
	t, err := newTree(dir, l)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, t.close()) }()
	for _, b := range layers {
		if err := t.entries(tar.NewReader(bytes.NewReader(b))); err != nil {
			return err
		}
	}
	return t.finish()
}
