package templatedb

import (
	"context"
	"encoding/json"
	"strings"
	"time"

	"github.com/paddock-dev/paddock/internal/platform/id"
	"github.com/paddock-dev/paddock/internal/store"
	"github.com/paddock-dev/paddock/internal/template"
)

// maxAudited is what the columns of names take.
const maxAudited = 190

// AddAudit notes who changed what, with the change itself.
func AddAudit(ctx context.Context, tx *store.Tx, e template.AuditEntry) error {
	detail, err := json.Marshal(e.Detail)
	if err != nil {
		return err
	}
	cut := func(s string) []byte { return []byte(s[:min(len(s), maxAudited)]) }
	return tx.Insert(ctx, nil, `INSERT INTO audit (id, at_us, actor, action, subject, request_id, detail) VALUES (?, ?, ?, ?, ?, ?, ?)`,
		id.New("aud-"), tx.Now.UnixMicro(), cut(e.Actor), e.Action, cut(e.Subject), cut(e.RequestID), detail)
}

// Place is where a page of a list ended: the next begins behind it.
type Place struct {
	At time.Time
	ID string
}

// behind is the condition for rows of a list, newest first, that stand behind p.
func (p Place) behind(at, id string) (string, []any) {
	if p.ID == "" {
		return "1 = 1", nil
	}
	return "(" + at + " < ? OR (" + at + " = ? AND " + id + " < ?))", []any{p.At.UnixMicro(), p.At.UnixMicro(), p.ID}
}

// ListAudit returns what was changed, newest first, at most limit (0: 100).
// subject, when not empty, narrows it to one thing.
func ListAudit(ctx context.Context, tx *store.Tx, subject string, after Place, limit int) ([]template.AuditEntry, error) {
	where, args := after.behind("at_us", "id")
	if subject != "" {
		where, args = where+" AND subject = ?", append(args, []byte(subject))
	}
	return store.Collect(ctx, tx, func(r store.Scanner) (e template.AuditEntry, err error) {
		var at int64
		var detail []byte
		if err := r.Scan(&e.ID, &at, &e.Actor, &e.Action, &e.Subject, &e.RequestID, &detail); err != nil {
			return e, err
		}
		e.At = time.UnixMicro(at)
		return e, json.Unmarshal(detail, &e.Detail)
	}, `SELECT id, at_us, actor, action, subject, request_id, detail FROM audit WHERE `+where+` ORDER BY at_us DESC, id DESC LIMIT ?`, append(args, limitOf(limit))...)
}

// ForgetAudit removes entries older than the given time, at most limit.
func ForgetAudit(ctx context.Context, tx *store.Tx, before time.Time, limit int) (int, error) {
	return forget(ctx, tx, limit, `SELECT id FROM audit WHERE at_us < ? ORDER BY at_us LIMIT ?`, `DELETE FROM audit WHERE id = ?`, before.UnixMicro())
}

// forget deletes the rows that a query of ids finds.
func forget(ctx context.Context, tx *store.Tx, limit int, find, remove string, args ...any) (int, error) {
	ids, err := store.Collect(ctx, tx, func(r store.Scanner) (id string, err error) { return id, r.Scan(&id) }, find, append(args, limitOf(limit))...)
	if err != nil || len(ids) == 0 {
		return 0, err
	}
	rest := make([]any, len(ids))
	for i, id := range ids {
		rest[i] = id
	}
	_, err = tx.Exec(ctx, strings.Replace(remove, "id = ?", in("id", len(ids)), 1), rest...)
	return len(ids), err
}
