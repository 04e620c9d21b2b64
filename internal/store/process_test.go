package store_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/store"
	"github.com/paddock-dev/paddock/internal/store/templatedb"
	"github.com/paddock-dev/paddock/internal/template"
)

// The environment that makes this test program another process on a database.
const (
	childRole = "PADDOCK_STORE_TEST_ROLE"
	childDSN  = "PADDOCK_STORE_TEST_DSN"
)

const rounds = 25

// roles are what another process does. A role says a line when it is there.
var roles = map[string]func(t *testing.T, s *store.Store){
	"count": func(t *testing.T, s *store.Store) {
		say(t, "counting")
		for range rounds {
			if err := countOne(s); err != nil {
				t.Fatal(err)
			}
		}
	},
	"lock": func(t *testing.T, s *store.Store) {
		_, err := s.WithLock(t.Context(), "l", 0, func(ctx context.Context) error {
			say(t, "locked")
			<-ctx.Done()
			return nil
		})
		t.Fatal("the lock ended: ", err)
	},
	"claim": func(t *testing.T, s *store.Store) {
		_, err := s.Deliver(t.Context(), "topic", 1, func(ctx context.Context, _ store.Message) error {
			say(t, "claimed")
			<-t.Context().Done()
			return nil
		})
		t.Fatal("the delivery ended: ", err)
	},
}

// TestRole is not a test: it is what the other processes run.
func TestRole(t *testing.T) {
	if role := os.Getenv(childRole); role != "" {
		roles[role](t, open(t, os.Getenv(childDSN)))
	}
}

func say(t *testing.T, line string) {
	t.Helper()
	if _, err := fmt.Println("said", line); err != nil {
		t.Fatal(err)
	}
}

// spawn starts another process in a role and returns when it has said its line.
func spawn(t *testing.T, role, dsn string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^TestRole$", "-test.v")
	cmd.Env = append(os.Environ(), childRole+"="+role, childDSN+"="+dsn)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var line string
	for r := bufio.NewReader(out); len(line) < 4 || line[:4] != "said"; {
		if line, err = r.ReadString('\n'); err != nil {
			t.Fatalf("%s ended: %v: %v", role, err, cmd.Wait())
		}
	}
	go func() { _, _ = io.Copy(io.Discard, out) }()
	return cmd
}

func kill(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	if err := cmd.Process.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err == nil {
		t.Fatal("it was not killed")
	}
}

const counted = template.JobID("job-counted")

// countOne adds one to a number of a row, as everybody must: by comparing.
func countOne(s *store.Store) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for {
		err := s.Update(ctx, func(tx *store.Tx) error {
			j, err := templatedb.GetJob(ctx, tx, counted)
			if err == nil {
				j.Ready++
				_, err = templatedb.TouchJob(ctx, tx, j)
			}
			return err
		})
		if !errors.Is(err, fault.VersionConflict) {
			return err
		}
	}
}

func TestProcessesShareADatabase(t *testing.T) {
	for _, db := range databases {
		t.Run(db.name, func(t *testing.T) {
			dsn := db.fresh(t)
			s := open(t, dsn)
			if err := s.Update(t.Context(), func(tx *store.Tx) error {
				_, err := templatedb.AddJob(t.Context(), tx, template.Job{ID: counted})
				return err
			}); err != nil {
				t.Fatal(err)
			}
			children := []*exec.Cmd{spawn(t, "count", dsn), spawn(t, "count", dsn)}
			var own sync.WaitGroup
			for range 2 {
				own.Go(func() {
					for range rounds {
						if err := countOne(s); err != nil {
							t.Error(err)
							return
						}
					}
				})
			}
			own.Wait()
			for _, c := range children {
				if err := c.Wait(); err != nil {
					t.Error(err)
				}
			}
			if err := s.View(t.Context(), func(tx *store.Tx) error {
				j, err := templatedb.GetJob(t.Context(), tx, counted)
				if want := 4 * rounds; j.Ready != want {
					t.Errorf("counted to %d, want %d", j.Ready, want)
				}
				return err
			}); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestLockEndsWithItsProcess(t *testing.T) {
	for _, db := range databases {
		t.Run(db.name, func(t *testing.T) {
			dsn := db.fresh(t)
			s := open(t, dsn)
			child := spawn(t, "lock", dsn)
			nothing := func(context.Context) error { return nil }
			if locked, err := s.WithLock(t.Context(), "l", 0, nothing); locked || err != nil {
				t.Errorf("while another process holds it: %v, %v", locked, err)
			}
			kill(t, child)
			if locked, err := s.WithLock(t.Context(), "l", 20*time.Second, nothing); !locked || err != nil {
				t.Errorf("after its process was killed: %v, %v", locked, err)
			}
		})
	}
}

func TestClaimEndsAfterItsProcess(t *testing.T) {
	for _, db := range databases {
		t.Run(db.name, func(t *testing.T) {
			t.Parallel()
			dsn := db.fresh(t)
			s := open(t, dsn)
			if err := s.Update(t.Context(), func(tx *store.Tx) error {
				return tx.Enqueue(t.Context(), store.Message{Topic: "topic", Key: "k", Payload: []byte("a")}, 0)
			}); err != nil {
				t.Fatal(err)
			}
			kill(t, spawn(t, "claim", dsn))
			killed := time.Now()
			eventually(t, "the message is delivered again", func() bool {
				n, err := s.Deliver(t.Context(), "topic", 1, func(context.Context, store.Message) error { return nil })
				if err != nil {
					t.Fatal(err)
				}
				return n == 1
			})
			t.Logf("delivered again %s after the kill", time.Since(killed).Round(time.Millisecond))
		})
	}
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !ok(); {
		if time.Now().After(deadline) {
			t.Fatalf("not within a minute: %s", what)
		}
		<-time.After(50 * time.Millisecond)
	}
}
