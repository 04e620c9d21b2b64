package ext4_test

import (
	"crypto/sha256"
	"fmt"
	"os"
	"testing"

	"github.com/paddock-dev/paddock/internal/rootfs/ext4"
)

// open opens an image with our reader.
func open(t testing.TB, path string) *ext4.Image {
	t.Helper()
	f, err := os.Open(path)
	must(t, err)
	t.Cleanup(func() { f.Close() })
	st, err := f.Stat()
	must(t, err)
	im, err := ext4.Open(f, st.Size())
	must(t, err)
	return im
}

// read returns what our reader says about every entry, after it found nothing
// wrong with the image.
func read(t testing.TB, path string) map[string]view {
	t.Helper()
	im := open(t, path)
	_, err := im.Verify(t.Context())
	must(t, err)
	return views(t, im)
}

func readerView(t testing.TB, im *ext4.Image, s ext4.Stat) view {
	t.Helper()
	v := view{
		"mode": fmt.Sprintf("%o", s.Mode), "owner": fmt.Sprintf("%d:%d", s.UID, s.GID), "links": fmt.Sprint(s.Links),
		"mtime": stamp(s.Mtime.Unix(), int64(s.Mtime.Nanosecond())), "atime": stamp(s.Atime.Unix(), int64(s.Atime.Nanosecond())),
		"ctime": stamp(s.Ctime.Unix(), int64(s.Ctime.Nanosecond())),
	}
	switch s.Mode & 0o170000 {
	case 0o100000:
		c, err := im.Contents(s)
		must(t, err)
		v["size"], v["sum"] = fmt.Sprint(s.Size), sum(t, c.Reader())
	case 0o120000:
		target, err := im.Target(s)
		must(t, err)
		v["target"] = target
	case 0o020000, 0o060000:
		v["device"] = fmt.Sprintf("%d:%d", s.Major, s.Minor)
	}
	attrs, err := im.Xattrs(s)
	must(t, err)
	for _, x := range attrs {
		v["xattr "+x.Name] = fmt.Sprintf("%d:%x", len(x.Value), sha256.Sum256(x.Value))
	}
	return v
}
