package storetest

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/host"
	"github.com/paddock-dev/paddock/internal/sandbox"
	"github.com/paddock-dev/paddock/internal/store"
	"github.com/paddock-dev/paddock/internal/store/sandboxdb"
	"github.com/paddock-dev/paddock/internal/store/templatedb"
	"github.com/paddock-dev/paddock/internal/template"
)

// odd is text that a database with an opinion on text would change or refuse.
const odd = "it's \"odd\"; \\ %_ \x00\xff 中文 "

func namesAreBytes(t *testing.T, fresh Fresh) {
	s := open(t, fresh(t))
	names := []string{"web", "web ", "Web", "wéb", "web\x00", "\xff"}
	for i, name := range names {
		update(t, s, func(ctx context.Context, tx *store.Tx) error {
			d, err := definitions.add(ctx, tx, i)
			if err != nil {
				return err
			}
			if _, _, err := templatedb.ClaimAlias(ctx, tx, d, name, tx.Now); err != nil {
				return err
			}
			if _, err := tx.Acquire(ctx, name, name, ttl); err != nil {
				return err
			}
			return sandboxdb.PutHost(ctx, tx, host.Registration{ID: host.ID(name)})
		})
	}
	for i, name := range names {
		view(t, s, func(ctx context.Context, tx *store.Tx) error {
			d, err := templatedb.Resolve(ctx, tx, name)
			if err == nil && (d.ID != definition(i).ID || d.Alias != name) {
				t.Errorf("alias %q is of %s with alias %q", name, d.ID, d.Alias)
			}
			return err
		})
	}
}

func idsAreExact(t *testing.T, fresh Fresh) {
	s := open(t, fresh(t))
	update(t, s, func(ctx context.Context, tx *store.Tx) error {
		_, err1 := templatedb.AddDefinition(ctx, tx, template.Definition{ID: "tpl-a"})
		_, err2 := templatedb.AddJob(ctx, tx, template.Job{ID: "job-a"})
		_, err3 := templatedb.AddArtifact(ctx, tx, template.Artifact{ID: "rfs-a"})
		_, err4 := sandboxdb.AddSandbox(ctx, tx, sandbox.Sandbox{ID: "ia"})
		return errors.Join(err1, err2, err3, err4)
	})
	for _, id := range []string{"", "%", "TPL-A", "tpl-a ", "tpl-a\x00", "job-a ", "rfs-a ", "ia ", "IA", "中文", "\xff"} {
		for call, get := range map[string]struct {
			do   func(ctx context.Context, tx *store.Tx) error
			want error
		}{
			"GetDefinition": {func(ctx context.Context, tx *store.Tx) error {
				_, err := templatedb.GetDefinition(ctx, tx, template.ID(id))
				return err
			}, fault.TemplateNotFound},
			"GetJob": {func(ctx context.Context, tx *store.Tx) error {
				_, err := templatedb.GetJob(ctx, tx, template.JobID(id))
				return err
			}, fault.JobNotFound},
			"GetArtifact": {func(ctx context.Context, tx *store.Tx) error {
				_, err := templatedb.GetArtifact(ctx, tx, template.ArtifactID(id))
				return err
			}, fault.ArtifactNotFound},
			"GetSandbox": {func(ctx context.Context, tx *store.Tx) error {
				_, err := sandboxdb.GetSandbox(ctx, tx, sandbox.ID(id))
				return err
			}, fault.SandboxNotFound},
			"GetHost": {func(ctx context.Context, tx *store.Tx) error {
				_, err := sandboxdb.GetHost(ctx, tx, host.ID(id))
				return err
			}, fault.HostUnknown},
		} {
			ctx := limited(t)
			if err := s.View(ctx, func(tx *store.Tx) error { return get.do(ctx, tx) }); !errors.Is(err, get.want) {
				t.Errorf("%s(%q): got %v, want %v", call, id, err, get.want)
			}
		}
	}
}

// rowsComeBackWhole fills every field with something and reads it back.
func rowsComeBackWhole(t *testing.T, fresh Fresh) {
	s := open(t, fresh(t))
	moment := time.UnixMicro(1_800_000_000_123_456).UTC()
	update(t, s, func(ctx context.Context, tx *store.Tx) error {
		j := job(1)
		j.RequestID, j.RetryOf, j.Alias, j.Request, j.ImageRef = odd, "job-0", odd, []byte(odd), odd
		j, err := templatedb.AddJob(ctx, tx, j)
		if err != nil {
			return err
		}
		j.Phase, j.Progress, j.Error, j.ErrorCode, j.Result = template.PhasePulling, 7, odd, "disk_full", []byte{0, 0xff}
		j.Pull = template.Pull{TotalBytes: 1 << 40, DoneBytes: 2, TotalLayers: 3, DoneLayers: 4, BytesPerSecond: 5}
		j.Digest, j.ArtifactID, j.Spec, j.Expected, j.Ready, j.Failed = "sha256:x", "rfs-1", "s", 6, 5, 1
		j.PhaseTimes = template.PhaseTimes{template.PhasePulling: moment}
		if j, err = templatedb.MoveJob(ctx, tx, j, template.OnJobStarted); err != nil {
			return err
		}
		got, err := templatedb.GetJob(ctx, tx, j.ID)
		same(t, j, got)
		return err
	})
	update(t, s, func(ctx context.Context, tx *store.Tx) error {
		a := artifact(1)
		a.ImageRef, a.Digest = odd, odd
		a, err := templatedb.AddArtifact(ctx, tx, a)
		if err != nil {
			return err
		}
		a.SHA256, a.SizeBytes, a.Backend, a.Location, a.Token, a.Error = a.ContentKey, 1<<41, "dir", odd, odd, odd
		a.ImageConfig = template.ImageConfig{Entrypoint: []string{"中文"}, Cmd: []string{"a b", ""}, Env: []string{"A=b"}, WorkingDir: "/", User: "0:0"}
		if a, err = templatedb.MoveArtifact(ctx, tx, a, template.OnArtifactStored); err != nil {
			return err
		}
		got, err := templatedb.GetArtifact(ctx, tx, a.ID)
		same(t, a, got)
		return err
	})
	update(t, s, func(ctx context.Context, tx *store.Tx) error {
		d := definition(1)
		d.InstanceType, d.ImageRef, d.Digest, d.Request = odd, odd, odd, []byte(odd)
		d, err := templatedb.AddDefinition(ctx, tx, d)
		if err != nil {
			return err
		}
		d.ArtifactID, d.JobID, d.Error = "rfs-1", "job-1", odd
		if d, err = templatedb.MoveDefinition(ctx, tx, d, template.OnSomeReady); err != nil {
			return err
		}
		if d, _, err = templatedb.ClaimAlias(ctx, tx, d, "web", tx.Now); err != nil {
			return err
		}
		got, err := templatedb.GetDefinition(ctx, tx, d.ID)
		same(t, d, got)
		return err
	})
	update(t, s, func(ctx context.Context, tx *store.Tx) error {
		r, err := templatedb.AddReplica(ctx, tx, template.Replica{TemplateID: "tpl-1", HostID: "h 1", Error: odd})
		if err != nil {
			return err
		}
		r.ArtifactID, r.JobID, r.Error = "rfs-1", "job-1", ""
		if r, err = templatedb.MoveReplica(ctx, tx, r, template.OnReplicaHeld); err != nil {
			return err
		}
		got, err := replicas.read(ctx, tx, r)
		same(t, r, got)
		return err
	})
	update(t, s, func(ctx context.Context, tx *store.Tx) error {
		b := box(1)
		b.Metadata, b.Request = map[string]string{"a": "中文", "": "'"}, []byte(odd)
		b.Life = sandbox.Life{
			Generation: 1 << 40, Timeout: time.Hour, OnTimeout: sandbox.Pause, AutoResume: true, Driver: "runsc", Snapshot: "snap-1", Wish: sandbox.Wish{Memory: true, Snapshot: "snap-2", Tries: 3},
			WithMemory: true, KeptBytes: 1 << 41, Network: []byte(odd), Revision: 3, AccessToken: odd, TrafficToken: odd,
		}
		b, err := sandboxdb.AddSandbox(ctx, tx, b)
		if err != nil {
			return err
		}
		b.HostID, b.IP, b.Reason = "h 1", "10.0.0.1", odd
		if b, err = sandboxdb.MoveSandbox(ctx, tx, b, sandbox.OnCharged); err != nil {
			return err
		}
		got, err := sandboxdb.GetSandbox(ctx, tx, b.ID)
		same(t, b, got)
		if err != nil {
			return err
		}
		b.Metadata, b.Life.Timeout, b.Life.OnTimeout, b.Life.AutoResume, b.Life.Network, b.Life.Revision = map[string]string{"b": "c"}, 0, sandbox.Kill, false, []byte("{}"), 4
		if b, err = sandboxdb.ChangeSandbox(ctx, tx, b); err != nil {
			return err
		}
		b.ExpiresAt = tx.Now.Add(-time.Second)
		if b, err = sandboxdb.SetTimeout(ctx, tx, b); err != nil {
			return err
		}
		got, err = sandboxdb.GetSandbox(ctx, tx, b.ID)
		same(t, b, got)
		if err != nil {
			return err
		}
		for _, want := range []bool{true, false} { // once taken, it is gone
			if taken, err := sandboxdb.TakeExpired(ctx, tx, b.ID, b.State); err != nil || taken != want {
				t.Errorf("expiry taken: %v %v, want %v", taken, err, want)
			}
		}
		return nil
	})
	update(t, s, func(ctx context.Context, tx *store.Tx) error {
		n, err := sandboxdb.AddSnapshot(ctx, tx, sandbox.Snapshot{
			ID: "snap-1", Name: odd, SandboxID: "i1", TemplateID: "tpl-1", ArtifactID: "rfs-1", HostID: "h 1", Driver: "runsc", WithMemory: true, ExpiresAt: tx.Now, Bytes: 1 << 41, Request: []byte(odd),
		})
		if err != nil {
			return err
		}
		n.Error, n.Bytes = odd, 7
		if n, err = sandboxdb.MoveSnapshot(ctx, tx, n, sandbox.OnSnapKept); err != nil {
			return err
		}
		got, err := sandboxdb.GetSnapshot(ctx, tx, n.ID)
		same(t, n, got)
		return err
	})
	longReasonsAreCut(t, s)
}

// longReasonsAreCut: a reason is another program's words, of any length, and
// what is kept of it must still be text.
func longReasonsAreCut(t *testing.T, s *store.Store) {
	update(t, s, func(ctx context.Context, tx *store.Tx) error {
		b, err := sandboxdb.AddSandbox(ctx, tx, box(2))
		if err != nil {
			return err
		}
		b.Reason = strings.Repeat("磁", 200)
		if _, err = sandboxdb.MoveSandbox(ctx, tx, b, sandbox.OnEndAsked); err != nil {
			return err
		}
		got, err := sandboxdb.GetSandbox(ctx, tx, b.ID)
		if got.Reason != strings.Repeat("磁", 170) {
			t.Errorf("kept %d bytes: %q", len(got.Reason), got.Reason)
		}
		return err
	})
}

// touchesKeepASandboxAlive, but only while it is on its way, and whoever moves
// it need not read it again.
func touchesKeepASandboxAlive(t *testing.T, fresh Fresh) {
	s := open(t, fresh(t))
	var b sandbox.Sandbox
	move := func(on ...sandbox.Event) {
		update(t, s, func(ctx context.Context, tx *store.Tx) (err error) {
			next := b
			for _, e := range on {
				if next, err = sandboxdb.MoveSandbox(ctx, tx, next, e); err != nil {
					return err
				}
			}
			b = next
			return nil
		})
	}
	touched := func() (changed bool) {
		update(t, s, func(ctx context.Context, tx *store.Tx) error {
			if err := sandboxdb.TouchSandbox(ctx, tx, b.ID); err != nil {
				return err
			}
			got, err := sandboxdb.GetSandbox(ctx, tx, b.ID)
			changed = got.ChangedAt.After(b.ChangedAt)
			if got.State != b.State || got.Version != b.Version {
				t.Errorf("a touch made of %s at version %d: %s at %d", b.State, b.Version, got.State, got.Version)
			}
			return err
		})
		return changed
	}
	update(t, s, func(ctx context.Context, tx *store.Tx) (err error) {
		b, err = sandboxdb.AddSandbox(ctx, tx, box(1))
		b.HostID = "h1"
		return err
	})
	for _, step := range []struct {
		on   []sandbox.Event
		want bool
	}{{nil, true}, {[]sandbox.Event{sandbox.OnCharged}, true}, {[]sandbox.Event{sandbox.OnStarted}, false}, {[]sandbox.Event{sandbox.OnEndAsked}, false}, {[]sandbox.Event{sandbox.OnGone}, false}} {
		if move(step.on...); touched() != step.want {
			t.Errorf("a touch of one that is %s: changed %v, want %v", b.State, !step.want, step.want)
		}
	}
}

// same compares field by field, times as moments.
func same[T any](t *testing.T, want, got T) {
	t.Helper()
	w, g := reflect.ValueOf(want), reflect.ValueOf(got)
	for i := range w.NumField() {
		name, a, b := w.Type().Field(i).Name, w.Field(i).Interface(), g.Field(i).Interface()
		at, isTime := a.(time.Time)
		if isTime && at.Equal(b.(time.Time)) {
			continue
		}
		if !reflect.DeepEqual(a, b) {
			t.Errorf("%T.%s: wrote %q, read %q", want, name, fmt.Sprint(a), fmt.Sprint(b))
		}
	}
}

func progressOnlyGrows(t *testing.T, fresh Fresh) {
	s := open(t, fresh(t))
	update(t, s, func(ctx context.Context, tx *store.Tx) error {
		j, err := jobs.add(ctx, tx, 1)
		if err != nil {
			return err
		}
		for _, step := range []struct{ set, want int }{{40, 40}, {5, 40}, {70, 70}, {0, 70}} {
			j.Progress = step.set
			if j, err = templatedb.TouchJob(ctx, tx, j); err != nil {
				return err
			}
			stored, err := templatedb.GetJob(ctx, tx, j.ID)
			if err != nil {
				return err
			}
			if stored.Progress != step.want || j.Progress != step.want {
				t.Errorf("set %d: stored %d, returned %d, want %d", step.set, stored.Progress, j.Progress, step.want)
			}
		}
		return nil
	})
}
