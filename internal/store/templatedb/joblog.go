package templatedb

import (
	"context"
	"database/sql"
	"time"

	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/store"
	"github.com/paddock-dev/paddock/internal/template"
)

const (
	// MaxLogLines is how many lines of a job are kept; one more says that the
	// rest was cut.
	MaxLogLines = 5000
	// MaxLogLine is how many bytes of a line are kept.
	MaxLogLine = 2048
)

// LogLine is one line of what is said of a job.
type LogLine struct {
	Seq    int64
	At     time.Time
	Source string // the role that said it
	Line   string
}

// AddLog adds lines to what is said of a job. Who loses a race for a number
// gets fault.VersionConflict and runs its transaction again.
func AddLog(ctx context.Context, tx *store.Tx, id template.JobID, lines ...LogLine) error {
	if len(lines) == 0 {
		return nil
	}
	var first, last sql.NullInt64
	if _, err := tx.Row(ctx, `SELECT (SELECT MIN(seq) FROM job_log WHERE job_id = ?), (SELECT MAX(seq) FROM job_log WHERE job_id = ?)`, []any{string(id), string(id)}, &first, &last); err != nil {
		return err
	}
	// Lines that were forgotten do not count.
	most := max(first.Int64-1, 0) + MaxLogLines
	for _, l := range lines {
		last.Int64++
		if last.Int64 > most+1 {
			return nil
		}
		if last.Int64 == most+1 {
			l.Line = "the log is cut here: it has as many lines as are kept"
		}
		err := tx.Insert(ctx, fault.VersionConflict, `INSERT INTO job_log (job_id, seq, at_us, source, line) VALUES (?, ?, ?, ?, ?)`,
			string(id), last.Int64, l.At.UnixMicro(), l.Source, []byte(fault.Clip(l.Line, MaxLogLine)))
		if err != nil {
			return err
		}
	}
	return nil
}

// ForgetLog removes lines that were said before the given time, at most limit: a
// job that lasts, as a template does, does not keep them for ever. The last line of
// a job stays as long as the job: the numbers go on from it.
func ForgetLog(ctx context.Context, tx *store.Tx, before time.Time, limit int) (int, error) {
	type line struct {
		job template.JobID
		seq int64
	}
	old, err := store.Collect(ctx, tx, func(r store.Scanner) (l line, err error) { return l, r.Scan(&l.job, &l.seq) },
		`SELECT job_id, seq FROM job_log WHERE at_us < ?
			AND NOT (seq = (SELECT MAX(l.seq) FROM job_log l WHERE l.job_id = job_log.job_id) AND EXISTS (SELECT 1 FROM job j WHERE j.id = job_log.job_id)) ORDER BY at_us, job_id, seq LIMIT ?`, before.UnixMicro(), limitOf(limit))
	for _, l := range old {
		if err == nil {
			_, err = tx.Exec(ctx, `DELETE FROM job_log WHERE job_id = ? AND seq = ?`, string(l.job), l.seq)
		}
	}
	return len(old), err
}

// JobLog returns what is said of a job behind the line numbered after, at most
// limit lines.
func JobLog(ctx context.Context, tx *store.Tx, id template.JobID, after int64, limit int) ([]LogLine, error) {
	return store.Collect(ctx, tx, func(r store.Scanner) (l LogLine, err error) {
		var at int64
		err = r.Scan(&l.Seq, &at, &l.Source, &l.Line)
		l.At = time.UnixMicro(at)
		return l, err
	}, `SELECT seq, at_us, source, line FROM job_log WHERE job_id = ? AND seq > ? ORDER BY seq LIMIT ?`, string(id), after, limitOf(limit))
}
