package master_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/store"
	"github.com/paddock-dev/paddock/internal/store/templatedb"
	"github.com/paddock-dev/paddock/internal/template"
)

// fill writes templates with ids 0 to n-1, the later the newer, and as many jobs
// without one.
func (r *rig) fill(n, jobs int) {
	r.t.Helper()
	must(r.t, r.db.Update(r.t.Context(), func(tx *store.Tx) error {
		ctx := r.t.Context()
		for i := range n {
			kind := []string{"cubebox", "gpu"}[i%2]
			d, err := templatedb.AddDefinition(ctx, tx, template.Definition{ID: template.ID(fmt.Sprintf("tpl-%03d", i)), InstanceType: kind, ImageRef: fmt.Sprintf("registry.local/app-%d:1", i%5), Request: []byte(`{}`)})
			if err != nil {
				return err
			}
			if i%3 == 0 {
				if d, err = templatedb.MoveDefinition(ctx, tx, d, template.OnAllReady); err != nil {
					return err
				}
				if _, _, err = templatedb.ClaimAlias(ctx, tx, d, fmt.Sprintf("web-%03d", i), tx.Now); err != nil {
					return err
				}
			}
			// Three have one time: the id then decides.
			if _, err := tx.Exec(ctx, `UPDATE definition SET created_us = ? WHERE id = ?`, 1_000_000+i/3, string(d.ID)); err != nil {
				return err
			}
		}
		for i := range jobs {
			id := fmt.Sprintf("%03d", i)
			j, err := templatedb.AddJob(ctx, tx, template.Job{ID: template.JobID("job-" + id), TemplateID: template.ID("tpl-j" + id), RequestID: "req-" + id, Operation: template.OpCreate, AttemptNo: 1, ImageRef: "registry.local/job:1", Request: []byte(`{"instance_type":"` + []string{"cubebox", "gpu"}[i%2] + `"}`)})
			if err != nil {
				return err
			}
			if i%2 == 0 {
				if _, err := templatedb.MoveJob(ctx, tx, j, template.OnJobFailed); err != nil {
					return err
				}
			}
		}
		return nil
	}))
}

func names(list []cubeapi.Template) []string {
	var all []string
	for _, t := range list {
		all = append(all, t.TemplateID)
	}
	return all
}

func TestTheListComesInPages(t *testing.T) {
	onBoth(t, func(t *testing.T, dsn string) {
		r := newRig(t, dsn)
		r.fill(25, 12)
		r.start()
		var want []string
		for i := 24; i >= 0; i-- {
			want = append(want, fmt.Sprintf("tpl-%03d", i))
		}
		for i := 11; i >= 0; i-- {
			want = append(want, fmt.Sprintf("tpl-j%03d", i))
		}
		whole, next, err := r.api.TemplatesPage(t.Context(), cubeapi.TemplateQuery{})
		must(t, err)
		jobs := names(whole)
		if slices.Sort(jobs[25:]); next != "" || len(whole) != 37 || !slices.Equal(names(whole)[:25], want[:25]) {
			t.Fatalf("%d, next %q: %v", len(whole), next, names(whole))
		}
		for _, limit := range []int{1, 5, 7, 12, 25, 36, 37, 1000} {
			var got []string
			pages := 0
			for q := (cubeapi.TemplateQuery{Limit: limit}); ; pages++ {
				page, next, err := r.api.TemplatesPage(t.Context(), q)
				must(t, err)
				if len(page) > limit {
					t.Fatalf("%d on a page of %d", len(page), limit)
				}
				got = append(got, names(page)...)
				if q.Cursor = next; next == "" {
					break
				}
			}
			if !slices.Equal(got, names(whole)) || pages > 37/limit+1 {
				t.Errorf("in pages of %d: %d pages, %v", limit, pages, got)
			}
		}
	})
}

func TestTheListIsNarrowed(t *testing.T) {
	onBoth(t, func(t *testing.T, dsn string) {
		r := newRig(t, dsn)
		r.fill(25, 12)
		r.center.idle = true // what waits goes on waiting
		r.start()
		count := func(q cubeapi.TemplateQuery) int {
			t.Helper()
			q.Limit = 4
			list, err := r.api.TemplatesBy(t.Context(), q)
			must(t, err)
			return len(list)
		}
		for _, c := range []struct {
			q    cubeapi.TemplateQuery
			want int
		}{
			{cubeapi.TemplateQuery{Status: "READY"}, 9},
			{cubeapi.TemplateQuery{Status: "ready,FAILED"}, 15},
			{cubeapi.TemplateQuery{Status: "CREATING"}, 22},
			{cubeapi.TemplateQuery{Status: "DELETING"}, 0},
			{cubeapi.TemplateQuery{InstanceType: "gpu"}, 18},
			{cubeapi.TemplateQuery{InstanceType: "gpu", Status: "FAILED"}, 0},
			{cubeapi.TemplateQuery{AliasPrefix: "web-00"}, 4},
			{cubeapi.TemplateQuery{AliasPrefix: "web_"}, 0},
			{cubeapi.TemplateQuery{Image: "app-3"}, 5},
			{cubeapi.TemplateQuery{Image: "local/job"}, 12},
			{cubeapi.TemplateQuery{Image: "%"}, 0},
			{cubeapi.TemplateQuery{Image: "app-3", Status: "READY"}, 2},
		} {
			if got := count(c.q); got != c.want {
				t.Errorf("%+v: %d, want %d", c.q, got, c.want)
			}
		}
	})
}

func TestABadPageIsRefused(t *testing.T) {
	r := newRig(t, sqlite(t))
	r.start()
	for _, query := range []string{"limit=0", "limit=1001", "limit=x", "cursor=x", "cursor=e30", "status=GOOD", "image=" + strings.Repeat("x", 2000)} {
		for _, path := range []string{cubeapi.PathTemplate, cubeapi.PathAudit} {
			if path == cubeapi.PathAudit && !strings.HasPrefix(query, "limit") && !strings.HasPrefix(query, "cursor") {
				continue
			}
			if status, body := call(t, r, "GET "+path+"?"+query, http.Header{cubeapi.HeaderAPIKey: {apiKey}}); status != http.StatusBadRequest || !strings.Contains(body, "130400") {
				t.Errorf("%s?%.20s: %d %s", path, query, status, body)
			}
		}
	}
}

// Many move one alias by way of two masters: it is always one template's, and
// each call moves it or is refused with a conflict.
func TestAnAliasHasOneHolder(t *testing.T) {
	onBoth(t, func(t *testing.T, dsn string) {
		r, _ := ready(t, dsn, 1, plenty)
		other := newFace(t)
		other.show(watched(t, r.process()))
		clients := []*cubeapi.Client{r.api, cubeapi.NewClient(other.URL, apiKey)}
		ids := []string{r.template().TemplateID, r.template().TemplateID, r.template().TemplateID}
		var group sync.WaitGroup
		moved := make([]int, len(ids))
		var mu sync.Mutex
		for i := range 4 * len(ids) {
			group.Go(func() {
				d, err := clients[i%2].SetAlias(t.Context(), ids[i%len(ids)], "prod")
				mu.Lock()
				defer mu.Unlock()
				switch {
				case err == nil && d.Alias == "prod":
					moved[i%len(ids)]++
				case fault.Of(err).Class != fault.Conflict:
					t.Errorf("call %d: %+v %v", i, d, err)
				}
			})
		}
		group.Wait()
		holder, err := r.api.Template(t.Context(), "prod")
		must(t, err)
		if moved[slices.Index(ids, holder.TemplateID)] == 0 {
			t.Errorf("%s has it, and no call gave it: %v", holder.TemplateID, moved)
		}
		for _, id := range ids {
			d, err := r.api.Template(t.Context(), id)
			must(t, err)
			if (d.Alias == "prod") != (id == holder.TemplateID) {
				t.Errorf("template %s: alias %q", id, d.Alias)
			}
		}
	})
}

// The rules of an alias, each with its answer.
func TestTheRulesOfAnAlias(t *testing.T) {
	r, _ := ready(t, sqlite(t), 1, plenty)
	d, err := r.api.Template(t.Context(), "base")
	must(t, err)
	state := func(s template.State) {
		must(t, r.db.Update(t.Context(), func(tx *store.Tx) error {
			_, err := tx.Exec(t.Context(), `UPDATE definition SET state = ? WHERE id = ?`, string(s), d.TemplateID)
			return err
		}))
	}
	path := strings.Replace(cubeapi.PathAlias, "{template_id}", d.TemplateID, 1)
	for _, c := range []struct {
		state  template.State
		body   string
		status int
		has    string
	}{
		{template.Ready, `{"alias":"new"}`, 200, `"alias":"new"`},
		{template.Ready, `{"alias":"new"}`, 200, `"replicas":[{`}, // answers as the template itself does
		{template.PartiallyReady, `{"alias":"part"}`, 200, `"alias":"part"`},
		{template.Failed, `{"alias":"no"}`, 409, "130409"},
		{template.Creating, `{"alias":"no"}`, 409, "130409"},
		{template.Failed, `{}`, 200, `"ret_code":200`},
		{template.Failed, ``, 200, `"ret_code":200`}, // nothing to clear is nothing to refuse
		{template.Ready, `{"alias":"tpl-x"}`, 400, "130400"},
		{template.Ready, `{"alias":"snap-x"}`, 400, "130400"},
		{template.Ready, `{"alias":7}`, 400, "130400"},
		{template.Ready, `{"alias":""}`, 200, `"ret_code":200`},
		{template.Ready, `null`, 200, `"ret_code":200`},
		{template.Deleting, ``, 409, "130409"},
	} {
		state(c.state)
		if c.state == template.Deleting { // and before a sweep ends it
			status, body := put(t, r, path, c.body)
			if status != c.status && status != 404 {
				t.Errorf("%s %s: %d %s", c.state, c.body, status, body)
			}
			continue
		}
		if status, body := put(t, r, path, c.body); status != c.status || !strings.Contains(body, c.has) {
			t.Errorf("%s %s: %d %s", c.state, c.body, status, body)
		}
	}
}
