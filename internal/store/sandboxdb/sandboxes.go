// Package sandboxdb is the statements of layer 2: hosts and sandboxes.
//
// Every function takes the transaction it runs in. MoveSandbox is the only one
// that changes a sandbox's state. This package must never decide what follows
// from a change.
package sandboxdb

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/fsm"
	"github.com/paddock-dev/paddock/internal/host"
	"github.com/paddock-dev/paddock/internal/sandbox"
	"github.com/paddock-dev/paddock/internal/store"
	"github.com/paddock-dev/paddock/internal/template"
)

const sandboxColumns = `id, template_id, host_id, state, version, milli_cpu, mem_bytes, disk_bytes, ip, metadata, request, reason, expires_us, created_us, changed_us, generation, timeout_us, on_timeout, auto_resume, driver, snapshot_id, with_memory, kept_bytes, network, revision, access_token, traffic_token, wish`

// AddSandbox stores a new sandbox in its first state.
func AddSandbox(ctx context.Context, tx *store.Tx, s sandbox.Sandbox) (sandbox.Sandbox, error) {
	s.State, s.Version, s.CreatedAt, s.ChangedAt = sandbox.Machine.Initial(), 1, tx.Now, tx.Now
	metadata, err := json.Marshal(s.Metadata)
	if err != nil {
		return s, err
	}
	if s.Request == nil {
		s.Request = []byte{}
	}
	if s.Life.Network == nil {
		s.Life.Network = []byte{}
	}
	s.Life.OnTimeout = cmp.Or(s.Life.OnTimeout, sandbox.Kill)
	wish, err := wishOf(s)
	if err != nil {
		return s, err
	}
	return s, tx.Insert(ctx, fault.New(fault.Exists, "sandbox %s", s.ID),
		`INSERT INTO sandbox (`+sandboxColumns+`) VALUES (`+store.Marks(28)+`)`,
		string(s.ID), string(s.TemplateID), []byte(s.HostID), string(s.State), s.Version, s.Resources.MilliCPU, s.Resources.MemBytes, s.Resources.DiskBytes, []byte(s.IP), metadata, s.Request, []byte(s.Reason),
		expiryOf(s), s.CreatedAt.UnixMicro(), s.ChangedAt.UnixMicro(),
		int64(s.Life.Generation), s.Life.Timeout.Microseconds(), string(s.Life.OnTimeout), s.Life.AutoResume, s.Life.Driver, string(s.Life.Snapshot), s.Life.WithMemory, s.Life.KeptBytes, s.Life.Network, s.Life.Revision, []byte(s.Life.AccessToken), []byte(s.Life.TrafficToken), wish)
}

// wishOf writes no wish as nothing.
func wishOf(s sandbox.Sandbox) ([]byte, error) {
	if s.Life.Wish == (sandbox.Wish{}) {
		return []byte{}, nil
	}
	return json.Marshal(s.Life.Wish)
}

// expiryOf writes no expiry as 0.
func expiryOf(s sandbox.Sandbox) int64 {
	if s.ExpiresAt.IsZero() {
		return 0
	}
	return s.ExpiresAt.UnixMicro()
}

func scanSandbox(r store.Scanner) (s sandbox.Sandbox, err error) {
	var metadata, wish []byte
	var expires, created, changed, timeout int64
	l := &s.Life
	err = r.Scan(&s.ID, &s.TemplateID, &s.HostID, &s.State, &s.Version, &s.Resources.MilliCPU, &s.Resources.MemBytes, &s.Resources.DiskBytes, &s.IP, &metadata, &s.Request, &s.Reason, &expires, &created, &changed,
		&l.Generation, &timeout, &l.OnTimeout, &l.AutoResume, &l.Driver, &l.Snapshot, &l.WithMemory, &l.KeptBytes, &l.Network, &l.Revision, &l.AccessToken, &l.TrafficToken, &wish)
	if err != nil {
		return s, err
	}
	l.Timeout = time.Duration(timeout) * time.Microsecond
	s.Resources.Slots, s.CreatedAt, s.ChangedAt = 1, time.UnixMicro(created), time.UnixMicro(changed)
	if expires > 0 {
		s.ExpiresAt = time.UnixMicro(expires)
	}
	if len(wish) > 0 {
		if err := json.Unmarshal(wish, &l.Wish); err != nil {
			return s, err
		}
	}
	return s, json.Unmarshal(metadata, &s.Metadata)
}

// GetSandbox returns a sandbox, or fault.SandboxNotFound.
func GetSandbox(ctx context.Context, tx *store.Tx, id sandbox.ID) (sandbox.Sandbox, error) {
	s, ok, err := store.First(ctx, tx, scanSandbox, `SELECT `+sandboxColumns+` FROM sandbox WHERE id = ?`, string(id))
	if err == nil && (!ok || s.ID != id) { // MySQL takes "x " for "x"
		err = fault.New(fault.SandboxNotFound, "sandbox %.128q", id)
	}
	return s, err
}

// TouchSandbox shows that a sandbox on its way is worked on: it counts as just
// changed. In any other state nothing happens. The version stays, so that
// whoever moves it need not know.
func TouchSandbox(ctx context.Context, tx *store.Tx, id sandbox.ID) error {
	_, err := tx.Exec(ctx, `UPDATE sandbox SET changed_us = ? WHERE id = ? AND state IN (?, ?)`,
		tx.Now.UnixMicro(), string(id), string(sandbox.Allocating), string(sandbox.Starting))
	return err
}

// maxReason is what the column takes.
const maxReason = 512

// Filter narrows ListSandboxes; zero fields do not.
type Filter struct {
	States        []sandbox.State
	HostID        host.ID
	TemplateID    template.ID
	ChangedBefore time.Time
	ExpiredBy     time.Time // those without an expiry never are
	Limit         int       // 0: 1000
	OldestFirst   bool
	Labels        map[string]string // all of them
	// After is the last one of the page before, of those that are listed newest
	// first: what comes behind it. Rows that come and go do not matter.
	After Place
}

// Place is where a row stands in the order of making.
type Place struct {
	At time.Time
	ID sandbox.ID
}

// ListSandboxes returns sandboxes, newest first unless asked otherwise.
func ListSandboxes(ctx context.Context, tx *store.Tx, f Filter) ([]sandbox.Sandbox, error) {
	where, args := []string{"1 = 1"}, []any{}
	if len(f.States) > 0 {
		where = append(where, "state IN (?"+strings.Repeat(", ?", len(f.States)-1)+")")
		for _, s := range f.States {
			args = append(args, string(s))
		}
	}
	if f.HostID != "" {
		where, args = append(where, "host_id = ?"), append(args, []byte(f.HostID))
	}
	if f.TemplateID != "" {
		where, args = append(where, "template_id = ?"), append(args, string(f.TemplateID))
	}
	if !f.ChangedBefore.IsZero() {
		where, args = append(where, "changed_us < ?"), append(args, f.ChangedBefore.UnixMicro())
	}
	if !f.ExpiredBy.IsZero() {
		where, args = append(where, "expires_us > 0 AND expires_us <= ?"), append(args, f.ExpiredBy.UnixMicro())
	}
	labels, more, err := labelled(f.Labels)
	if err != nil {
		return nil, err
	}
	where, args = append(where, labels...), append(args, more...)
	if f.After.ID != "" {
		at := f.After.At.UnixMicro()
		where, args = append(where, "(created_us < ? OR created_us = ? AND id < ?)"), append(args, at, at, string(f.After.ID))
	}
	order := "created_us DESC, id DESC"
	if f.OldestFirst {
		order = "changed_us, id"
	}
	if f.Limit <= 0 {
		f.Limit = 1000
	}
	return store.Collect(ctx, tx, scanSandbox, `SELECT `+sandboxColumns+` FROM sandbox WHERE `+strings.Join(where, " AND ")+` ORDER BY `+order+` LIMIT ?`, append(args, f.Limit)...)
}

// labelled is the condition that a sandbox has all of these labels.
func labelled(labels map[string]string) (where []string, args []any, err error) {
	for _, k := range slices.Sorted(maps.Keys(labels)) {
		// As it stands in the column: a quote inside of a text is escaped there, so
		// that nothing else reads like this.
		one, err := json.Marshal(map[string]string{k: labels[k]})
		if err != nil {
			return nil, nil, err
		}
		where, args = append(where, "INSTR(metadata, ?) > 0"), append(args, one[1:len(one)-1])
	}
	return where, args, nil
}

// CountByHost returns how many sandboxes with all of these labels each host has,
// or is about to have.
func CountByHost(ctx context.Context, tx *store.Tx, labels map[string]string) (map[host.ID]int, error) {
	args := []any{}
	for _, s := range holding {
		args = append(args, string(s))
	}
	where, more, err := labelled(labels)
	if err != nil {
		return nil, err
	}
	args = append(args, more...)
	type counted struct {
		id host.ID
		n  int
	}
	list, err := store.Collect(ctx, tx, func(r store.Scanner) (c counted, err error) {
		var id []byte
		err = r.Scan(&id, &c.n)
		c.id = host.ID(id)
		return c, err
	}, `SELECT host_id, COUNT(*) FROM sandbox WHERE state IN (?`+strings.Repeat(", ?", len(holding)-1)+`)`+strings.Join(append([]string{""}, where...), " AND ")+` GROUP BY host_id`, args...)
	byHost := map[host.ID]int{}
	for _, c := range list {
		if c.id != "" {
			byHost[c.id] = c.n
		}
	}
	return byHost, err
}

// holding are the states in which a sandbox takes something of its host.
var holding = []sandbox.State{sandbox.Starting, sandbox.Running, sandbox.Pausing, sandbox.Paused, sandbox.Resuming, sandbox.RollingBack}

// Placed is a sandbox and its host.
type Placed struct {
	ID     sandbox.ID
	HostID host.ID
	IP     string
}

// ListPlaced returns all sandboxes in these states, however many there are.
func ListPlaced(ctx context.Context, tx *store.Tx, states []sandbox.State) ([]Placed, error) {
	args := make([]any, len(states))
	for i, s := range states {
		args[i] = string(s)
	}
	return store.Collect(ctx, tx, func(r store.Scanner) (p Placed, err error) {
		return p, r.Scan(&p.ID, &p.HostID, &p.IP)
	}, `SELECT id, host_id, ip FROM sandbox WHERE state IN (?`+strings.Repeat(", ?", len(states)-1)+`) ORDER BY id`, args...)
}

// Change is that a sandbox's row became another.
type Change struct {
	ID      sandbox.ID
	Version int64
	At      time.Time
}

// ChangedSince returns the rows that were changed at the given time or later, in
// that order, at most limit.
func ChangedSince(ctx context.Context, tx *store.Tx, since time.Time, limit int) ([]Change, error) {
	return store.Collect(ctx, tx, func(r store.Scanner) (c Change, err error) {
		var at int64
		err = r.Scan(&c.ID, &c.Version, &at)
		c.At = time.UnixMicro(at)
		return c, err
	}, `SELECT id, version, changed_us FROM sandbox WHERE changed_us >= ? ORDER BY changed_us, id LIMIT ?`, since.UnixMicro(), limit)
}

// MoveSandbox is the only statement that changes a sandbox's state. It writes
// host, address, reason, expiry and what of its life a move may change, too: its
// generation, driver, snapshot, how it is kept, and its wish.
func MoveSandbox(ctx context.Context, tx *store.Tx, s sandbox.Sandbox, on sandbox.Event) (sandbox.Sandbox, error) {
	to, err := sandbox.Machine.Step(s.State, on, fsm.None{})
	if err != nil {
		return s, fmt.Errorf("sandbox %s: %w", s.ID, err)
	}
	wish, err := wishOf(s)
	if err != nil {
		return s, err
	}
	n, err := tx.Exec(ctx, `UPDATE sandbox SET state = ?, version = version + 1, host_id = ?, ip = ?, reason = ?, changed_us = ?, expires_us = ?, generation = ?, driver = ?, snapshot_id = ?, with_memory = ?, kept_bytes = ?, wish = ? WHERE id = ? AND state = ? AND version = ?`,
		string(to), []byte(s.HostID), []byte(s.IP), []byte(fault.Clip(s.Reason, maxReason)), tx.Now.UnixMicro(),
		expiryOf(s), int64(s.Life.Generation), s.Life.Driver, string(s.Life.Snapshot), s.Life.WithMemory, s.Life.KeptBytes, wish, string(s.ID), string(s.State), s.Version)
	if err == nil && n == 0 {
		err = fault.VersionConflict
	}
	if err != nil {
		return s, fmt.Errorf("sandbox %s: %s: %w", s.ID, on, err)
	}
	tx.Moved("sandbox", string(s.ID), string(on), string(s.State), string(to))
	s.State, s.Version, s.ChangedAt = to, s.Version+1, tx.Now
	return s, nil
}

// ChangeSandbox writes what of a sandbox changes beside its state and its
// expiry: network and labels. A row of another version than s is
// fault.VersionConflict.
func ChangeSandbox(ctx context.Context, tx *store.Tx, s sandbox.Sandbox) (sandbox.Sandbox, error) {
	metadata, err := json.Marshal(s.Metadata)
	if err != nil {
		return s, err
	}
	return changed(ctx, tx, s, `metadata = ?, network = ?, revision = ?`, metadata, s.Life.Network, s.Life.Revision)
}

// SetTimeout writes how long a sandbox may be unused, what follows, and when
// that is. A row of another version than s is fault.VersionConflict.
func SetTimeout(ctx context.Context, tx *store.Tx, s sandbox.Sandbox) (sandbox.Sandbox, error) {
	return changed(ctx, tx, s, `expires_us = ?, timeout_us = ?, on_timeout = ?, auto_resume = ?`, expiryOf(s), s.Life.Timeout.Microseconds(), string(s.Life.OnTimeout), s.Life.AutoResume)
}

// changed writes columns of a row that is still as s has it.
func changed(ctx context.Context, tx *store.Tx, s sandbox.Sandbox, set string, args ...any) (sandbox.Sandbox, error) {
	n, err := tx.Exec(ctx, `UPDATE sandbox SET version = version + 1, changed_us = ?, `+set+` WHERE id = ? AND state = ? AND version = ?`, slices.Concat([]any{tx.Now.UnixMicro()}, args, []any{string(s.ID), string(s.State), s.Version})...)
	if err == nil && n == 0 {
		err = fault.VersionConflict
	}
	if err != nil {
		return s, fmt.Errorf("sandbox %s: %w", s.ID, err)
	}
	s.Version, s.ChangedAt = s.Version+1, tx.Now
	return s, nil
}

// TakeExpired takes the expiry of a sandbox in the given state away if it is
// over, and reports whether it was: whoever used it meanwhile was faster. The
// caller acts in the same transaction. The version stays.
func TakeExpired(ctx context.Context, tx *store.Tx, id sandbox.ID, state sandbox.State) (bool, error) {
	n, err := tx.Exec(ctx, `UPDATE sandbox SET expires_us = 0 WHERE id = ? AND state = ? AND expires_us > 0 AND expires_us <= ?`, string(id), string(state), tx.Now.UnixMicro())
	return n > 0, err
}

// PutOff moves the expiry of a running sandbox on: it was used at the given
// time. It never comes nearer by that, and the version stays: whoever moves the
// sandbox need not know.
func PutOff(ctx context.Context, tx *store.Tx, id sandbox.ID, used time.Time) error {
	_, err := tx.Exec(ctx, `UPDATE sandbox SET expires_us = ? + timeout_us WHERE id = ? AND state = ? AND timeout_us > 0 AND expires_us > 0 AND expires_us < ? + timeout_us`,
		used.UnixMicro(), string(id), string(sandbox.Running), used.UnixMicro())
	return err
}

// ForgetSandboxes removes rows that ended before the given time, at most limit,
// and with each what was decided for it.
func ForgetSandboxes(ctx context.Context, tx *store.Tx, before time.Time, limit int) (int, error) {
	old, err := ListSandboxes(ctx, tx, Filter{States: []sandbox.State{sandbox.Terminated}, ChangedBefore: before, Limit: limit, OldestFirst: true})
	if err != nil {
		return 0, err
	}
	for _, s := range old {
		if _, err := tx.Exec(ctx, `DELETE FROM sandbox WHERE id = ? AND state = ?`, string(s.ID), string(sandbox.Terminated)); err != nil {
			return 0, err
		}
		if _, err := tx.Exec(ctx, `DELETE FROM decision WHERE sandbox_id = ?`, string(s.ID)); err != nil {
			return 0, err
		}
	}
	return len(old), nil
}
