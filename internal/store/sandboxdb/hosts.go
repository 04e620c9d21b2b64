package sandboxdb

import (
	"context"
	"encoding/json"
	"time"

	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/host"
	"github.com/paddock-dev/paddock/internal/store"
)

// PutHost stores what a host says about itself when it starts. It is not ready
// until its first report says so, also if it was before: what it said last is
// the word of a process that ended. A host that registers anew keeps its
// cordon.
func PutHost(ctx context.Context, tx *store.Tx, r host.Registration) error {
	registration, err := json.Marshal(r)
	if err != nil {
		return err
	}
	status, err := json.Marshal(host.Status{Reason: "it has registered and not reported yet"})
	if err != nil {
		return err
	}
	n, err := tx.Exec(ctx, `UPDATE host SET ip = ?, registration = ?, status = ?, heard_us = ? WHERE id = ?`, []byte(r.IP), registration, status, tx.Now.UnixMicro(), []byte(r.ID))
	if err != nil || n > 0 {
		return err
	}
	return tx.Insert(ctx, fault.New(fault.VersionConflict, "host %s", r.ID),
		`INSERT INTO host (id, ip, registration, status, cordoned, heard_us, created_us) VALUES (?, ?, ?, ?, 0, ?, ?)`,
		[]byte(r.ID), []byte(r.IP), registration, status, tx.Now.UnixMicro(), tx.Now.UnixMicro())
}

// HeardHost stores a host's report. One that never registered is
// fault.HostUnknown.
func HeardHost(ctx context.Context, tx *store.Tx, id host.ID, s host.Status) error {
	status, err := json.Marshal(s)
	if err != nil {
		return err
	}
	n, err := tx.Exec(ctx, `UPDATE host SET status = ?, heard_us = ? WHERE id = ?`, status, tx.Now.UnixMicro(), []byte(id))
	if err == nil && n == 0 {
		err = fault.New(fault.HostUnknown, "host %.128q", id)
	}
	return err
}

func scanHost(r store.Scanner) (f host.Facts, err error) {
	var registration, status []byte
	var cordoned, heard int64
	if err := r.Scan(&registration, &status, &cordoned, &heard); err != nil {
		return f, err
	}
	f.Cordoned, f.HeardAt = cordoned == 1, time.UnixMicro(heard)
	if err := json.Unmarshal(registration, &f.Registration); err != nil {
		return f, err
	}
	return f, json.Unmarshal(status, &f.Status)
}

// GetHost returns what is known of a host, or fault.HostUnknown.
func GetHost(ctx context.Context, tx *store.Tx, id host.ID) (host.Facts, error) {
	f, ok, err := store.First(ctx, tx, scanHost, `SELECT registration, status, cordoned, heard_us FROM host WHERE id = ?`, []byte(id))
	if err == nil && !ok {
		err = fault.New(fault.HostUnknown, "host %.128q", id)
	}
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
	return store.Collect(ctx, tx, scanHost, `SELECT registration, status, cordoned, heard_us FROM host ORDER BY id`)
}

// SetCordon keeps new sandboxes away from a host, or lets them come again.
func SetCordon(ctx context.Context, tx *store.Tx, id host.ID, cordoned bool) error {
	v := 0
	if cordoned {
		v = 1
	}
	n, err := tx.Exec(ctx, `UPDATE host SET cordoned = ? WHERE id = ?`, v, []byte(id))
	if err == nil && n == 0 {
		err = fault.New(fault.HostUnknown, "host %.128q", id)
	}
	return err
}

// DeleteHost removes a host's row, or answers fault.HostUnknown.
func DeleteHost(ctx context.Context, tx *store.Tx, id host.ID) error {
	n, err := tx.Exec(ctx, `DELETE FROM host WHERE id = ?`, []byte(id))
	if err == nil && n == 0 {
		err = fault.New(fault.HostUnknown, "host %.128q", id)
	}
	return err
}
