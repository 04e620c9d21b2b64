package store

import (
	"context"
	"time"
)

// Message is work that must follow a commit.
type Message struct {
	ID       string // made by Enqueue when empty
	Topic    string
	Key      string // messages of one topic and key are delivered in order; empty: no order
	Payload  []byte
	Trace    string // trace id of the request that wrote it
	Attempts int    // failed deliveries so far
}

// Enqueue stores m with the transaction, to be delivered not before after.
func (tx *Tx) Enqueue(ctx context.Context, m Message, after time.Duration) error {
	return errUnwritten
}

// Deliver hands up to batch due messages of topic to handle, one at a time,
// each at least once.
func (s *Store) Deliver(ctx context.Context, topic string, batch int, handle func(context.Context, Message) error) (delivered int, err error) {
	return 0, errUnwritten
}
