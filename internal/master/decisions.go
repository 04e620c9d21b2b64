package master

import (
	"context"
	"time"

	"github.com/paddock-dev/paddock/internal/scheduler"
	"github.com/paddock-dev/paddock/internal/store"
)

// choice is one decision of a create, as it is remembered.
type choice struct {
	request  scheduler.Request
	decision scheduler.Decision
	attempt  int // 1: the first
	at       time.Time
	after    error // why the attempt before failed; nil: there was none
}

// remember notes a decision in the transaction that acts on it.
func (m *Master) remember(_ context.Context, _ *store.Tx, _ choice) error { return nil }
