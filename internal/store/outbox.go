package store

import (
	"context"
	"database/sql"
	"log/slog"
	"time"

	"github.com/paddock-dev/paddock/internal/platform/id"
)

// Message is work that must follow a commit. It is delivered at least once.
type Message struct {
	ID       string
	Topic    string
	Key      string // messages of one topic and key are delivered one at a time, oldest first
	Payload  []byte
	Trace    string
	Attempts int
	Error    string // of the last attempt
}

const (
	claimTime   = 15 * time.Second // after a deliverer's last sign of life another may try
	claimEvery  = 5 * time.Second  // between signs of life
	keptTime    = claimTime - claimEvery
	handleTime  = 2 * time.Minute // how long one delivery may take
	maxAttempts = 200
	maxPause    = time.Minute
)

// Enqueue stores m with the transaction, to be delivered no sooner than after.
func (tx *Tx) Enqueue(ctx context.Context, m Message, after time.Duration) error {
	if m.Payload == nil {
		m.Payload = []byte{}
	}
	// Behind every message of its key that is there: this transaction may have
	// begun before the one that wrote it, or may be the same.
	var last sql.NullInt64
	if _, err := tx.Row(ctx, `SELECT MAX(created_us) FROM outbox WHERE topic = ? AND message_key = ?`, []any{m.Topic, []byte(m.Key)}, &last); err != nil {
		return err
	}
	created := max(tx.Now.UnixMicro(), last.Int64+1)
	_, err := tx.Exec(ctx, `INSERT INTO outbox (id, topic, message_key, payload, trace, attempts, last_error, due_us, claimed_until_us, dead, created_us) VALUES (?, ?, ?, ?, ?, 0, ?, ?, 0, 0, ?)`,
		id.New("msg-"), m.Topic, []byte(m.Key), m.Payload, []byte(m.Trace), []byte{}, tx.Now.Add(after).UnixMicro(), created)
	return err
}

// Waits reports whether a message of this topic and key is still to be
// delivered.
func (tx *Tx) Waits(ctx context.Context, topic, key string) (bool, error) {
	var n int64
	_, err := tx.Row(ctx, `SELECT COUNT(*) FROM outbox WHERE topic = ? AND message_key = ? AND dead = 0`, []any{topic, []byte(key)}, &n)
	return n > 0, err
}

// Deliver hands due messages of topic to handle, at most batch, and returns how
// many were done. A message whose handle fails is tried again after a growing
// pause; one that failed for long stays as a dead row for an operator to see.
// Two deliverers never work on one message at a time: the context of handle ends
// when its claim may have. It also ends after two minutes.
func (s *Store) Deliver(ctx context.Context, topic string, batch int, handle func(context.Context, Message) error) (delivered int, err error) {
	for range batch {
		sent := time.Now() // before the claim was written, by our own clock: to stop early
		m, found, err := s.claim(ctx, topic)
		if err != nil || !found {
			return delivered, err
		}
		failed := s.handle(ctx, m, sent.Add(keptTime), handle)
		if failed == nil {
			delivered++
		}
		if err := s.settle(ctx, m, failed); err != nil {
			return delivered, err
		}
	}
	return delivered, nil
}

// handle runs one delivery under its claim, which is ours until the given time
// unless it is extended. The end of the claim ends the delivery on time, also
// while an extension waits for the database.
func (s *Store) handle(ctx context.Context, m Message, until time.Time, handle func(context.Context, Message) error) error {
	bounded, cancel := context.WithTimeout(ctx, handleTime)
	expiry := time.AfterFunc(time.Until(until), cancel)
	kept := make(chan struct{})
	go func() {
		defer close(kept)
		defer cancel()
		s.keepClaim(bounded, m, expiry)
	}()
	defer func() {
		cancel()
		expiry.Stop()
		<-kept
	}()
	return handle(bounded, m)
}

// keepClaim extends the claim and its expiry until ctx ends or the claim is
// lost.
func (s *Store) keepClaim(ctx context.Context, m Message, expiry *time.Timer) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(claimEvery):
		}
		sent, n := time.Now(), int64(0)
		bounded, cancel := context.WithTimeout(ctx, claimEvery)
		err := s.Update(bounded, func(tx *Tx) (err error) {
			n, err = tx.Exec(bounded, `UPDATE outbox SET claimed_until_us = ? WHERE id = ? AND attempts = ?`, tx.Now.Add(claimTime).UnixMicro(), m.ID, m.Attempts)
			return err
		})
		cancel()
		switch {
		case err == nil && n == 0:
			return
		case err == nil && !expiry.Stop():
			return // it had ended meanwhile
		case err == nil:
			expiry.Reset(time.Until(sent.Add(keptTime)))
		}
	}
}

func (s *Store) claim(ctx context.Context, topic string) (m Message, found bool, err error) {
	err = s.Update(ctx, func(tx *Tx) (err error) {
		now := tx.Now.UnixMicro()
		m, found, err = First(ctx, tx, scanMessage,
			`SELECT id, topic, message_key, payload, trace, attempts, last_error FROM outbox o
			WHERE topic = ? AND dead = 0 AND due_us <= ? AND claimed_until_us <= ?
			AND NOT EXISTS (SELECT 1 FROM outbox e WHERE e.topic = o.topic AND e.message_key = o.message_key AND e.dead = 0 AND (e.created_us < o.created_us OR (e.created_us = o.created_us AND e.id < o.id)))
			ORDER BY due_us, id LIMIT 1`, topic, now, now)
		if err != nil || !found {
			return err
		}
		n, err := tx.Exec(ctx, `UPDATE outbox SET claimed_until_us = ?, attempts = attempts + 1 WHERE id = ? AND attempts = ? AND claimed_until_us <= ?`,
			tx.Now.Add(claimTime).UnixMicro(), m.ID, m.Attempts, now)
		if err == nil && n == 0 {
			err = errLostRace
		}
		m.Attempts++
		return err
	})
	return m, found && err == nil, err
}

func scanMessage(r Scanner) (m Message, err error) {
	var last []byte
	err = r.Scan(&m.ID, &m.Topic, &m.Key, &m.Payload, &m.Trace, &m.Attempts, &last)
	m.Error = string(last)
	return m, err
}

func (s *Store) settle(ctx context.Context, m Message, failed error) error {
	// On a context of its own: work that was done must not be done again
	// because the deliverer was stopped after it.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), answerTime)
	defer cancel()
	return s.Update(ctx, func(tx *Tx) error {
		if failed == nil {
			_, err := tx.Exec(ctx, `DELETE FROM outbox WHERE id = ?`, m.ID)
			return err
		}
		dead := 0
		if m.Attempts >= maxAttempts {
			dead = 1
			s.log.ErrorContext(ctx, "outbox message given up", slog.String("topic", m.Topic), slog.String("key", m.Key), slog.String("error", failed.Error()))
		}
		pause := min(maxPause, 100*time.Millisecond<<min(m.Attempts, 12))
		_, err := tx.Exec(ctx, `UPDATE outbox SET claimed_until_us = 0, last_error = ?, due_us = ?, dead = ? WHERE id = ? AND attempts = ?`,
			[]byte(failed.Error()), tx.Now.Add(pause).UnixMicro(), dead, m.ID, m.Attempts)
		return err
	})
}

// ForgetDead removes messages that were given up, and that were last tried
// before the given time, at most limit.
func (tx *Tx) ForgetDead(ctx context.Context, before time.Time, limit int) (int64, error) {
	ids, err := Collect(ctx, tx, func(r Scanner) (id string, err error) {
		return id, r.Scan(&id)
	}, `SELECT id FROM outbox WHERE dead = 1 AND due_us < ? ORDER BY due_us LIMIT ?`, before.UnixMicro(), limit)
	if err != nil {
		return 0, err
	}
	for i, id := range ids {
		if _, err := tx.Exec(ctx, `DELETE FROM outbox WHERE id = ? AND dead = 1`, id); err != nil {
			return int64(i), err
		}
	}
	return int64(len(ids)), nil
}

// OutboxLen returns how many messages wait and how many were given up.
func (tx *Tx) OutboxLen(ctx context.Context) (waiting, dead int64, err error) {
	_, err = tx.Row(ctx, `SELECT COALESCE(SUM(1 - dead), 0), COALESCE(SUM(dead), 0) FROM outbox`, nil, &waiting, &dead)
	return waiting, dead, err
}
