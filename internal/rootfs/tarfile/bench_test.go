package tarfile_test

import (
	"archive/tar"
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/klauspost/compress/gzip"

	"github.com/paddock-dev/paddock/internal/rootfs/tarfile"
)

// archiveOf is n files of size bytes, as a builder of images writes them.
func archiveOf(tb testing.TB, n, size int, records map[string]string) []byte {
	tb.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	text := prose(size + 128<<10)
	for i := range n {
		body := text[i*7919%(128<<10):][:size]
		h := &tar.Header{
			Typeflag: tar.TypeReg, Name: fmt.Sprintf("usr/lib/python3/dist-packages/pkg%03d/module%05d.py", i/100, i),
			Mode: 0o644, Size: int64(size), ModTime: time.Unix(1700000000, 0), PAXRecords: records,
		}
		if err := errors.Join(w.WriteHeader(h), second(w.Write(body))); err != nil {
			tb.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		tb.Fatal(err)
	}
	return out.Bytes()
}

// prose is size bytes that compress about as well as program text.
func prose(size int) []byte {
	rnd := rand.New(rand.NewPCG(1, 2))
	words := make([][]byte, 3000)
	for i := range words {
		for range 2 + rnd.IntN(10) {
			words[i] = append(words[i], byte('a'+rnd.IntN(26)))
		}
	}
	out := make([]byte, 0, size+16)
	for len(out) < size {
		out = append(append(out, words[int(math.Abs(rnd.NormFloat64())*700)%len(words)]...), ' ')
	}
	return out[:size]
}

func second[T any](_ T, err error) error { return err }

// shapes are archives whose cost lies in different places.
var shapes = []struct {
	name    string
	n, size int
	records map[string]string
}{
	{"files=8KiB", 4000, 8 << 10, nil},
	{"files=0", 20000, 0, nil},
	{"files=8KiB,pax", 4000, 8 << 10, map[string]string{"SCHILY.xattr.security.capability": "\x01\x00\x00\x02" + strings.Repeat("\x00", 16), "path": "a/longer/name"}},
	{"files=16MiB", 2, 16 << 20, nil},
}

// BenchmarkRead reads every byte of an archive in memory through a buffered
// reader into one buffer, as the writer of an image does.
func BenchmarkRead(b *testing.B) {
	for _, s := range shapes {
		archive := archiveOf(b, s.n, s.size, s.records)
		buf := make([]byte, 256<<10)
		run := func(name string, read func(io.Reader) error) {
			b.Run(name+"/"+s.name, func(b *testing.B) {
				b.SetBytes(int64(len(archive)))
				b.ReportAllocs()
				start := cpuTime(b)
				for b.Loop() {
					if err := read(bufio.NewReaderSize(bytes.NewReader(archive), 64<<10)); err != nil {
						b.Fatal(err)
					}
				}
				b.ReportMetric(float64(cpuTime(b)-start)/float64(b.N*s.n), "cpu-ns/entry")
			})
		}
		run("tarfile", func(src io.Reader) error {
			r := tarfile.NewReader(src, tarfile.Limits{})
			return walk(func() error { return second(r.Next()) }, r, buf)
		})
		run("archive-tar", func(src io.Reader) error {
			r := tar.NewReader(src)
			return walk(func() error { return second(r.Next()) }, r, buf)
		})
		// What must be done before: the archive out of its gzip stream.
		packed := gzipped(b, archive)
		run("inflate", func(io.Reader) error {
			z, err := gzip.NewReader(bytes.NewReader(packed))
			if err != nil {
				return err
			}
			return second(io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{z}, buf))
		})
	}
}

// cpuTime is what this process has used, which a busy machine changes less
// than the time on the wall.
func cpuTime(tb testing.TB) int64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		tb.Fatal(err)
	}
	return u.Utime.Nano() + u.Stime.Nano()
}

func gzipped(tb testing.TB, data []byte) []byte {
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	if err := errors.Join(second(w.Write(data)), w.Close()); err != nil {
		tb.Fatal(err)
	}
	return out.Bytes()
}

func walk(next func() error, r io.Reader, buf []byte) error {
	for {
		if err := next(); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		for {
			if _, err := r.Read(buf); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				return err
			}
		}
	}
}

// An entry costs itself and its name; an attribute its name, its value and its
// place in the list.
func TestAllocations(t *testing.T) {
	for _, c := range []struct {
		records map[string]string
		limit   float64
	}{{nil, 2}, {map[string]string{"path": "b"}, 2}, {map[string]string{"SCHILY.xattr.user.a": "1"}, 6}} {
		const n = 1000
		archive := archiveOf(t, n, 8, c.records)
		buf := make([]byte, 8)
		got := testing.AllocsPerRun(3, func() {
			r := tarfile.NewReader(bytes.NewReader(archive), tarfile.Limits{})
			if err := walk(func() error { return second(r.Next()) }, r, buf); err != nil {
				t.Error(err)
			}
		})
		if got > n*c.limit+20 {
			t.Errorf("%v: %.2f allocations an entry, at most %.0f", c.records, got/n, c.limit)
		}
	}
}
