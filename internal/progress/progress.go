// Package progress is a board on which the builder of a job writes how far its
// pull is, and from which anybody may read it.
//
// What is on the board may be lost at any time: the job's row holds what must
// not be. So an outage is an error for the log and never for the job. This
// package must never be asked for anything that decides.
package progress

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/platform/config"
	"github.com/paddock-dev/paddock/internal/template"
)

// Life is how long an entry stays after it was last written: a builder that
// ended without a word does not stay on the board.
const Life = 2 * time.Minute

const (
	askTime   = 500 * time.Millisecond
	keyPrefix = "paddock:pull:"
)

// Memory is the board of one process. Its zero value is empty and ready; it is
// safe for concurrent use.
type Memory struct {
	mu    sync.Mutex
	pulls map[template.JobID]entry
}

type entry struct {
	pull template.Pull
	till time.Time
}

// Put writes how far a job's pull is.
func (m *Memory) Put(_ context.Context, id template.JobID, p template.Pull) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	if m.pulls == nil {
		m.pulls = map[template.JobID]entry{}
	}
	for other, e := range m.pulls {
		if !e.till.After(now) {
			delete(m.pulls, other)
		}
	}
	m.pulls[id] = entry{p, now.Add(Life)}
	return nil
}

// Get reads how far a job's pull is; ok is false when the board does not say.
func (m *Memory) Get(_ context.Context, id template.JobID) (p template.Pull, ok bool, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	e, ok := m.pulls[id]
	if !ok || !e.till.After(time.Now()) {
		return template.Pull{}, false, nil
	}
	return e.pull, true, nil
}

// Clear takes a job off the board. Absent is success.
func (m *Memory) Clear(_ context.Context, id template.JobID) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.pulls, id)
	return nil
}

// Redis is the board of several processes. Each call takes half a second at
// most and answers fault.PeerUnavailable while Redis does not. It is safe for
// concurrent use.
type Redis struct{ client *redis.Client }

// NewRedis returns the board in c's Redis. Nothing is asked of it yet.
func NewRedis(c config.Redis) *Redis {
	return &Redis{redis.NewClient(&redis.Options{
		Addr: c.Addr, Password: c.Password.Reveal(),
		DialTimeout: askTime, ReadTimeout: askTime, WriteTimeout: askTime, PoolTimeout: askTime,
		MaxRetries: -1, ContextTimeoutEnabled: true, PoolSize: 4,
	})}
}

// Close closes the connections.
func (r *Redis) Close() error { return r.client.Close() }

// Put writes how far a job's pull is.
func (r *Redis) Put(ctx context.Context, id template.JobID, p template.Pull) error {
	b, err := json.Marshal(p)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	return away(r.client.Set(ctx, keyPrefix+string(id), b, Life).Err())
}

// Get reads how far a job's pull is; ok is false when the board does not say.
func (r *Redis) Get(ctx context.Context, id template.JobID) (p template.Pull, ok bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	b, err := r.client.Get(ctx, keyPrefix+string(id)).Bytes()
	if errors.Is(err, redis.Nil) {
		return p, false, nil
	}
	if err != nil {
		return p, false, away(err)
	}
	if err := json.Unmarshal(b, &p); err != nil {
		return template.Pull{}, false, nil // written by another version: it says nothing to us
	}
	return p, true, nil
}

// Clear takes a job off the board. Absent is success.
func (r *Redis) Clear(ctx context.Context, id template.JobID) error {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	return away(r.client.Del(ctx, keyPrefix+string(id)).Err())
}

func away(err error) error {
	if err == nil {
		return nil
	}
	return fault.Wrap(fault.PeerUnavailable, err, "progress board in Redis")
}
