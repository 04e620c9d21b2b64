package store

import (
	"context"
	"time"
)

// Submission is one identified attempt at a write.
type Submission struct {
	ID, Holder  string
	Fingerprint []byte // covers every field of the request but the id
}

// Once runs do the first time that sub is seen and keeps its answer with what
// it wrote; later it returns that answer. fault.SubmissionReused on other
// content.
func (tx *Tx) Once(ctx context.Context, sub Submission, do func() ([]byte, error)) ([]byte, error) {
	return nil, errUnwritten
}

// SweepSubmissions forgets answers older than keep and returns how many.
func (s *Store) SweepSubmissions(ctx context.Context, keep time.Duration) (int64, error) {
	return 0, errUnwritten
}
