package storetest

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/paddock-dev/paddock/internal/store"
	"github.com/paddock-dev/paddock/internal/store/templatedb"
	"github.com/paddock-dev/paddock/internal/template"
)

// theQueueReadsNoMore: a look at the queue costs the rows that it returns, not
// those of all that waits, and none of the private jobs before them.
func theQueueReadsNoMore(t *testing.T, fresh Fresh) {
	s := open(t, fresh(t))
	const waiting, page = 600, 5
	update(t, s, func(ctx context.Context, tx *store.Tx) error {
		for i := range waiting {
			j := job(i)
			j.Priority, j.Request = i%3, fmt.Appendf(nil, `{"private": %t}`, i%3 > 0)
			if _, err := templatedb.AddJob(ctx, tx, j); err != nil {
				return err
			}
		}
		return nil
	})
	var first, next []template.Job
	view(t, s, func(ctx context.Context, tx *store.Tx) (err error) {
		before := rowsRead(ctx, t, s, tx)
		first, err = templatedb.Queue(ctx, tx, templatedb.Waiting, nil, page)
		if read := rowsRead(ctx, t, s, tx) - before; read > 2*page {
			t.Errorf("it read %d rows for %d", read, page)
		}
		if err == nil {
			next, err = templatedb.Queue(ctx, tx, templatedb.Waiting, &first[page-1], page)
		}
		return err
	})
	var ids []template.JobID
	for _, j := range append(first, next...) {
		ids = append(ids, j.ID)
	}
	var want []template.JobID
	for i := range 2 * page {
		want = append(want, job(3*i).ID)
	}
	wantIDs(t, "the queue", ids, want...)
	if s.Dialect() == "sqlite" {
		view(t, s, func(ctx context.Context, tx *store.Tx) error {
			plan, err := store.Collect(ctx, tx, func(r store.Scanner) (step string, err error) {
				var id, parent, unused int64
				return step, r.Scan(&id, &parent, &unused, &step)
			}, `EXPLAIN QUERY PLAN `+templatedb.QueueQuery(templatedb.Waiting, ""), page)
			if text := strings.Join(plan, "; "); err == nil && (!strings.Contains(text, "job_queue (state=? AND private=?)") || strings.Contains(text, "TEMP B-TREE")) {
				t.Errorf("plan: %s", text)
			}
			return err
		})
	}
}

// rowsRead is how many rows this session has read by an index or in a row, where
// the database counts them.
func rowsRead(ctx context.Context, t *testing.T, s *store.Store, tx *store.Tx) (n int64) {
	t.Helper()
	if s.Dialect() == "sqlite" {
		return 0
	}
	list, err := store.Collect(ctx, tx, func(r store.Scanner) (n int64, err error) {
		var name string
		return n, r.Scan(&name, &n)
	}, `SHOW SESSION STATUS WHERE variable_name IN ('Handler_read_next', 'Handler_read_prev', 'Handler_read_rnd', 'Handler_read_rnd_next', 'Handler_read_key')`)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range list {
		n += m
	}
	return n
}
