package master

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/platform/telemetry"
	"github.com/paddock-dev/paddock/internal/store"
)

const (
	topicBuild          = "build"
	topicSandboxDelete  = "sandbox_delete"
	topicArtifactDelete = "artifact_delete"
	topicRoute          = "route"

	deliverBatch = 16
)

// traceOf is what a message keeps of the trace it follows from: no more than
// its place in it. What else travels with a trace is the caller's, and of any
// length.
func traceOf(ctx context.Context) string { return telemetry.Carrier(ctx)[traceParent] }

// traceParent is the field that names a trace and the place in it.
const traceParent = "traceparent"

func joinTrace(ctx context.Context, trace string) context.Context {
	return telemetry.Join(ctx, map[string]string{traceParent: trace})
}

// topic is one kind of work that follows a commit, and who does it.
type topic struct {
	name    string
	workers int
	handle  func(context.Context, store.Message) error
	wake    chan struct{}
}

func newTopic(name string, workers int, handle func(context.Context, store.Message) error) *topic {
	return &topic{name, workers, handle, make(chan struct{}, 1)}
}

func (t *topic) poke() {
	select {
	case t.wake <- struct{}{}:
	default:
	}
}

// deliverSoon makes the workers of a topic look now, after a commit that
// enqueued for them.
func (m *Master) deliverSoon(name string) {
	for _, t := range m.topics {
		if t.name == name {
			t.poke()
		}
	}
}

// deliver runs the workers of t until ctx ends. One looks at the outbox every
// so often, for what was due later or came from another master; the rest only
// help, so that an idle master asks the database once a look and not once a
// worker. A host that does not answer holds up one worker.
func (m *Master) deliver(ctx context.Context, t *topic) {
	var workers sync.WaitGroup
	for i := range t.workers {
		workers.Go(func() { m.deliverLoop(ctx, t, i == 0) })
	}
	workers.Wait()
}

func (m *Master) deliverLoop(ctx context.Context, t *topic, looks bool) {
	var tick <-chan time.Time
	if looks {
		ticker := time.NewTicker(m.pace.outbox)
		defer ticker.Stop()
		tick = ticker.C
	}
	handle := func(ctx context.Context, msg store.Message) error {
		t.poke() // there may be more: another worker looks meanwhile
		err := t.handle(joinTrace(ctx, msg.Trace), msg)
		if err != nil && ctx.Err() == nil {
			m.log.InfoContext(ctx, "outbox message tried again later", slog.String("topic", t.name), slog.String("key", msg.Key), slog.Int("attempt", msg.Attempts), slog.String("error", err.Error()))
		}
		return err
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.wake:
		case <-tick:
		}
		if _, err := m.db.Deliver(ctx, t.name, deliverBatch, handle); err != nil && ctx.Err() == nil {
			m.log.WarnContext(ctx, "outbox", slog.String("topic", t.name), slog.String("error", err.Error()))
		}
	}
}

// updateTries bounds how often a transaction that met a changed row decides
// again.
const updateTries = 20

// update is store.Update for transactions that read, decide and write: when
// somebody else changed a row between the two, fn reads and decides again.
func (m *Master) update(ctx context.Context, fn func(tx *store.Tx) error) error {
	for try := 1; ; try++ {
		err := m.db.Update(ctx, fn)
		if try == updateTries || !errors.Is(err, fault.VersionConflict) {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Duration(rand.Int64N(int64(time.Millisecond) * int64(try)))):
		}
	}
}
