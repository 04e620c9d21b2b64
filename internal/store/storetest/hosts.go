package storetest

import (
	"context"
	"errors"
	"maps"
	"testing"
	"time"

	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/host"
	"github.com/paddock-dev/paddock/internal/store"
	"github.com/paddock-dev/paddock/internal/store/sandboxdb"
)

// reportsGoForward: whatever order reports arrive in, the newest one stands.
func reportsGoForward(t *testing.T, fresh Fresh) {
	s := open(t, fresh(t))
	said := func(revision int64) host.Status {
		return host.Status{Ready: true, Sandboxes: int(revision), Usage: host.Usage{Revision: revision}}
	}
	look := func() (f host.Facts) {
		view(t, s, func(ctx context.Context, tx *store.Tx) (err error) {
			f, err = sandboxdb.GetHost(ctx, tx, "h1")
			return err
		})
		return f
	}
	put := func(revision int64) {
		update(t, s, func(ctx context.Context, tx *store.Tx) error {
			return sandboxdb.PutHost(ctx, tx, host.Registration{ID: "h1", Revision: revision, Allocatable: host.Resources{Slots: 9}})
		})
	}
	hear := func(st host.Status) {
		update(t, s, func(ctx context.Context, tx *store.Tx) error { return sandboxdb.HeardHost(ctx, tx, "h1", st) })
	}
	put(10)
	hear(said(9)) // of the process before
	if f := look(); f.Ready || f.Sandboxes != 0 || f.RegisteredAt.IsZero() {
		t.Errorf("a report from before the registration counts: %+v", f)
	}
	hear(said(12))
	before := look()
	hear(said(11))
	switch f := look(); {
	case f.Sandboxes != 12 || f.Usage.Revision != 12:
		t.Errorf("an old report was stored: %+v", f.Status)
	case !f.HeardAt.After(before.HeardAt) || !f.Usage.LocalMetricAt.Equal(before.Usage.LocalMetricAt):
		t.Errorf("heard at %s after %s, measured at %s after %s", f.HeardAt, before.HeardAt, f.Usage.LocalMetricAt, before.Usage.LocalMetricAt)
	case !f.Usage.MetadataAt.After(before.Usage.MetadataAt) || !f.RegisteredAt.Equal(before.RegisteredAt):
		t.Errorf("read at %s after %s, registered at %s", f.Usage.MetadataAt, before.Usage.MetadataAt, f.RegisteredAt)
	}
	again := said(12)
	again.Room = &host.Resources{Slots: 4}
	hear(again)
	if f := look(); f.Allocatable.Slots != 4 {
		t.Errorf("what it lets sandboxes have is %+v", f.Allocatable)
	}
	// One that lost its count begins anew.
	put(0)
	hear(said(0))
	if f := look(); !f.Ready || f.Allocatable.Slots != 9 {
		t.Errorf("a host without a count: %+v", f)
	}
}

// wishesAreKept: what operators want survives whatever the host says, and of two
// that change it at once one decides again.
func wishesAreKept(t *testing.T, fresh Fresh) {
	s := open(t, fresh(t))
	own := host.Registration{ID: "h1", Labels: map[string]string{"rack": "1", "gpu": "no"}}
	two := int64(2)
	var read host.Facts
	update(t, s, func(ctx context.Context, tx *store.Tx) (err error) {
		if err = sandboxdb.PutHost(ctx, tx, own); err == nil {
			read, err = sandboxdb.GetHost(ctx, tx, "h1")
		}
		return err
	})
	wish := host.Wish{
		Labels: map[string]string{"gpu": "a100"}, Quota: host.Quota{Revision: 3, Slots: &two},
		Drain: host.Drain{AskedAt: time.UnixMicro(7).UTC(), Deadline: time.UnixMicro(9).UTC(), Force: true}, Version: read.Wish.Version,
	}
	changed := read
	changed.Cordoned, changed.Wish = true, wish
	update(t, s, func(ctx context.Context, tx *store.Tx) error { return sandboxdb.PutWish(ctx, tx, changed) })
	if err := tryUpdate(t, s, func(ctx context.Context, tx *store.Tx) error { return sandboxdb.PutWish(ctx, tx, read) }); !errors.Is(err, fault.VersionConflict) {
		t.Errorf("a wish that was read before another was stored: got %v", err)
	}
	update(t, s, func(ctx context.Context, tx *store.Tx) error {
		return errors.Join(sandboxdb.PutHost(ctx, tx, own), sandboxdb.HeardHost(ctx, tx, "h1", host.Status{Ready: true}))
	})
	view(t, s, func(ctx context.Context, tx *store.Tx) error {
		all, err := sandboxdb.ListHosts(ctx, tx)
		if err != nil || len(all) != 1 {
			t.Fatalf("hosts %v, %v", all, err)
		}
		wish.Version++
		same(t, wish, all[0].Wish)
		if !all[0].Cordoned || !maps.Equal(all[0].Labels, map[string]string{"rack": "1", "gpu": "a100"}) {
			t.Errorf("cordoned %v, labels %v", all[0].Cordoned, all[0].Labels)
		}
		alone, err := sandboxdb.WishOf(ctx, tx, "h1")
		same(t, wish, alone)
		if _, err := sandboxdb.WishOf(ctx, tx, "h2"); !errors.Is(err, fault.HostUnknown) {
			t.Errorf("of a host that never registered: got %v", err)
		}
		return err
	})
}

func sandboxesOfAHostAreCounted(t *testing.T, fresh Fresh) {
	s := open(t, fresh(t))
	update(t, s, func(ctx context.Context, tx *store.Tx) error {
		for i := range 4 {
			row, err := sandboxes.add(ctx, tx, i)
			if err != nil {
				return err
			}
			state, at := "running", "h1"
			switch i {
			case 1:
				state = "terminated"
			case 2:
				at = "h2"
			}
			if _, err := tx.Exec(ctx, `UPDATE sandbox SET state = ?, host_id = ? WHERE id = ?`, state, []byte(at), string(row.ID)); err != nil {
				return err
			}
		}
		return nil
	})
	view(t, s, func(ctx context.Context, tx *store.Tx) error {
		for id, want := range map[host.ID]int{"h1": 2, "h2": 1, "h3": 0} {
			if n, err := sandboxdb.CountOnHost(ctx, tx, id); err != nil || n != want {
				t.Errorf("%s: %d, %v; want %d", id, n, err, want)
			}
		}
		return nil
	})
}
