package store

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/lease"
)

// Acquire gives holder the lease on subject for ttl: at a new epoch when it was
// free or had expired, as it stands when holder has it already. Otherwise
// fault.LeaseHeld.
func (tx *Tx) Acquire(ctx context.Context, subject, holder string, ttl time.Duration) (lease.Lease, error) {
	l, found, err := tx.leaseRow(ctx, subject, "")
	if err != nil {
		return l, err
	}
	held := l.Until.After(tx.Now)
	switch {
	case held && l.Holder == holder:
		return l, nil
	case held:
		return l, fmt.Errorf("acquire %s: held until %s: %w", subject, l.Until.UTC().Format(time.RFC3339), fault.LeaseHeld)
	}
	next := lease.Lease{Subject: subject, Holder: holder, Epoch: l.Epoch + 1, Until: tx.Now.Add(ttl)}
	if !found {
		return next, tx.Insert(ctx, fmt.Errorf("acquire %s: %w", subject, fault.LeaseHeld),
			`INSERT INTO lease (subject, holder, epoch, until_us) VALUES (?, ?, ?, ?)`, []byte(subject), []byte(holder), int64(next.Epoch), next.Until.UnixMicro())
	}
	n, err := tx.Exec(ctx, `UPDATE lease SET holder = ?, epoch = ?, until_us = ? WHERE subject = ? AND epoch = ? AND until_us = ?`,
		[]byte(holder), int64(next.Epoch), next.Until.UnixMicro(), []byte(subject), int64(l.Epoch), l.Until.UnixMicro())
	if err == nil && n == 0 {
		err = fmt.Errorf("acquire %s: %w", subject, fault.LeaseHeld)
	}
	return next, err
}

// Renew lets the holder of f act for ttl from now, or refuses with
// fault.StaleController.
func (tx *Tx) Renew(ctx context.Context, f lease.Fence, ttl time.Duration) (lease.Lease, error) {
	until := tx.Now.Add(ttl)
	n, err := tx.Exec(ctx, `UPDATE lease SET until_us = ? WHERE subject = ? AND holder = ? AND epoch = ? AND until_us > ?`,
		until.UnixMicro(), []byte(f.Subject), []byte(f.Holder), int64(f.Epoch), tx.Now.UnixMicro())
	if err == nil && n == 0 {
		err = fmt.Errorf("renew %s at epoch %d: %w", f.Subject, f.Epoch, fault.StaleController)
	}
	return lease.Lease{Subject: f.Subject, Holder: f.Holder, Epoch: f.Epoch, Until: until}, err
}

// Release ends the lease of f at once, or refuses with fault.StaleController.
// The row stays, so that the next epoch is higher.
func (tx *Tx) Release(ctx context.Context, f lease.Fence) error {
	n, err := tx.Exec(ctx, `UPDATE lease SET until_us = ? WHERE subject = ? AND holder = ? AND epoch = ? AND until_us > ?`,
		tx.Now.UnixMicro(), []byte(f.Subject), []byte(f.Holder), int64(f.Epoch), tx.Now.UnixMicro())
	if err == nil && n == 0 {
		err = fmt.Errorf("release %s at epoch %d: %w", f.Subject, f.Epoch, fault.StaleController)
	}
	return err
}

// Guard refuses with fault.StaleController unless f still stands. It is the
// first statement of every transaction that acts for a holder, and it keeps
// the lease row as it is until that transaction ends: whoever takes over
// waits, and then sees all that was written.
func (tx *Tx) Guard(ctx context.Context, f lease.Fence) error {
	l, _, err := tx.leaseRow(ctx, f.Subject, tx.d.shared)
	if err == nil && (l.Fence() != f || !l.Until.After(tx.Now)) {
		err = fault.StaleController
	}
	if err != nil {
		return fmt.Errorf("guard %s at epoch %d, now %d: %w", f.Subject, f.Epoch, l.Epoch, err)
	}
	return nil
}

// LeaseOf returns the lease on a subject as its row says; found is false when
// nobody has had it.
func (tx *Tx) LeaseOf(ctx context.Context, subject string) (l lease.Lease, found bool, err error) {
	return tx.leaseRow(ctx, subject, "")
}

// LeasesOf is LeaseOf for several subjects, at most some hundred: those that
// nobody has had are not in the map.
func (tx *Tx) LeasesOf(ctx context.Context, subjects []string) (map[string]lease.Lease, error) {
	found := map[string]lease.Lease{}
	if len(subjects) == 0 {
		return found, nil
	}
	args := make([]any, len(subjects))
	for i, s := range subjects {
		args[i] = []byte(s)
	}
	list, err := Collect(ctx, tx, func(r Scanner) (l lease.Lease, err error) {
		var epoch, until int64
		err = r.Scan(&l.Subject, &l.Holder, &epoch, &until)
		l.Epoch, l.Until = lease.Epoch(epoch), time.UnixMicro(until)
		return l, err
	}, `SELECT subject, holder, epoch, until_us FROM lease WHERE subject IN (?`+strings.Repeat(", ?", len(args)-1)+`)`, args...)
	for _, l := range list {
		found[l.Subject] = l
	}
	return found, err
}

// ForgetLease removes the row of a subject that is gone for good, in the
// transaction that removes the subject: its epochs would begin anew.
func (tx *Tx) ForgetLease(ctx context.Context, subject string) error {
	_, err := tx.Exec(ctx, `DELETE FROM lease WHERE subject = ?`, []byte(subject))
	return err
}

func (tx *Tx) leaseRow(ctx context.Context, subject, lock string) (lease.Lease, bool, error) {
	l := lease.Lease{Subject: subject}
	var epoch, until int64
	found, err := tx.Row(ctx, `SELECT holder, epoch, until_us FROM lease WHERE subject = ?`+lock, []any{[]byte(subject)}, &l.Holder, &epoch, &until)
	l.Epoch, l.Until = lease.Epoch(epoch), time.UnixMicro(until)
	return l, found, err
}
