package serve

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/paddock-dev/paddock/internal/fault"
)

// story collects what happened, in order.
type story struct {
	mu    sync.Mutex
	lines []string
}

func (s *story) add(line string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lines = append(s.lines, line)
}

// part runs until it is stopped, and then says err.
func (s *story) part(name string, err error) Named {
	return Named{Name: name, Service: Func(func(ctx context.Context) error {
		<-ctx.Done()
		s.add("stop " + name)
		return err
	}), Ready: func(context.Context) error {
		s.add("start " + name)
		return nil
	}}
}

var silent = slog.New(slog.DiscardHandler)

func TestGroupStopsInReverse(t *testing.T) {
	s := &story{}
	ctx, cancel := context.WithCancel(t.Context())
	last := Named{Name: "c", Service: Func(func(ctx context.Context) error {
		cancel()
		<-ctx.Done()
		s.add("stop c")
		return ctx.Err()
	})}
	if err := Group(ctx, silent, s.part("a", nil), s.part("b", context.Canceled), last); err != nil {
		t.Errorf("asked to stop, it says %v", err)
	}
	if want := []string{"start a", "start b", "stop c", "stop b", "stop a"}; !slices.Equal(s.lines, want) {
		t.Errorf("%v, want %v", s.lines, want)
	}
}

func TestGroupEndsWithTheFirst(t *testing.T) {
	broken := errors.New("disk on fire")
	for _, c := range []struct {
		name string
		run  Func
		want []string // in the text
		code *fault.Code
	}{
		{"fails", func(context.Context) error { return fault.Wrap(fault.StoreUnavailable, broken, "rows") }, []string{"x ended: rows", "disk on fire"}, fault.StoreUnavailable},
		{"just returns", func(context.Context) error { return nil }, []string{"x ended: it stopped without being asked"}, fault.Bug},
		{"panics", func(context.Context) error { panic("ouch") }, []string{"x ended: panic: ouch"}, fault.Bug},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := &story{}
			err := Group(t.Context(), silent, s.part("a", errors.New("a could not flush")), Named{Name: "x", Service: c.run})
			if err == nil || fault.Of(err) != c.code {
				t.Fatalf("got %v, want code %s", err, c.code.Name)
			}
			for _, w := range append(c.want, "stop of a: a could not flush") {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("%q does not say %q", err, w)
				}
			}
			if n := strings.Count(err.Error(), "x"); n != 1 {
				t.Errorf("%q tells of x %d times", err, n)
			}
		})
	}
}

func TestGroupStartsInOrder(t *testing.T) {
	s := &story{}
	bad := s.part("b", nil)
	bad.Ready = func(context.Context) error { return fault.New(fault.PortInUse, "b") }
	err := Group(t.Context(), silent, s.part("a", nil), bad, s.part("c", nil))
	if !errors.Is(err, fault.PortInUse) || !strings.Contains(err.Error(), "b is not ready") {
		t.Errorf("got %v", err)
	}
	if want := []string{"start a", "stop b", "stop a"}; !slices.Equal(s.lines, want) {
		t.Errorf("%v, want %v: c depends on b", s.lines, want)
	}
}

func TestGroupWaitsForReadinessWithinABound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &story{}
		never := s.part("b", nil)
		never.Ready = func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
		began := time.Now()
		err := Group(t.Context(), silent, never)
		if !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != readyTime {
			t.Errorf("after %s: %v", time.Since(began), err)
		}
		// Another part's end is not waited for that long.
		dead := Named{Name: "a", Service: Func(func(context.Context) error { return errors.New("gone") })}
		began = time.Now()
		err = Group(t.Context(), silent, dead, never)
		if err == nil || !strings.Contains(err.Error(), "a ended: gone") || time.Since(began) != 0 {
			t.Errorf("after %s: %v", time.Since(began), err)
		}
	})
}

func TestAPartMayTakeItsOwnTimeToStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := Named{Name: "slow", StopTime: time.Hour, Service: Func(func(ctx context.Context) error {
			<-ctx.Done()
			time.Sleep(30 * time.Minute)
			return nil
		})}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := Group(ctx, silent, slow); err != nil {
			t.Error(err)
		}
	})
}

func TestGroupLeavesBehindWhatDoesNotStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &story{}
		free := make(chan struct{})
		stuck := Named{Name: "stuck", Service: Func(func(context.Context) error { <-free; return nil })}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began := time.Now()
		err := Group(ctx, silent, s.part("a", nil), stuck)
		if !errors.Is(err, fault.Deadline) || !strings.Contains(err.Error(), "stuck did not stop in 15s") {
			t.Errorf("got %v", err)
		}
		if took := time.Since(began); took != time.Second+partStopTime {
			t.Errorf("it took %s", took)
		}
		if !slices.Contains(s.lines, "stop a") {
			t.Error("the rest was not stopped")
		}
		close(free)
	})
}
