package tarfile_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"testing"

	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/rootfs/tarfile"
)

// crumbs gives n bytes a time, and nothing every other time.
type crumbs struct {
	data []byte
	n    int
	turn bool
}

func (c *crumbs) Read(p []byte) (int, error) {
	if c.turn = !c.turn; c.turn {
		return 0, nil
	}
	n := copy(p, c.data[:min(c.n, len(c.data))])
	if c.data = c.data[n:]; len(c.data) == 0 {
		return n, io.EOF // with the last bytes
	}
	return n, nil
}

func bufioReader(b []byte) io.Reader {
	return bufio.NewReaderSize(struct{ io.Reader }{bytes.NewReader(b)}, 4096)
}

// broken ends data with an error.
type broken struct {
	data []byte
	err  error
}

func (b *broken) Read(p []byte) (int, error) {
	n := copy(p, b.data)
	if b.data = b.data[n:]; len(b.data) > 0 {
		return n, nil
	}
	return n, b.err
}

// An error of the source comes through at whatever place it happens, with its
// code, and is never taken for the archive's end.
func TestBrokenSource(t *testing.T) {
	archive := join(pax("path", "b"), entry("a", '0', "hi"), oldSparse("abc", 10, ranges(0, 1, 2, 1, 4, 1, 6, 0), ranges(7, 0)), end, make([]byte, 512))
	down := errors.New("the line is down")
	for name, c := range map[string]struct {
		err, is error
		code    *fault.Code
	}{
		"coded":              {fault.New(fault.LayerDigest, "other bytes"), fault.LayerDigest, fault.LayerDigest},
		"coded and an end":   {fault.Wrap(fault.RegistryDown, io.EOF, "gone"), fault.RegistryDown, fault.RegistryDown},
		"coded and cut":      {fault.Wrap(fault.RegistryDown, io.ErrUnexpectedEOF, "gone"), fault.RegistryDown, fault.RegistryDown},
		"cancelled":          {context.Canceled, context.Canceled, fault.CallCancelled},
		"no code":            {down, down, fault.Bug},
		"no code, and cut":   {fmt.Errorf("inflate: %w", io.ErrUnexpectedEOF), fault.LayerArchive, fault.LayerArchive},
		"no code and an end": {fmt.Errorf("inflate: %w", io.EOF), fault.LayerArchive, fault.LayerArchive},
		"nothing at all":     {nil, io.ErrNoProgress, fault.Bug},
	} {
		for _, cut := range []int{0, 1, 512, 600, 1024, 1536, 1537, 1538, 2048, 2560, 3072, 3073, 3584, 4000, 4096, 4608, len(archive)} {
			list, err := readAll(&broken{archive[:cut], c.err}, tarfile.Limits{})
			if err == nil || !errors.Is(err, c.is) || fault.Of(err) != c.code || errors.Is(err, io.EOF) {
				t.Errorf("%s at %d: %d entries, %v", name, cut, len(list), err)
			}
		}
	}
}

// Cut anywhere, an archive is refused or ends where an entry does.
func TestCutAnywhere(t *testing.T) {
	parts := [][]byte{pax("path", "b"), entry("a", '0', "hi"), oldSparse("abc", 10, ranges(0, 1, 2, 1, 4, 1, 6, 0), ranges(7, 0)), end}
	archive := join(parts...)
	fine := map[int]bool{len(archive): true, len(archive) - 512: true}
	for _, from := range []int{0, len(parts[0]) + 514, len(archive) - 1024 - 509} {
		fine[from] = true
		for i := from; i%512 != 0; i++ {
			fine[i+1] = true
		}
	}
	for cut := range archive {
		if in := cut % 512; in > 4 && in < 508 && cut%11 != 0 {
			continue // it is as its neighbours are
		}
		_, err := readAll(bytes.NewReader(archive[:cut]), tarfile.Limits{})
		_, skipped := skipAll(archive[:cut])
		if fine[cut] {
			if err != nil || skipped != nil {
				t.Errorf("cut at %d: %v, %v", cut, err, skipped)
			}
			continue
		}
		for _, err := range []error{err, skipped} {
			if fault.Of(err) != fault.LayerArchive || errors.Is(err, io.EOF) {
				t.Errorf("cut at %d: %v", cut, err)
			}
		}
	}
}

func skipAll(archive []byte) (int, error) {
	r := tarfile.NewReader(bytes.NewReader(archive), tarfile.Limits{})
	for n := 0; ; n++ {
		if _, err := r.Next(); errors.Is(err, io.EOF) {
			return n, nil
		} else if err != nil {
			return n, err
		}
	}
}

// An error stays.
func TestErrorsStay(t *testing.T) {
	r := tarfile.NewReader(bytes.NewReader(join(entry("a", '0', "hi"), entry("b", 'V', ""))), tarfile.Limits{})
	if err := r.Finish(); err == nil || fault.Of(err) != fault.Bug {
		t.Error(err)
	}
	if _, err := r.Next(); err != nil {
		t.Fatal(err)
	}
	_, first := r.Next()
	refused(t, first, fault.LayerType, `"b"`)
	_, err := r.Next()
	n, readErr := r.Read(make([]byte, 1))
	if err != first || readErr != first || n != 0 || r.Finish() != first { //nolint:errorlint // the same error
		t.Error(err, readErr)
	}
}

// nulls is zero bytes without end.
type nulls struct{}

func (nulls) Read(p []byte) (int, error) { clear(p); return len(p), nil }

func TestTrailing(t *testing.T) {
	a := entry("a", '0', "hi")
	padding := func(n int64) io.Reader { return io.LimitReader(nulls{}, n) }
	for name, c := range map[string]struct {
		behind io.Reader
		says   string
	}{
		"another archive": {bytes.NewReader(a), "ends at byte 2048 and more than zeros follows at byte 2048"},
		"a late byte":     {io.MultiReader(padding(100000), bytes.NewReader([]byte{7, 0})), "at byte 102048"},
		"a flood":         {padding(16<<20 + 1), "16777216 zero bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := readAll(io.MultiReader(bytes.NewReader(join(a, end)), c.behind), tarfile.Limits{})
			refused(t, err, fault.LayerTrailing, c.says)
		})
	}
	if _, err := readAll(io.MultiReader(bytes.NewReader(join(a, end)), padding(16<<20)), tarfile.Limits{}); err != nil {
		t.Error(err)
	}
}
