package master_test

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/host"
	"github.com/paddock-dev/paddock/internal/platform/config"
	"github.com/paddock-dev/paddock/internal/sandbox"
	"github.com/paddock-dev/paddock/internal/store"
)

// An operator takes a host that will not return out of the books: what waited
// for it ends. Should it return after all, it is a new host with nothing.
func TestAHostThatDoesNotReturnIsRemoved(t *testing.T) {
	onBoth(t, func(t *testing.T, dsn string) {
		r, h, ending := one(t, dsn)
		running, err := r.create("base")
		must(t, err)
		d, err := r.api.Template(t.Context(), "base")
		must(t, err)
		refused(t, r.api.RemoveHost(t.Context(), "nobody", true), fault.HostUnknown)
		refused(t, r.api.RemoveHost(t.Context(), string(h.id), true), fault.StateConflict)
		r.silence(h)
		h.away()
		refused(t, r.api.DeleteSandbox(t.Context(), ending), fault.HostUnreachable)
		eventually(t, "the host may be removed", func() bool {
			err := r.api.RemoveHost(t.Context(), string(h.id), true)
			if err != nil && fault.Of(err) != fault.StateConflict {
				t.Fatal(err)
			}
			return err == nil
		})
		for id, reason := range map[string]string{ending: "request", running.SandboxID: "lost: its host was removed"} {
			if s, err := r.api.Sandbox(t.Context(), id); err != nil || s.Status != "TERMINATED" || s.Reason != reason {
				t.Errorf("sandbox %s: %+v %v", id, s, err)
			}
		}
		if list, err := r.api.Hosts(t.Context()); err != nil || len(list) != 0 {
			t.Errorf("hosts: %+v %v", list, err)
		}
		if got := r.m.Charged(h.id); got != (host.Resources{}) {
			t.Errorf("the ledger holds %+v", got)
		}
		must(t, r.api.DeleteTemplate(t.Context(), "base"))
		eventually(t, "no message waits", func() (done bool) {
			r.view(func(ctx context.Context, tx *store.Tx) error {
				waiting, dead, err := tx.OutboxLen(ctx)
				done = waiting+dead == 0
				return err
			})
			return done
		})
		h.back()
		h.speak()
		eventually(t, "it returns with nothing", func() bool { return len(h.live()) == 0 && !h.holds(d.ArtifactID) })
	})
}

// A cordoned host gets nothing new and keeps what it has, until it is let in
// again. Neither a report nor a new registration does that.
func TestACordonedHostGetsNothingNew(t *testing.T) {
	onBoth(t, func(t *testing.T, dsn string) {
		r, h, id := one(t, dsn)
		_, err := r.api.CordonHost(t.Context(), "nobody", true)
		refused(t, err, fault.HostUnknown)
		for range 2 { // the second changes nothing
			shown, err := r.api.CordonHost(t.Context(), string(h.id), true)
			if must(t, err); !shown.Cordoned || shown.Health != string(host.Cordoned) {
				t.Errorf("shown as %+v", shown)
			}
		}
		must(t, h.register(t.Context()))
		must(t, h.say(t.Context()))
		_, err = r.create("base")
		refused(t, err, fault.NoHost)
		if s := r.state(id); s != sandbox.Running {
			t.Errorf("what ran there is %s", s)
		}
		must(t, r.api.DeleteSandbox(t.Context(), id))
		shown, err := r.api.CordonHost(t.Context(), string(h.id), false)
		if must(t, err); shown.Cordoned || shown.Health != string(host.Healthy) {
			t.Errorf("shown as %+v", shown)
		}
		_, err = r.create("base")
		must(t, err)
	})
}

// The message that ends a sandbox was given up; its host returns and has it
// still.
func TestASandboxWhoseDeleteWasGivenUpIsRemoved(t *testing.T) {
	onBoth(t, func(t *testing.T, dsn string) {
		r, h, id := one(t, dsn)
		h.away()
		refused(t, r.api.DeleteSandbox(t.Context(), id), fault.HostUnreachable)
		must(t, r.db.Update(t.Context(), func(tx *store.Tx) error {
			_, err := tx.Exec(t.Context(), `UPDATE outbox SET dead = 1, attempts = 1000`)
			return err
		}))
		h.back()
		eventually(t, "it is gone", func() bool { return r.state(id) == sandbox.Terminated && len(h.live()) == 0 })
	})
}

// An artifact that nothing needs any more waits for no interval.
func TestASweepCanBeAskedFor(t *testing.T) {
	r := newRig(t, sqlite(t), func(c *config.Config) { c.Master.SweepInterval = time.Hour })
	r.start()
	r.host(0, plenty).set(func(h *fakeHost) { h.ensure = broken })
	j, err := r.api.FromImage(t.Context(), image())
	must(t, err)
	if j = r.ended(j.JobID); j.Status != cubeapi.StatusFailed {
		t.Fatalf("job: %+v", j)
	}
	eventually(t, "the bytes go", func() bool { return len(r.center.removed()) > 0 })
}

// A host that holds up one part of a sweep holds up no other.
func TestASweepIsNotHeldUp(t *testing.T) {
	r, h, id := one(t, sqlite(t), func(c *config.Config) { c.Master.HostStaleAfter = time.Hour })
	var asked atomic.Int64
	h.set(func(h *fakeHost) {
		h.holdOn = func(ctx context.Context) { asked.Add(1); <-ctx.Done() }
		delete(h.boxes, id)
	})
	eventually(t, "the first is ended", func() bool { return r.state(id) == sandbox.Terminated })
	other, err := r.create("base")
	must(t, err)
	second := r.template(alias("second"), func(q *cubeapi.FromImageRequest) { q.SourceImageRef = "registry.local/other:1" })
	go func() { _ = r.api.DeleteTemplate(t.Context(), second.TemplateID) }() // it waits for the host
	eventually(t, "the host holds it up", func() bool { return asked.Load() > 1 })
	h.set(func(h *fakeHost) { delete(h.boxes, other.SandboxID) })
	eventually(t, "the other is ended", func() bool { return r.state(other.SandboxID) == sandbox.Terminated })
}

// A delete that waits for a host asks it once a sweep.
func TestASweepCleansOnce(t *testing.T) {
	r, hosts := ready(t, sqlite(t), 1, plenty)
	h := hosts[0]
	h.set(func(h *fakeHost) { h.removal = func() error { return fault.New(fault.DataDir, "disk") } })
	must(t, r.api.DeleteTemplate(t.Context(), "base")) // the host is named as one that is left
	removes, lists := h.called("remove_artifact"), h.called("list")
	eventually(t, "ten sweeps", func() bool { return h.called("list") >= lists+10 })
	if removes, lists = h.called("remove_artifact")-removes, h.called("list")-lists; removes > lists+1 {
		t.Errorf("%d sweeps asked %d times", lists, removes)
	}
}

// A replica that an earlier try began, on a host that is no target any more,
// does not stay pending.
func TestReplicasOfAnEarlierTryAreEnded(t *testing.T) {
	r := newRig(t, sqlite(t))
	crash, reached := crashAt("master.resume.after_host")
	r.start(crash)
	a, b := r.host(0, plenty), r.host(1, plenty)
	var once sync.Once
	held := make(chan struct{})
	a.set(func(h *fakeHost) {
		h.ensure = func(ctx context.Context) error { // not before the other is asked too
			select {
			case <-held:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	})
	b.set(func(h *fakeHost) {
		h.ensure = func(ctx context.Context) error { once.Do(func() { close(held) }); <-ctx.Done(); return ctx.Err() }
	})
	j, err := r.api.FromImage(t.Context(), image(alias("base")))
	must(t, err)
	wait(t, "both hosts are asked", held)
	wait(t, "the crash", reached)
	r.silence(b)
	b.away()
	r.crash()
	r.start()
	eventually(t, "only the first host is healthy", func() bool {
		shown, err := r.api.Host(t.Context(), string(b.id))
		return err == nil && shown.Health == string(host.Unknown)
	})
	if j = r.ended(j.JobID); j.Status != cubeapi.StatusReady {
		t.Fatalf("job: %+v", j)
	}
	d, err := r.api.Template(t.Context(), "base")
	must(t, err)
	for _, p := range d.Replicas {
		if p.Phase == "PENDING" {
			t.Errorf("replica: %+v", p)
		}
	}
}

// A host that goes off the network in the middle of a command is found out.
func TestAHostThatFallsSilentIsFoundOut(t *testing.T) {
	t.Parallel()
	r, h, id := one(t, sqlite(t))
	through := newTunnel(t, h.address())
	h.hush()
	h.set(func(h *fakeHost) { h.port = through.port() })
	must(t, h.register(t.Context()))
	must(t, h.say(t.Context()))
	ended := make(chan error, 1)
	go func() {
		_, err := r.api.Exec(t.Context(), cubeapi.ExecRequest{SandboxID: id, Command: []string{"sleep"}, TimeoutMS: 120_000}, discard{}, discard{})
		ended <- err
	}()
	eventually(t, "the command runs", func() bool { return h.called("exec_sleep") > 0 })
	through.cut()
	select {
	case err := <-ended:
		refused(t, err, fault.HostUnreachable)
	case <-time.After(60 * time.Second):
		t.Fatal("nobody noticed")
	}
}

type discard struct{}

func (discard) Write(b []byte) (int, error) { return len(b), nil }

// tunnel carries bytes to an address until it is cut: then it takes them, and
// nothing comes out.
type tunnel struct {
	l    net.Listener
	dead atomic.Bool
}

func newTunnel(t *testing.T, to string) *tunnel {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	n := &tunnel{l: l}
	var all sync.WaitGroup
	all.Go(func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", to)
			if err != nil {
				_ = in.Close()
				continue
			}
			t.Cleanup(func() { _, _ = in.Close(), out.Close() })
			go n.carry(in, out)
			go n.carry(out, in)
		}
	})
	t.Cleanup(func() { _ = l.Close(); all.Wait() })
	return n
}

func (n *tunnel) carry(from, to net.Conn) {
	b := make([]byte, 4096)
	for {
		k, err := from.Read(b)
		if err != nil {
			return
		}
		if !n.dead.Load() {
			if _, err := to.Write(b[:k]); err != nil {
				return
			}
		}
	}
}

func (n *tunnel) cut()      { n.dead.Store(true) }
func (n *tunnel) port() int { return n.l.Addr().(*net.TCPAddr).Port } //nolint:forcetypeassert // it listens on TCP
