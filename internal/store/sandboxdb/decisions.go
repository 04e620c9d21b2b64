package sandboxdb

import (
	"context"
	"errors"
	"time"

	"github.com/paddock-dev/paddock/internal/host"
	"github.com/paddock-dev/paddock/internal/sandbox"
	"github.com/paddock-dev/paddock/internal/store"
)

// DecisionKind is what came of a decision. The words are those of the rows.
type DecisionKind string

// The kinds.
const (
	DecisionPlaced  DecisionKind = "placed"
	DecisionRefused DecisionKind = "refused" // no host was fit
)

// Decision is one choice of a host, as it is kept: as long as the row of its
// sandbox. Body is for whoever reads it; nothing here looks into it.
type Decision struct {
	SandboxID sandbox.ID
	Attempt   int // 1: the first
	At        time.Time
	Kind      DecisionKind
	HostID    host.ID // empty: none
	Body      []byte
}

const decisionColumns = `d.sandbox_id, d.attempt, d.at_us, d.kind, d.host_id, d.body`

var errKnown = errors.New("the decision is known")

// AddDecision keeps d. What is kept of an attempt stays: the same again changes
// nothing.
func AddDecision(ctx context.Context, tx *store.Tx, d Decision) error {
	err := tx.Insert(ctx, errKnown, `INSERT INTO decision (sandbox_id, attempt, at_us, kind, host_id, body) VALUES (?, ?, ?, ?, ?, ?)`,
		string(d.SandboxID), d.Attempt, d.At.UnixMicro(), string(d.Kind), []byte(d.HostID), d.Body)
	if errors.Is(err, errKnown) {
		return nil
	}
	return err
}

func scanDecision(r store.Scanner) (d Decision, err error) {
	var at int64
	err = r.Scan(&d.SandboxID, &d.Attempt, &at, &d.Kind, &d.HostID, &d.Body)
	d.At = time.UnixMicro(at)
	return d, err
}

// ListDecisions returns what was decided for a sandbox, the first attempt first.
func ListDecisions(ctx context.Context, tx *store.Tx, id sandbox.ID) ([]Decision, error) {
	return store.Collect(ctx, tx, scanDecision, `SELECT `+decisionColumns+` FROM decision d WHERE d.sandbox_id = ? ORDER BY d.attempt`, string(id))
}

// Asked is a create, as its first decision and the end of its sandbox tell of
// it.
type Asked struct {
	Decision
	Ran   bool      // it was usable for a while, or is
	Ended time.Time // zero: it lives
}

// AskedAfter is where a look at all creates goes on; zero: at the first.
type AskedAfter struct {
	At time.Time
	ID sandbox.ID
}

// ListAsked returns creates in the order in which they were first decided on,
// from the given place on, at most limit.
func ListAsked(ctx context.Context, tx *store.Tx, after AskedAfter, limit int) ([]Asked, error) {
	at := int64(0)
	if !after.At.IsZero() {
		at = after.At.UnixMicro()
	}
	return store.Collect(ctx, tx, func(r store.Scanner) (a Asked, err error) {
		var at, changed int64
		var state sandbox.State
		var ip string
		if err := r.Scan(&a.SandboxID, &a.Attempt, &at, &a.Kind, &a.HostID, &a.Body, &state, &changed, &ip); err != nil {
			return a, err
		}
		a.At, a.Ran = time.UnixMicro(at), ip != "" // the address comes with the host's yes
		if state == sandbox.Terminating || state == sandbox.Terminated {
			a.Ended = time.UnixMicro(changed)
		}
		return a, nil
	}, `SELECT `+decisionColumns+`, s.state, s.changed_us, s.ip FROM decision d JOIN sandbox s ON s.id = d.sandbox_id WHERE d.attempt = 1 AND (d.at_us > ? OR (d.at_us = ? AND d.sandbox_id > ?)) ORDER BY d.at_us, d.sandbox_id LIMIT ?`,
		at, at, string(after.ID), limit)
}
