// Command rootfs measures how an image becomes an ext4 file: ours beside what
// public builders do (unpack, mkfs, fsck, shrink), and beside the bound, which
// is decompressing the layers and writing as many bytes. It must never measure
// ours and its peers in different runs, or with other caches.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/paddock-dev/paddock/bench"
)

// options are the flags.
type options struct {
	rounds                      int
	images, only, work, profile string
	quick                       bool
}

func main() {
	var o options
	asJSON := flag.Bool("json", false, "print one JSON object for each figure")
	flag.IntVar(&o.rounds, "n", 5, "rounds")
	flag.StringVar(&o.images, "images", "", "OCI layout with the images (default: scripts/bench-images.sh makes it)")
	flag.StringVar(&o.only, "only", "", "measure this image alone")
	flag.StringVar(&o.work, "work", "", "scratch directory on a real disk (default: beside the images)")
	flag.StringVar(&o.profile, "profile", "", "write profiles of our builds to this directory; they cost time")
	flag.BoolVar(&o.quick, "quick", false, "leave the classic way out")
	var job childJob
	flag.StringVar(&job.what, "child", "", "for the program itself: build or bound")
	flag.StringVar(&job.reference, "reference", "", "of the child")
	flag.StringVar(&job.dir, "dir", "", "of the child")
	flag.Int64Var(&job.bytes, "bytes", 0, "of the child")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var err error
	if job.what != "" {
		job.profile = o.profile
		err = job.run(ctx)
	} else {
		err = measure(ctx, o, *asJSON)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "Error:", err)
		os.Exit(1) //nolint:gocritic // stop frees nothing that the exit does not
	}
}

func measure(ctx context.Context, o options, asJSON bool) (err error) {
	if o.rounds < 1 {
		return fmt.Errorf("-n %d: at least one round is needed", o.rounds)
	}
	list, err := pictures(ctx, o.images, o.only)
	if err != nil {
		return err
	}
	if o.work == "" {
		o.work = filepath.Dir(list[0].layout)
	}
	dir, err := os.MkdirTemp(o.work, "bench-rootfs-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	var all []bench.Figure
	sums := map[string]int{} // builds of each image and outcome
	for _, p := range list {
		s, err := sampled(ctx, o, p, dir)
		if err != nil {
			return fmt.Errorf("image %s: %w", p.name, err)
		}
		all = append(all, s.figures(p)...)
		for _, b := range s.ours {
			sums[p.name+" "+b.SHA256]++
		}
	}
	return bench.Print(os.Stdout, asJSON, append(all, reproducible(sums, len(list)))...)
}

// samples are what the rounds of one image gave.
type samples struct {
	classic, build, bound []used
	steps                 []string // of the last classic way
	ours                  []built
}

// sampled runs the rounds: each does each thing once, in an order that turns.
// One round before them warms the caches and is not counted, but for its bytes:
// it builds with a single processor, which must change nothing.
func sampled(ctx context.Context, o options, p picture, dir string) (*samples, error) {
	if err := p.warm(); err != nil {
		return nil, err
	}
	s := &samples{}
	var tree size
	if !o.quick {
		var err error
		if tree, err = measureTree(ctx, p, dir); err != nil {
			return nil, err
		}
	}
	first, _, err := child[built](ctx, childJob{what: "build", reference: p.reference(), dir: dir}, "GOMAXPROCS=1")
	if err != nil {
		return nil, err
	}
	s.ours = append(s.ours, first)
	things := []func() error{
		func() error {
			b, u, err := child[built](ctx, childJob{what: "build", reference: p.reference(), dir: dir, profile: o.profile})
			s.ours, s.build = append(s.ours, b), append(s.build, u)
			return err
		},
		func() error {
			_, u, err := child[struct{}](ctx, childJob{what: "bound", reference: p.reference(), dir: dir, bytes: first.Size})
			s.bound = append(s.bound, u)
			return err
		},
		func() error {
			if o.quick {
				return nil
			}
			steps, err := classic(ctx, p, dir, tree)
			s.classic, s.steps = append(s.classic, total(steps)), told(steps)
			return err
		},
	}
	for i := range o.rounds {
		for j := range things {
			if err := settled(dir); err != nil {
				return nil, err
			}
			if err := things[(i+j)%len(things)](); err != nil {
				return nil, err
			}
		}
	}
	return s, nil
}

// settled removes what the last thing made, and waits until the disk is idle:
// nobody pays for what another left in the page cache.
func settled(dir string) error {
	left, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range left {
		if err := os.RemoveAll(filepath.Join(dir, e.Name())); err != nil {
			return err
		}
	}
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(unix.Syncfs(int(f.Fd())), f.Close())
}

func told(steps []step) (out []string) {
	for _, s := range steps {
		out = append(out, fmt.Sprintf("%s %d ms", s.name, s.took.Milliseconds()))
	}
	return out
}

func times(all []used) (out []time.Duration) {
	for _, u := range all {
		out = append(out, u.took)
	}
	return out
}

// spread tells how durations lie, and the processors' part in them.
func spread(all []used) string {
	var cpu []time.Duration
	for _, u := range all {
		cpu = append(cpu, u.cpu)
	}
	return fmt.Sprintf("%s, CPU p50 %.0f ms", bench.Range(times(all)), bench.P50(cpu))
}

func (s *samples) figures(p picture) []bench.Figure {
	n, build, bound := len(s.build), bench.P50(times(s.build)), bench.P50(times(s.bound))
	last := s.ours[len(s.ours)-1]
	var peak int64
	for _, b := range s.ours[1:] {
		peak = max(peak, b.PeakKiB)
	}
	about := fmt.Sprintf("%d layers, %d MB packed, %d MB of files in %d names; layers in an OCI layout, cached", len(p.digests), p.packed/1e6, last.FileBytes/1e6, last.Names)
	var list []bench.Figure
	if len(s.classic) > 0 {
		list = append(list, bench.Figure{
			Name: "rootfs.vs_classic." + p.name, Value: bench.P50(times(s.classic)) / build, Unit: "x", N: n,
			Note: fmt.Sprintf("p50 of umoci unpack + mkfs.ext4 -d + e2fsck -fy + resize2fs -M + e2fsck -fn (%s; last: %s) over p50 of ours (%s), fsync and sha256 included; target 6, aim 10; %s",
				spread(s.classic), strings.Join(s.steps, ", "), spread(s.build), about),
		})
	}
	return append(list,
		bench.Figure{
			Name: "rootfs.vs_bound." + p.name, Value: build / bound, Unit: "x", N: n,
			Note: fmt.Sprintf("p50 of ours (%s) over p50 of decompressing all layers with the same decoder and parallelism while as many bytes are written in order, and fsync (%s); target at most 1.3", spread(s.build), spread(s.bound)),
		},
		bench.Figure{Name: "rootfs.peak_mb." + p.name, Value: float64(peak) * 1024 / 1e6, Unit: "MB", N: n, Note: "largest VmHWM of a process that only builds"},
		bench.Figure{Name: "rootfs.size_overhead." + p.name, Value: float64(last.Size) / float64(last.BlockBytes), Unit: "x", N: 1, Note: fmt.Sprintf("image bytes (%d) over bytes of files in whole blocks (%d)", last.Size, last.BlockBytes)},
	)
}

// reproducible is 1 when every build of an image gave the same bytes.
func reproducible(sums map[string]int, images int) bench.Figure {
	f := bench.Figure{Name: "rootfs.reproducible", Unit: "x", Note: "1: all builds of each image gave the same sha256, one of them on a single processor"}
	for _, n := range sums {
		f.N += n
	}
	if len(sums) == images {
		f.Value = 1
	}
	return f
}
