// Command templates measures how templates come to hosts: what a new version
// costs, how long one host takes beside a plain copy of the file, and what the
// store sends to many. Master, template centre, registry and the hosts' stores
// of images are the real ones, in one process; the hosts have no runtime. It
// must never count what did not cross a socket.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/paddock-dev/paddock/bench"
)

// options are the flags.
type options struct {
	rounds int
	work   string
	bin    string
}

func main() {
	var o options
	asJSON := flag.Bool("json", false, "print one JSON object for each figure")
	flag.IntVar(&o.rounds, "n", 5, "rounds of what is timed")
	flag.StringVar(&o.work, "work", "", "scratch directory on a real disk, of 10 GB (default: that of temporary files)")
	flag.StringVar(&o.bin, "bin", "bin", "directory of paddock-guest")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	figures, err := measure(ctx, o)
	if err == nil {
		err = bench.Print(os.Stdout, *asJSON, figures...)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "Error:", err)
		os.Exit(1) //nolint:gocritic // stop frees nothing that the exit does not
	}
}

const fleet = 8

func measure(ctx context.Context, o options) (list []bench.Figure, err error) {
	if o.rounds < 1 {
		return nil, fmt.Errorf("-n %d: at least one round is needed", o.rounds)
	}
	r, err := newRig(ctx, o)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	if err := r.ready(ctx, 1, r.host("first")); err != nil {
		return nil, err
	}
	next, err := r.next(ctx)
	if err != nil {
		return nil, err
	}
	// From here on only the store has it.
	if err := r.drop(ctx, r.hosts["first"]); err != nil {
		return nil, err
	}
	copied, brought, fetched, err := r.timed(ctx, o.rounds)
	if err != nil {
		return nil, err
	}
	fanout, err := r.fanout(ctx)
	if err != nil {
		return nil, err
	}
	image := fmt.Sprintf("an image of %d MB", r.size/1e6)
	return []bench.Figure{
		{Name: "templates.second_version_bytes", Value: next, Unit: "x", N: 1, Note: "bytes that came over sockets to a host that has version 1 until version 2 (one layer of 1 MB is another and larger, layers over it move) was ready, over the image's bytes; " + image + "; bound 0.05"},
		{Name: "templates.distribute_vs_copy", Value: bench.P50(brought) / bench.P50(copied), Unit: "x", N: o.rounds, Note: fmt.Sprintf("p50 of a job from its submission to READY on one host that has nothing, the artifact in the store (%s; the host had a part of %.0f ms in it), over p50 of cp and fsync of the same file (%s); %s; bound 1.5", bench.Range(brought), bench.P50(fetched), bench.Range(copied), image)},
		{Name: "templates.fanout_origin_bytes", Value: fanout, Unit: "x", N: 1, Note: fmt.Sprintf("bytes that the template centre sent until %d hosts that had nothing were ready, over the image's bytes; %s; bound 2", fleet, image)},
	}, nil
}

// timed readies version 1 on a fresh host, and copies its file, in turns. The
// first of each is not counted.
func (r *rig) timed(ctx context.Context, rounds int) (copied, brought, fetched []time.Duration, err error) {
	for i := range rounds + 1 {
		if err := r.settle(); err != nil {
			return nil, nil, nil, err
		}
		to := filepath.Join(r.dir, "copy")
		began := time.Now()
		if err := copyFile(ctx, r.image, to); err != nil {
			return nil, nil, nil, err
		}
		took := time.Since(began)
		if err := os.Remove(to); err != nil {
			return nil, nil, nil, err
		}
		h := r.host(fmt.Sprintf("timed-%d", i))
		if err := r.await(ctx, h); err != nil {
			return nil, nil, nil, err
		}
		if err := r.settle(); err != nil {
			return nil, nil, nil, err
		}
		began = time.Now()
		if err := r.ready(ctx, 1, h); err != nil {
			return nil, nil, nil, err
		}
		if i > 0 {
			copied, brought, fetched = append(copied, took), append(brought, time.Since(began)), append(fetched, time.Duration(h.took.Load()))
		}
		if err := r.drop(ctx, h); err != nil {
			return nil, nil, nil, err
		}
	}
	return copied, brought, fetched, nil
}

// copyFile is what the figure is compared with.
func copyFile(ctx context.Context, from, to string) error {
	if out, err := exec.CommandContext(ctx, "cp", "--reflink=never", from, to).CombinedOutput(); err != nil {
		return fmt.Errorf("cp: %w: %s", err, out)
	}
	f, err := os.Open(to)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// next readies version 2 on the host that has version 1.
func (r *rig) next(ctx context.Context) (float64, error) {
	h := r.hosts["first"]
	before := h.wire.Load()
	if err := r.ready(ctx, 2, h); err != nil {
		return 0, err
	}
	return float64(h.wire.Load()-before) / float64(r.size), nil
}

// fanout readies version 1 on a fleet that has nothing. No host that had it
// before takes part.
func (r *rig) fanout(ctx context.Context) (float64, error) {
	var list []*benchHost
	for i := range fleet {
		list = append(list, r.host(fmt.Sprintf("fleet-%d", i)))
	}
	for _, h := range list {
		if err := r.await(ctx, h); err != nil {
			return 0, err
		}
	}
	before, err := r.served()
	if err != nil {
		return 0, err
	}
	if err := r.ready(ctx, 1, list...); err != nil {
		return 0, err
	}
	after, err := r.served()
	return (after - before) / float64(r.size), err
}
