package progress_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/platform/config"
	"github.com/paddock-dev/paddock/internal/progress"
	"github.com/paddock-dev/paddock/internal/template"
	"github.com/paddock-dev/paddock/test/service"
)

type board interface {
	Put(ctx context.Context, id template.JobID, p template.Pull) error
	Get(ctx context.Context, id template.JobID) (template.Pull, bool, error)
	Clear(ctx context.Context, id template.JobID) error
}

var half = template.Pull{TotalBytes: 1 << 40, DoneBytes: 1 << 39, TotalLayers: 4, DoneLayers: 2, BytesPerSecond: 7}

func TestBoards(t *testing.T) {
	for name, open := range map[string]func(*testing.T) board{
		"memory": func(*testing.T) board { return &progress.Memory{} },
		"redis":  func(t *testing.T) board { return openRedis(t, service.Redis(t)) },
	} {
		t.Run(name, func(t *testing.T) {
			b := open(t)
			expect(t, b, "job-1", template.Pull{}, false)
			put(t, b, "job-1", half)
			put(t, b, "job-2", template.Pull{TotalBytes: 1})
			expect(t, b, "job-1", half, true)
			put(t, b, "job-1", template.Pull{TotalBytes: 2})
			expect(t, b, "job-1", template.Pull{TotalBytes: 2}, true)
			for range 2 {
				if err := b.Clear(t.Context(), "job-1"); err != nil {
					t.Fatal(err)
				}
			}
			expect(t, b, "job-1", template.Pull{}, false)
			expect(t, b, "job-2", template.Pull{TotalBytes: 1}, true)
			var all sync.WaitGroup
			for i := range 16 {
				all.Go(func() {
					id := template.JobID(fmt.Sprintf("job-%d", i%4))
					if err := b.Put(t.Context(), id, half); err != nil {
						t.Error(err)
					}
					if _, _, err := b.Get(t.Context(), id); err != nil {
						t.Error(err)
					}
				})
			}
			all.Wait()
		})
	}
}

func openRedis(t *testing.T, addr string) *progress.Redis {
	t.Helper()
	r := progress.NewRedis(config.Redis{Addr: addr})
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

func put(t *testing.T, b board, id template.JobID, p template.Pull) {
	t.Helper()
	if err := b.Put(t.Context(), id, p); err != nil {
		t.Fatal(err)
	}
}

func expect(t *testing.T, b board, id template.JobID, want template.Pull, found bool) {
	t.Helper()
	got, ok, err := b.Get(t.Context(), id)
	if err != nil || ok != found || got != want {
		t.Errorf("%s: %+v, %t, %v; want %+v, %t", id, got, ok, err, want, found)
	}
}

func TestMemoryForgetsWhoWentSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &progress.Memory{}
		put(t, b, "job-1", half)
		time.Sleep(progress.Life - time.Second)
		expect(t, b, "job-1", half, true)
		time.Sleep(2 * time.Second)
		expect(t, b, "job-1", template.Pull{}, false)
	})
}

func TestRedisForgetsWhoWentSilent(t *testing.T) {
	addr := service.Redis(t)
	put(t, openRedis(t, addr), "job-1", half)
	c := redis.NewClient(&redis.Options{Addr: addr})
	defer c.Close()
	life, err := c.TTL(t.Context(), "paddock:pull:job-1").Result()
	if err != nil || life <= 0 || life > progress.Life {
		t.Errorf("life %s, %v", life, err)
	}
}

func TestTwoProcessesShareOneRedis(t *testing.T) {
	addr := service.Redis(t)
	put(t, openRedis(t, addr), "job-1", half)
	expect(t, openRedis(t, addr), "job-1", half, true)
}

// TestRedisAwayIsOnlyAnError, and soon: a port where nobody listens, and one
// where nobody answers.
func TestRedisAwayIsOnlyAnError(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := closed.Close(); err != nil {
		t.Fatal(err)
	}
	for name, addr := range map[string]string{"closed": closed.Addr().String(), "silent": silent.Addr().String()} {
		b := openRedis(t, addr)
		began := time.Now()
		_, ok, getErr := b.Get(t.Context(), "job-1")
		for _, err := range []error{b.Put(t.Context(), "job-1", half), b.Clear(t.Context(), "job-1"), getErr} {
			if !errors.Is(err, fault.PeerUnavailable) {
				t.Errorf("%s: %v", name, err)
			}
		}
		if ok || time.Since(began) > 10*time.Second {
			t.Errorf("%s: found %t after %s", name, ok, time.Since(began))
		}
	}
}

func TestAnEntryOfAnotherVersionSaysNothing(t *testing.T) {
	addr := service.Redis(t)
	c := redis.NewClient(&redis.Options{Addr: addr})
	defer c.Close()
	if err := c.Set(t.Context(), "paddock:pull:job-1", "no json", 0).Err(); err != nil {
		t.Fatal(err)
	}
	expect(t, openRedis(t, addr), "job-1", template.Pull{}, false)
}
