// Command jobs measures how fast a master answers for template jobs: reads of
// their status, and submits by many clients, beside plain commits of one row
// on the same MariaDB in the same run. It must never build an image: nobody
// claims the jobs.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/paddock-dev/paddock/bench"
	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/store"
)

const submitters = 16

func main() {
	asJSON := flag.Bool("json", false, "print one JSON object for each figure")
	n := flag.Int("n", 5, "rounds")
	each := flag.Int("each", 40, "submits of each client and round")
	reads := flag.Duration("reads", 2*time.Second, "time of reading in each round")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := bounds(*n, *each, *reads)
	if err == nil {
		err = measure(ctx, *n, *each, *reads, *asJSON)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "Error:", err)
		os.Exit(1) //nolint:gocritic // stop frees nothing that the exit does not
	}
}

func bounds(n, each int, reads time.Duration) error {
	if n < 1 || each < 1 || reads <= 0 {
		return fmt.Errorf("-n %d -each %d -reads %s: all must be above 0", n, each, reads)
	}
	return nil
}

// samples are what the rounds gave: the durations of all submits and commits,
// and reads per second and core.
type samples struct {
	submit, commit []time.Duration
	reads          []float64
}

func measure(ctx context.Context, n, each int, reads time.Duration, asJSON bool) (err error) {
	r, err := newRig(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	var s samples
	for i := range n + 1 { // the first warms up and is not counted
		one, err := round(ctx, r, each, reads)
		if err != nil {
			return err
		}
		if i > 0 {
			s.submit, s.commit, s.reads = append(s.submit, one.submit...), append(s.commit, one.commit...), append(s.reads, one.reads...)
		}
	}
	slices.Sort(s.reads)
	submit, commit := p99(s.submit), p99(s.commit)
	return bench.Print(os.Stdout, asJSON,
		bench.Figure{Name: "templates.status_per_s", Value: s.reads[len(s.reads)/2], Unit: "/s", N: n, Note: fmt.Sprintf("reads of a job's status per second, over the %d cores that clients, master and database share; MariaDB", runtime.NumCPU())},
		bench.Figure{Name: "templates.submit_p99_ms", Value: submit, Unit: "ms", N: len(s.submit), Note: fmt.Sprintf("%d clients, MariaDB; median %.1f ms; plain commit of one row by as many: p99 %.1f ms, median %.1f ms", submitters, bench.P50(s.submit), commit, bench.P50(s.commit))},
		bench.Figure{Name: "templates.submit_vs_commit", Value: bench.P50(s.submit) / bench.P50(s.commit), Unit: "x", N: len(s.submit), Note: "median submit over median plain commit"},
	)
}

func p99(all []time.Duration) float64 {
	sorted := slices.Sorted(slices.Values(all))
	return float64(sorted[(len(sorted)-1)*99/100]) / float64(time.Millisecond)
}

// round does each thing once.
func round(ctx context.Context, r *rig, each int, reads time.Duration) (s samples, err error) {
	var job string
	if s.submit, err = together(ctx, each, func(ctx context.Context) error {
		id := r.next()
		spec := &cubeapi.ContainerOverride{Envs: []cubeapi.KeyValue{{Key: "SPEC", Value: id}}} // else all are one job
		j, err := r.api.FromImage(ctx, cubeapi.FromImageRequest{SourceImageRef: "registry.invalid/box:1", RequestID: id, Overrides: spec})
		if err == nil {
			r.seen(j.JobID)
		}
		return err
	}); err != nil {
		return s, err
	}
	if s.commit, err = together(ctx, each, func(ctx context.Context) error {
		return r.db.Update(ctx, func(tx *store.Tx) error {
			_, err := tx.Exec(ctx, `INSERT INTO audit (id, at_us, actor, action, subject, request_id, detail) VALUES (?, ?, ?, 'bench', ?, ?, ?)`,
				r.next(), tx.Now.UnixMicro(), []byte("bench"), []byte("x"), []byte("x"), make([]byte, 1024))
			return err
		})
	}); err != nil {
		return s, err
	}
	job = r.last()
	ends := time.Now().Add(reads)
	var mu sync.Mutex
	total := 0
	group, ctx := errgroup.WithContext(ctx)
	began := time.Now()
	for range submitters {
		group.Go(func() error {
			for n := 0; ; n++ {
				if !time.Now().Before(ends) {
					mu.Lock()
					defer mu.Unlock()
					total += n
					return nil
				}
				if _, err := r.api.Job(ctx, job); err != nil {
					return err
				}
			}
		})
	}
	err = group.Wait()
	s.reads = []float64{float64(total) / time.Since(began).Seconds() / float64(runtime.NumCPU())}
	return s, err
}

// together lets all clients do something at once, each so many times.
func together(ctx context.Context, each int, do func(ctx context.Context) error) (all []time.Duration, err error) {
	var mu sync.Mutex
	group, ctx := errgroup.WithContext(ctx)
	for range submitters {
		group.Go(func() error {
			took := make([]time.Duration, 0, each)
			for range each {
				began := time.Now()
				if err := do(ctx); err != nil {
					return err
				}
				took = append(took, time.Since(began))
			}
			mu.Lock()
			defer mu.Unlock()
			all = append(all, took...)
			return nil
		})
	}
	return all, group.Wait()
}
