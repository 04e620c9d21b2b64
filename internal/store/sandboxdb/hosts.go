package sandboxdb

import (
	"context"
	"encoding/json"
	"maps"
	"time"

	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/host"
	"github.com/paddock-dev/paddock/internal/sandbox"
	"github.com/paddock-dev/paddock/internal/store"
)

// PutHost stores what a host says about itself when it starts. It is not ready
// until its first report says so, also if it was before: what it said last is
// the word of a process that ended. A host that registers anew keeps what
// operators want of it: its cordon, labels, quota and drain.
func PutHost(ctx context.Context, tx *store.Tx, r host.Registration) error {
	registration, err := json.Marshal(r)
	if err != nil {
		return err
	}
	status, err := json.Marshal(host.Status{Reason: "it has registered and not reported yet"})
	if err != nil {
		return err
	}
	now := tx.Now.UnixMicro()
	n, err := tx.Exec(ctx, `UPDATE host SET ip = ?, registration = ?, status = ?, revision = ?, registered_us = ?, heard_us = ? WHERE id = ?`, []byte(r.IP), registration, status, r.Revision, now, now, []byte(r.ID))
	if err != nil || n > 0 {
		return err
	}
	return tx.Insert(ctx, fault.New(fault.VersionConflict, "host %s", r.ID),
		`INSERT INTO host (id, ip, registration, status, revision, registered_us, cordoned, heard_us, created_us) VALUES (?, ?, ?, ?, ?, ?, 0, ?, ?)`,
		[]byte(r.ID), []byte(r.IP), registration, status, r.Revision, now, now, now)
}

// HeardHost stores a host's report. One whose revision is below the stored one
// was overtaken on its way: it only shows that the host is there. A host that
// never registered is fault.HostUnknown.
func HeardHost(ctx context.Context, tx *store.Tx, id host.ID, s host.Status) error {
	s.Usage.LocalMetricAt = tx.Now
	status, err := json.Marshal(s)
	if err != nil {
		return err
	}
	n, err := tx.Exec(ctx, `UPDATE host SET status = ?, revision = ?, heard_us = ? WHERE id = ? AND revision <= ?`, status, s.Usage.Revision, tx.Now.UnixMicro(), []byte(id), s.Usage.Revision)
	if err != nil || n > 0 {
		return err
	}
	n, err = tx.Exec(ctx, `UPDATE host SET heard_us = ? WHERE id = ?`, tx.Now.UnixMicro(), []byte(id))
	return known(id, n, err)
}

// known makes a statement that found no row fault.HostUnknown.
func known(id host.ID, n int64, err error) error {
	if err == nil && n == 0 {
		err = fault.New(fault.HostUnknown, "host %.128q", id)
	}
	return err
}

const hostColumns = `registration, status, cordoned, heard_us, registered_us, wish, wish_version`

// scanHost reads a host. Labels of its operators stand over its own, and what
// it lets sandboxes have is as it reported last.
func scanHost(r store.Scanner) (f host.Facts, err error) {
	var registration, status, wish []byte
	var cordoned, heard, registered int64
	if err := r.Scan(&registration, &status, &cordoned, &heard, &registered, &wish, &f.Wish.Version); err != nil {
		return f, err
	}
	f.Cordoned, f.HeardAt = cordoned == 1, time.UnixMicro(heard)
	if registered > 0 {
		f.RegisteredAt = time.UnixMicro(registered)
	}
	for _, part := range []struct {
		b  []byte
		to any
	}{{registration, &f.Registration}, {status, &f.Status}, {wish, &f.Wish}} {
		if part.b == nil {
			continue
		}
		if err := json.Unmarshal(part.b, part.to); err != nil {
			return f, err
		}
	}
	if len(f.Wish.Labels) > 0 {
		own := f.Labels
		f.Labels = make(map[string]string, len(own)+len(f.Wish.Labels))
		maps.Copy(f.Labels, own)
		maps.Copy(f.Labels, f.Wish.Labels)
	}
	if f.Room != nil {
		f.Allocatable = *f.Room
	}
	return f, nil
}

// GetHost returns what is known of a host, or fault.HostUnknown.
func GetHost(ctx context.Context, tx *store.Tx, id host.ID) (host.Facts, error) {
	f, ok, err := store.First(ctx, tx, scanHost, `SELECT `+hostColumns+` FROM host WHERE id = ?`, []byte(id))
	if err == nil && !ok {
		err = fault.New(fault.HostUnknown, "host %.128q", id)
	}
	f.Usage.MetadataAt = tx.Now
	return f, err
}

// HoldHost reports whether a host is in the books, and keeps it there to the end
// of the transaction.
func HoldHost(ctx context.Context, tx *store.Tx, id host.ID) (bool, error) {
	n, err := tx.Exec(ctx, `UPDATE host SET id = id WHERE id = ?`, []byte(id))
	return n > 0, err
}

// ListHosts returns all hosts by id.
func ListHosts(ctx context.Context, tx *store.Tx) ([]host.Facts, error) {
	list, err := store.Collect(ctx, tx, scanHost, `SELECT `+hostColumns+` FROM host ORDER BY id`)
	for i := range list {
		list[i].Usage.MetadataAt = tx.Now
	}
	return list, err
}

// PutWish stores the cordon and the wish of f, which was read at its version.
// When somebody changed them since, it is fault.VersionConflict.
func PutWish(ctx context.Context, tx *store.Tx, f host.Facts) error {
	wish, err := json.Marshal(f.Wish)
	if err != nil {
		return err
	}
	cordoned := 0
	if f.Cordoned {
		cordoned = 1
	}
	n, err := tx.Exec(ctx, `UPDATE host SET wish = ?, cordoned = ?, wish_version = wish_version + 1 WHERE id = ? AND wish_version = ?`, wish, cordoned, []byte(f.ID), f.Wish.Version)
	if err == nil && n == 0 {
		err = fault.New(fault.VersionConflict, "host %.128q", f.ID)
	}
	return err
}

// WishOf returns what operators want of a host, or fault.HostUnknown.
func WishOf(ctx context.Context, tx *store.Tx, id host.ID) (host.Wish, error) {
	w, ok, err := store.First(ctx, tx, func(r store.Scanner) (w host.Wish, err error) {
		var wish []byte
		if err = r.Scan(&wish, &w.Version); err == nil && wish != nil {
			err = json.Unmarshal(wish, &w)
		}
		return w, err
	}, `SELECT wish, wish_version FROM host WHERE id = ?`, []byte(id))
	if err == nil && !ok {
		err = fault.New(fault.HostUnknown, "host %.128q", id)
	}
	return w, err
}

// CountOnHost returns how many sandboxes a host has or is to have.
func CountOnHost(ctx context.Context, tx *store.Tx, id host.ID) (int, error) {
	n, _, err := store.First(ctx, tx, func(r store.Scanner) (n int, err error) {
		err = r.Scan(&n)
		return n, err
	}, `SELECT COUNT(*) FROM sandbox WHERE host_id = ? AND state <> ?`, []byte(id), string(sandbox.Terminated))
	return n, err
}

// DeleteHost removes a host's row, or answers fault.HostUnknown.
func DeleteHost(ctx context.Context, tx *store.Tx, id host.ID) error {
	n, err := tx.Exec(ctx, `DELETE FROM host WHERE id = ?`, []byte(id))
	return known(id, n, err)
}
