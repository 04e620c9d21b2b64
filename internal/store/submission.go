package store

import (
	"bytes"
	"context"
	"fmt"
	"time"

	"github.com/paddock-dev/paddock/internal/fault"
)

// SubmissionKept is how long an answer is kept for replays.
const SubmissionKept = 7 * 24 * time.Hour

// Submission is one identified attempt at a write. Fingerprint covers every
// field of its content.
type Submission struct {
	ID          string
	Holder      string
	Fingerprint []byte
}

// Once runs do and keeps its answer with what it wrote, or returns the answer
// that was kept for the same submission. Another content under the same id is
// fault.SubmissionReused. A do that fails leaves nothing.
func (tx *Tx) Once(ctx context.Context, s Submission, do func() ([]byte, error)) ([]byte, error) {
	if s.Fingerprint == nil {
		s.Fingerprint = []byte{}
	}
	kept, found, err := tx.submission(ctx, s)
	if err != nil || found {
		return kept, err
	}
	answer, err := do()
	if err != nil {
		return nil, err
	}
	if answer == nil {
		answer = []byte{}
	}
	// The same submission may have been committed by another call meanwhile:
	// run again, this one finds its answer.
	err = tx.Insert(ctx, errLostRace, `INSERT INTO submission (holder, id, fingerprint, answer, created_us) VALUES (?, ?, ?, ?, ?)`,
		[]byte(s.Holder), []byte(s.ID), s.Fingerprint, answer, tx.Now.UnixMicro())
	return answer, err
}

func (tx *Tx) submission(ctx context.Context, s Submission) ([]byte, bool, error) {
	var fingerprint, answer []byte
	found, err := tx.Row(ctx, `SELECT fingerprint, answer FROM submission WHERE holder = ? AND id = ?`, []any{[]byte(s.Holder), []byte(s.ID)}, &fingerprint, &answer)
	if err == nil && found && !bytes.Equal(fingerprint, s.Fingerprint) {
		err = fmt.Errorf("submission %s: %w", s.ID, fault.SubmissionReused)
	}
	return answer, found, err
}

// Forget drops one answer of a submission: the next under its id is the first
// again. Another answer, of somebody who was faster to begin anew, stays; that
// and absence are success.
func (tx *Tx) Forget(ctx context.Context, holder, id string, answer []byte) error {
	_, err := tx.Exec(ctx, `DELETE FROM submission WHERE holder = ? AND id = ? AND answer = ?`, []byte(holder), []byte(id), answer)
	return err
}

// ForgetSubmissions drops answers older than SubmissionKept, at most limit.
func (tx *Tx) ForgetSubmissions(ctx context.Context, limit int) (int64, error) {
	old, err := Collect(ctx, tx, func(r Scanner) (s [2][]byte, err error) {
		return s, r.Scan(&s[0], &s[1])
	}, `SELECT holder, id FROM submission WHERE created_us < ? ORDER BY created_us LIMIT ?`, tx.Now.Add(-SubmissionKept).UnixMicro(), limit)
	if err != nil {
		return 0, err
	}
	var n int64
	for _, s := range old {
		k, err := tx.Exec(ctx, `DELETE FROM submission WHERE holder = ? AND id = ?`, s[0], s[1])
		if err != nil {
			return n, err
		}
		n += k
	}
	return n, nil
}
