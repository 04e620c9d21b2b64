// Command create measures what the control plane adds to a sandbox: whole
// create transactions through the master's HTTP face, on hosts that run nothing
// but answer as cubelets do, beside plain commits of one row on the same
// database by as many clients in the same run.
//
// Clients, master and hosts are processes of their own, so that a profile of
// the master is of it alone. It must never measure ours and the peer's on
// different databases.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"github.com/paddock-dev/paddock/bench"
)

// counts are how many clients create at once.
var counts = []int{1, 16, 64}

type options struct {
	json         bool
	n, hosts     int
	each         int
	profile      string
	sqlite, mysq bool
}

func main() {
	var o options
	role := flag.String("role", "", "what this process is; the one that measures starts the others")
	flag.BoolVar(&o.json, "json", false, "print one JSON object for each figure")
	flag.IntVar(&o.n, "n", 3, "rounds")
	flag.IntVar(&o.hosts, "hosts", 100, "hosts")
	flag.IntVar(&o.each, "each", 300, "creates of each round")
	flag.StringVar(&o.profile, "cpuprofile", "", "write profiles of the master to files whose names begin so")
	only := flag.String("only", "", "measure on sqlite or mariadb only")
	flag.Parse()
	o.sqlite, o.mysq = *only != "mariadb", *only != "sqlite"
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var err error
	switch {
	case *role == "master":
		err = master(ctx, o.profile)
	case *role == "hosts":
		err = hosts(ctx, o.hosts)
	case o.n < 1 || o.hosts < 1 || o.each < slices.Max(counts) || o.each > 100*o.hosts:
		err = fmt.Errorf("-n %d -hosts %d -each %d: at least 1, 1 and %d, and at most 100 creates for each host", o.n, o.hosts, o.each, slices.Max(counts))
	default:
		err = measure(ctx, o)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "Error:", err)
		os.Exit(1) //nolint:gocritic // stop frees nothing that the exit does not
	}
}

func measure(ctx context.Context, o options) error {
	var all []bench.Figure
	per := 0.0
	// MariaDB first: it counts what a create costs it, SQLite does not.
	for _, db := range []struct {
		name string
		use  bool
	}{{"mariadb", o.mysq}, {"sqlite", o.sqlite}} {
		if !db.use {
			continue
		}
		figures, commits, err := on(ctx, o, db.name, per)
		if err != nil {
			return fmt.Errorf("%s: %w", db.name, err)
		}
		all, per = append(all, figures...), commits
	}
	return bench.Print(os.Stdout, o.json, all...)
}

// on measures on one kind of database. per is how many commits a create makes,
// if that is known.
func on(ctx context.Context, o options, db string, per float64) (figures []bench.Figure, _ float64, err error) {
	r, err := newRig(ctx, o, db)
	if err != nil {
		return nil, 0, err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	for _, clients := range counts {
		var s samples
		for i := range o.n + 1 { // the first warms up and is not counted
			one, err := r.round(ctx, clients, o.each)
			if err != nil {
				return nil, 0, fmt.Errorf("%d clients: %w", clients, err)
			}
			if i > 0 {
				s.add(one)
			}
		}
		if s.commits > 0 && clients == 1 {
			per = s.commits / float64(len(s.create))
		}
		figures = append(figures, s.figures(db, clients, per)...)
	}
	parts, err := r.parts(ctx, db, per)
	return append(figures, parts...), per, err
}

// samples are what rounds gave.
type samples struct {
	create, remove, commit             []time.Duration
	createRate, removeRate, commitRate []float64
	cpu                                time.Duration // that the master worked while creates were made
	commits, asked                     float64       // of the database for these; 0: it does not tell
}

func (s *samples) add(o samples) {
	s.create, s.remove, s.commit = append(s.create, o.create...), append(s.remove, o.remove...), append(s.commit, o.commit...)
	s.createRate, s.removeRate, s.commitRate = append(s.createRate, o.createRate...), append(s.removeRate, o.removeRate...), append(s.commitRate, o.commitRate...)
	s.cpu, s.commits, s.asked = s.cpu+o.cpu, s.commits+o.commits, s.asked+o.asked
}

func (s *samples) figures(db string, clients int, per float64) []bench.Figure {
	n := len(s.create)
	name := func(what string) string { return fmt.Sprintf("create.%s.%s.%d", what, db, clients) }
	rate, commits := median(s.createRate), median(s.commitRate)
	all := []bench.Figure{
		{Name: name("control_plane_per_s"), Value: rate, Unit: "/s", N: n, Note: fmt.Sprintf("whole creates per second by %d clients, of whom all share this machine with master, hosts and database; the master works %.2f ms for each", clients, ms(s.cpu)/float64(n))},
		{Name: name("p99_ms"), Value: p99(s.create), Unit: "ms", N: n, Note: fmt.Sprintf("median %.1f ms", bench.P50(s.create))},
		{Name: name("delete_per_s"), Value: median(s.removeRate), Unit: "/s", N: n, Note: fmt.Sprintf("whole deletes; median %.1f ms, p99 %.1f ms", bench.P50(s.remove), p99(s.remove))},
		{Name: name("plain_commit_per_s"), Value: commits, Unit: "/s", N: len(s.commit), Note: fmt.Sprintf("the peer: commits of one row by as many clients on the same database; median %.1f ms, p99 %.1f ms", bench.P50(s.commit), p99(s.commit))},
	}
	if per > 0 {
		all = append(all, bench.Figure{Name: name("vs_commit"), Value: 100 * rate * per / commits, Unit: "%", N: n, Note: fmt.Sprintf("of the peer's commits per second, as a create makes %.1f commits", per)})
	}
	if s.commits > 0 {
		all = append(all, bench.Figure{Name: name("commits"), Value: s.commits / float64(n), Unit: "commits", N: n, Note: fmt.Sprintf("of a create, and %.1f statements; what the master does besides was measured before and is left out", s.asked/float64(n))})
	}
	return all
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

func p99(all []time.Duration) float64 {
	sorted := slices.Sorted(slices.Values(all))
	return ms(sorted[(len(sorted)-1)*99/100])
}

func median(all []float64) float64 {
	sorted := slices.Sorted(slices.Values(all))
	return sorted[len(sorted)/2]
}
