package master_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/store"
	"github.com/paddock-dev/paddock/internal/store/templatedb"
	"github.com/paddock-dev/paddock/internal/template"
)

// Jobs that cannot go on yet, since hosts may still come, hide none behind them:
// more than a round of the sweep takes are in front.
func TestJobsThatWaitHoldUpNone(t *testing.T) {
	r := newRig(t, sqlite(t))
	r.start()
	r.host(0, plenty)
	r.crash()
	a := r.leave("of all", nil, 0)
	const many = 150
	id := func(i int) string { return fmt.Sprintf("%024d", i) }
	must(t, r.db.Update(t.Context(), func(tx *store.Tx) error {
		ctx := t.Context()
		for i := range many + 1 {
			scope := `["nobody"]`
			if i == many {
				scope = `[]`
			}
			j, err := templatedb.AddJob(ctx, tx, template.Job{
				ID: template.JobID("job-" + id(i)), TemplateID: template.ID("tpl-" + id(i)), RequestID: id(i), Operation: template.OpCreate, AttemptNo: 1, ArtifactID: a.ID,
				Request: []byte(`{"instance_type":"cubebox","writable_layer_size":"1Gi","distribution_scope":` + scope + `}`),
			})
			if err == nil {
				_, err = templatedb.MoveJob(ctx, tx, j, template.OnJobBuilt)
			}
			if err == nil {
				_, err = tx.Exec(ctx, `UPDATE job SET changed_us = ? WHERE id = ?`, 1000+i, string(j.ID))
			}
			if err != nil {
				return err
			}
		}
		return nil
	}))
	r.start(func(p *running) { p.HostGrace(time.Hour) })
	if j := r.ended("job-" + id(many)); j.Status != cubeapi.StatusReady {
		t.Errorf("the last: %+v", j)
	}
	r.view(func(ctx context.Context, tx *store.Tx) error {
		list, err := templatedb.ListJobs(ctx, tx, templatedb.JobFilter{States: []template.JobState{template.JobBuilt}, Limit: 2 * many})
		if len(list) != many {
			t.Errorf("%d wait for their hosts, want %d", len(list), many)
		}
		return err
	})
	_, err := r.api.Template(t.Context(), "tpl-"+id(many))
	if fault.Of(err) == fault.TemplateNotFound {
		t.Error("it has no template")
	}
}

// Public jobs that wait their turn hide no private one behind them: only the
// master can hand over its credentials again.
func TestPublicJobsThatWaitHideNoPrivateOne(t *testing.T) {
	r := newRig(t, sqlite(t))
	r.center.set(func(c *fakeCenter) { c.idle = true })
	r.update(func(ctx context.Context, tx *store.Tx) error {
		if _, err := tx.Acquire(ctx, template.CentersSubject, "another", time.Hour); err != nil {
			return err
		}
		for i := range 150 {
			name := fmt.Sprintf("%024d", i)
			j, err := templatedb.AddJob(ctx, tx, template.Job{
				ID: template.JobID("job-" + name), TemplateID: template.ID("tpl-" + name), RequestID: name, Operation: template.OpCreate, AttemptNo: 1,
				Request: []byte(`{"instance_type":"cubebox","writable_layer_size":"1Gi"}`),
			})
			if err == nil {
				_, err = tx.Exec(ctx, `UPDATE job SET changed_us = ? WHERE id = ?`, 1000+i, string(j.ID))
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
	r.start()
	j, err := r.api.FromImage(t.Context(), image(func(q *cubeapi.FromImageRequest) { q.RegistryUsername, q.RegistryPassword = "u", "p" }))
	must(t, err)
	r.taken(j.JobID)
	before := len(r.center.builds()) // a template centre that is begun anew knows nothing of it
	eventually(t, "it is handed over again", func() bool { return len(r.center.builds()) > before })
}
