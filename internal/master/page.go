package master

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/platform/serve"
	"github.com/paddock-dev/paddock/internal/store"
	"github.com/paddock-dev/paddock/internal/store/templatedb"
	"github.com/paddock-dev/paddock/internal/template"
)

const (
	pageDefault = 100
	pageMost    = 1000
	// pageLooks bounds how often more rows are read to fill one page.
	pageLooks = 20
)

// cursor is where a page ended. Pending: among the templates that only a job
// tells of, which come last.
type cursor struct {
	templatedb.Place
	Pending bool `json:",omitempty"`
}

func (c cursor) String() string {
	b, err := json.Marshal(c)
	if err != nil {
		panic(err) // a time and two plain values
	}
	return base64.RawURLEncoding.EncodeToString(b)
}

// pageOf reads what page of a list a request asks for.
func pageOf(r *http.Request) (limit int, after cursor, err error) {
	if limit, err = limitOf(r); err != nil {
		return 0, after, err
	}
	if given := r.URL.Query().Get("cursor"); given != "" {
		b, err := base64.RawURLEncoding.DecodeString(given)
		if err == nil {
			err = json.Unmarshal(b, &after)
		}
		if err != nil || after.ID == "" || after.At.IsZero() {
			return 0, after, fault.New(fault.InvalidInput, "cursor: it is none that this list gave")
		}
	}
	return limit, after, nil
}

func limitOf(r *http.Request) (limit int, err error) {
	given := r.URL.Query().Get("limit")
	if given == "" {
		return pageDefault, nil
	}
	if limit, err = strconv.Atoi(given); err != nil || limit < 1 || limit > pageMost {
		return 0, fault.New(fault.InvalidInput, "limit %.20q: must be 1 to %d", given, pageMost)
	}
	return limit, nil
}

// filterOf reads which templates a request asks for.
func filterOf(r *http.Request) (f templatedb.Filter, err error) {
	q := r.URL.Query()
	f = templatedb.Filter{InstanceType: q.Get("instance_type"), AliasPrefix: q.Get("alias"), Image: q.Get("image")}
	if len(f.InstanceType) > maxKind || len(f.AliasPrefix) > maxKind || len(f.Image) > maxRef {
		return f, fault.New(fault.InvalidInput, "instance_type, alias or image is longer than any can be")
	}
	if words := q.Get("status"); words != "" {
		for word := range strings.SplitSeq(words, ",") {
			s, err := cubeapi.TemplateStatus.Of(strings.ToUpper(strings.TrimSpace(word)))
			if err != nil {
				return f, err
			}
			f.States = append(f.States, s)
		}
	}
	return f, nil
}

// serveTemplates answers one template when template_id is given, else a page.
func (m *Master) serveTemplates(w http.ResponseWriter, r *http.Request) {
	if name := r.URL.Query().Get("template_id"); name != "" {
		m.serveTemplate(w, r, name)
		return
	}
	answer := cubeapi.TemplateListAnswer{Envelope: cubeapi.OK(requestID(r))}
	limit, after, err := pageOf(r)
	var f templatedb.Filter
	if err == nil {
		f, err = filterOf(r)
	}
	if err == nil {
		err = m.db.View(r.Context(), func(tx *store.Tx) (err error) {
			answer.Data, answer.NextCursor, err = templatePage(r.Context(), tx, f, limit, after)
			return err
		})
	}
	if err != nil {
		serve.WriteError(w, r, err)
		return
	}
	serve.WriteJSON(w, http.StatusOK, answer)
}

// templatePage returns the templates behind a cursor, newest first, and then
// what only a job tells of.
func templatePage(ctx context.Context, tx *store.Tx, f templatedb.Filter, limit int, after cursor) (page []cubeapi.Template, next string, err error) {
	page = []cubeapi.Template{}
	f.Limit = limit + 1
	if !after.Pending {
		f.After = after.Place
		list, err := templatedb.PageOfDefinitions(ctx, tx, f)
		if err != nil {
			return nil, "", err
		}
		if len(list) > limit {
			last := list[limit-1]
			list, next = list[:limit], cursor{Place: templatedb.Place{At: last.CreatedAt, ID: string(last.ID)}}.String()
		}
		if page, err = showTemplates(ctx, tx, list); err != nil || next != "" {
			return page, next, err
		}
		after = cursor{}
	}
	f.After = after.Place
	for range pageLooks {
		jobs, err := templatedb.PageOfPending(ctx, tx, f)
		if err != nil {
			return nil, "", err
		}
		for _, j := range jobs {
			if len(page) == limit {
				return page, cursor{Place: f.After, Pending: true}.orFirst(), nil
			}
			f.After = templatedb.Place{At: j.CreatedAt, ID: string(j.ID)}
			if t := showPending(j); f.InstanceType == "" || t.InstanceType == f.InstanceType {
				page = append(page, t)
			}
		}
		if len(jobs) < f.Limit {
			return page, "", nil
		}
	}
	return page, cursor{Place: f.After, Pending: true}.String(), nil
}

// orFirst is the cursor, or that of the beginning of what only jobs tell of when
// nothing of it was shown yet.
func (c cursor) orFirst() string {
	if c.ID == "" {
		c.At, c.ID = endOfTime, "~"
	}
	return c.String()
}

// endOfTime is later than any row.
var endOfTime = time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)

func showTemplates(ctx context.Context, tx *store.Tx, list []template.Definition) ([]cubeapi.Template, error) {
	ids := make([]template.ArtifactID, 0, len(list))
	for _, d := range list {
		ids = append(ids, d.ArtifactID)
	}
	backends, err := templatedb.Backends(ctx, tx, ids)
	page := make([]cubeapi.Template, 0, len(list))
	for _, d := range list {
		t := showTemplate(d)
		t.Backend = backends[d.ArtifactID]
		page = append(page, t)
	}
	return page, err
}
