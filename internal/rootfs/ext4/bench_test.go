package ext4_test

import (
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/paddock-dev/paddock/internal/rootfs/ext4"
)

// endless reads one block of noise again and again, at the price of a copy.
type endless struct {
	noise []byte
	at    int
}

func newEndless() *endless {
	b := make([]byte, 8<<20)
	if _, err := io.ReadFull(&noise{state: 1}, b); err != nil {
		panic(err)
	}
	return &endless{noise: b}
}

func (e *endless) Read(p []byte) (int, error) {
	n := copy(p, e.noise[e.at:])
	e.at = (e.at + n) % len(e.noise)
	return n, nil
}

// mixedSizes are sizes of files, as they are mixed in a root file system: of
// total bytes a third each lies in files of some kilobytes, of hundreds of
// them, and of some megabytes.
func mixedSizes(total int64) []int64 {
	r := rand.New(rand.NewPCG(3, 3))
	var out []int64
	for class, sum := 0, int64(0); sum < total; class = (class + 1) % 3 {
		limit := []int64{16 << 10, 600 << 10, 40 << 20}[class]
		for part := int64(0); part < total/24 && sum < total; {
			n := min(1+r.Int64N(limit), total-sum)
			out = append(out, n)
			part += n
			sum += n
		}
	}
	return out
}

// BenchmarkCopy writes 1 GiB of mixed files and their tree, and beside it as
// many bytes with one io.Copy. x_plain is the best of our times over the best
// of its, x_plain_cpu the same of the processor's time, x_plain_median of
// medians. x_finish is what Finish, with all metadata, adds to x_plain.
func BenchmarkCopy(b *testing.B) {
	const total = 1 << 30
	sizes, src := mixedSizes(total), newEndless()
	dir := b.TempDir()
	var ours, finish, plain spans
	both := []func(){
		func() {
			inFile(b, filepath.Join(dir, "plain"), func(f *os.File) {
				plain.add(b, func() error {
					_, err := io.CopyBuffer(struct{ io.Writer }{f}, io.LimitReader(src, total), make([]byte, 256<<10))
					return err
				})
			})
		},
		func() {
			inFile(b, filepath.Join(dir, "image"), func(f *os.File) {
				w, err := ext4.New(f, testOptions)
				must(b, err)
				ours.add(b, func() error { return mixedTree(w, sizes, src) })
				finish.add(b, func() error { return second(w.Finish()) })
			})
		},
	}
	for i := 0; b.Loop(); i++ { // the second has to pay for what the first left to be written back
		both[i%2]()
		both[1-i%2]()
	}
	b.SetBytes(2 * total)
	ratio := func(x, y time.Duration) float64 { return float64(x) / float64(y) }
	b.ReportMetric(ratio(slices.Min(ours.wall), slices.Min(plain.wall)), "x_plain")
	b.ReportMetric(ratio(slices.Min(ours.cpu), slices.Min(plain.cpu)), "x_plain_cpu")
	b.ReportMetric(ratio(median(ours.wall), median(plain.wall)), "x_plain_median")
	b.ReportMetric(ratio(slices.Min(finish.wall), slices.Min(plain.wall)), "x_finish")
	b.ReportMetric(float64(slices.Min(ours.wall).Milliseconds()), "ours_ms")
	b.ReportMetric(float64(len(sizes)), "files")
}

// spans are times of the same work.
type spans struct{ wall, cpu []time.Duration }

func (s *spans) add(b *testing.B, do func() error) {
	b.Helper()
	began, spent := time.Now(), cpuTime(b)
	must(b, do())
	s.wall, s.cpu = append(s.wall, time.Since(began)), append(s.cpu, cpuTime(b)-spent)
}

// inFile makes a file, lets fill fill it, and removes it.
func inFile(b *testing.B, path string, fill func(f *os.File)) {
	b.Helper()
	f, err := os.Create(path)
	must(b, err)
	fill(f)
	must(b, f.Close())
	must(b, os.Remove(path))
}

// cpuTime is what this process had of the processor, in the kernel too.
func cpuTime(b *testing.B) time.Duration {
	b.Helper()
	var u unix.Rusage
	must(b, unix.Getrusage(unix.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func median(list []time.Duration) time.Duration {
	return slices.Sorted(slices.Values(list))[len(list)/2]
}

func mixedTree(w *ext4.Writer, sizes []int64, src io.Reader) error {
	s, parent := w.Stream(), ext4.Root
	for i, size := range sizes {
		if i%200 == 0 {
			var err error
			if parent, err = w.Add(ext4.Root, "dir-"+strconv.Itoa(i), ext4.Meta{Mode: 0o040755, Mtime: noon}); err != nil {
				return err
			}
		}
		d, err := w.Allot(size, nil)
		if err != nil {
			return err
		}
		if err := s.Copy(d, src); err != nil {
			return err
		}
		if _, err := w.Add(parent, "file-"+strconv.Itoa(i), ext4.Meta{Mode: 0o100644, Mtime: noon, Data: d}); err != nil {
			return err
		}
	}
	return s.Close()
}

// BenchmarkDrop gives up small contents that were just written, as an upper
// layer that replaces many files makes it do.
func BenchmarkDrop(b *testing.B) {
	for _, size := range []int64{4 << 10, 64 << 10, 1 << 20} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			f, err := os.Create(filepath.Join(b.TempDir(), "image"))
			must(b, err)
			defer f.Close()
			w, err := ext4.New(f, testOptions)
			must(b, err)
			src := newEndless()
			var dropped []ext4.Data
			s := w.Stream()
			for range 64 << 20 / size {
				d, err := w.Allot(size, nil)
				must(b, err)
				must(b, s.Copy(d, src))
				dropped = append(dropped, d)
			}
			must(b, s.Close())
			b.ResetTimer()
			for _, d := range dropped {
				must(b, w.Drop(d))
			}
			b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(len(dropped)), "us/drop")
		})
	}
}
