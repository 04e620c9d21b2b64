//go:build !race

package rootfs_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/paddock-dev/paddock/internal/rootfs"
)

// umoci would write every zero of these files; the model says what they are.

// TestHugeFile has a file of over 4 GiB in each form of a sparse map, with
// bytes on both sides of 2 and of 4 GiB and at its end.
func TestHugeFile(t *testing.T) {
	work := workspace(t)
	const size = 5<<30 + 12345
	segs := []segment{{0, 1}, {1<<31 - 3, 6}, {1<<32 - 4097, 8194}, {1<<32 + 1<<20, 1}, {size - 2, 2}}
	var l layer
	for i, form := range []sparseForm{gnuOld, pax00, pax01, pax10} {
		e := anEntry(file, sparseNames[form], func(e *entry) { e.body = body{seed: uint64(i + 1), size: size, sparse: form, segs: segs} })
		if form == gnuOld {
			e.dialect = gnu
		}
		l.entries = append(l.entries, e)
	}
	l.compression = zstdd
	b, err := buildStack(t.Context(), work, stack{l}, rootfs.Allow)
	if err != nil {
		t.Fatal(err)
	}
	if bad := fsck(t.Context(), b.path); len(bad) > 0 {
		t.Error(list(bad))
	}
	err = mounted(t.Context(), b.path, filepath.Join(work, "mount"), func(at string) error {
		var errs []error
		for _, e := range l.entries {
			errs = append(errs, sameHuge(filepath.Join(at, e.name), e.body))
		}
		return errors.Join(errs...)
	})
	if err != nil {
		t.Error(err)
	}
}

// sameHuge reads a file's segments and asks where its holes are: to read all
// of it would take a minute.
func sameHuge(path string, b body) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || info.Size() != b.size {
		return fmt.Errorf("%s: it has not the size %d: %v, %w", path, b.size, info, err)
	}
	data := b.source()
	for _, s := range b.segs {
		want, got := make([]byte, s.n), make([]byte, s.n)
		if _, err := data.Read(want); err != nil {
			return err
		}
		if _, err := f.ReadAt(got, s.off); err != nil {
			return err
		}
		if string(got) != string(want) {
			return fmt.Errorf("%s: at %d it has %x, want %x", path, s.off, got, want)
		}
	}
	for _, h := range b.holes() {
		data, err := unix.Seek(int(f.Fd()), h.off, unix.SEEK_DATA)
		if err != nil && !errors.Is(err, unix.ENXIO) {
			return err
		}
		if err == nil && data < h.end {
			return fmt.Errorf("%s: it stores bytes at %d, in the hole %v", path, data, h)
		}
	}
	return nil
}

// TestHugeDirectory has 200,000 names in one directory, in two layers, and
// takes some away again.
func TestHugeDirectory(t *testing.T) {
	work := workspace(t)
	const names = 200_000
	s := stack{{compression: gzipd}, {compression: gzipd}}
	for i := range names {
		e := anEntry(file, fmt.Sprintf("many/%x-%d", i*7919%names, i))
		l := &s[i&1]
		l.entries = append(l.entries, e)
		if i%2 == 0 && i%997 == 0 {
			s[1].entries = append(s[1].entries, anEntry(file, "many/.wh."+e.name[len("many/"):]))
		}
	}
	m, err := laid(s)
	if err != nil {
		t.Fatal(err)
	}
	b, err := buildStack(t.Context(), work, s, rootfs.Allow)
	if err != nil {
		t.Fatal(err)
	}
	if bad := fsck(t.Context(), b.path); len(bad) > 0 {
		t.Error(list(bad))
	}
	err = mounted(t.Context(), b.path, filepath.Join(work, "mount"), func(at string) error {
		return errors.Join(sameNames(filepath.Join(at, "many"), m), foundNames(at, s, m))
	})
	if err != nil {
		t.Error(err)
	}
	if _, err := readImage(t.Context(), b.path); err != nil {
		t.Error(err)
	}
}

// sameNames lists a directory as the kernel does and compares it.
func sameNames(at string, m *model) error {
	f, err := os.Open(at)
	if err != nil {
		return err
	}
	defer f.Close()
	list, err := f.Readdirnames(-1)
	if err != nil {
		return err
	}
	for _, name := range list {
		if m.names["many/"+name] == nil {
			return fmt.Errorf("%q is listed and should not be there", name)
		}
	}
	if want := len(m.names) - 2; len(list) != want {
		return fmt.Errorf("%d names are listed, want %d", len(list), want)
	}
	return nil
}

// foundNames looks names up, which goes through the tree of hashes.
func foundNames(at string, s stack, m *model) error {
	for _, l := range s {
		for i, e := range l.entries {
			if _, _, is := e.whiteout(); is || i%10 != 0 && m.names[e.name] != nil {
				continue
			}
			err := unix.Access(filepath.Join(at, e.name), unix.F_OK)
			if (err == nil) != (m.names[e.name] != nil) {
				return fmt.Errorf("%q is there: %t", e.name, err == nil)
			}
		}
	}
	return nil
}
