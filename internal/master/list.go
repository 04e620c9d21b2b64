package master

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"net/http"
	"strings"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/host"
	"github.com/paddock-dev/paddock/internal/platform/serve"
	"github.com/paddock-dev/paddock/internal/sandbox"
	"github.com/paddock-dev/paddock/internal/store"
	"github.com/paddock-dev/paddock/internal/store/sandboxdb"
	"github.com/paddock-dev/paddock/internal/store/templatedb"
	"github.com/paddock-dev/paddock/internal/template"
)

// sandboxQuery reads which sandboxes a request asks for. Without limit and
// cursor it is all of them, up to a bound.
func sandboxQuery(r *http.Request) (f sandboxdb.Filter, name string, err error) {
	q := r.URL.Query()
	f = sandboxdb.Filter{States: liveStates, HostID: host.ID(q.Get("host_id")), Limit: listLimit}
	if q.Get("all") == "true" {
		f.States = nil
	}
	if given := q["state"]; len(given) > 0 {
		f.States = nil
		for _, words := range given {
			for word := range strings.SplitSeq(words, ",") {
				s, err := cubeapi.SandboxStatus.Of(strings.ToUpper(strings.TrimSpace(word)))
				if err != nil {
					return f, "", err
				}
				f.States = append(f.States, s)
			}
		}
	}
	for _, pair := range q["label"] {
		k, v, ok := strings.Cut(pair, "=")
		if !ok || k == "" {
			return f, "", fault.New(fault.InvalidInput, "label %.64q: must be key=value", pair)
		}
		if f.Labels == nil {
			f.Labels = map[string]string{}
		}
		if had, twice := f.Labels[k]; twice && had != v {
			return f, "", fault.New(fault.InvalidInput, "label %.64q: no sandbox has it twice", k)
		}
		f.Labels[k] = v
	}
	if len(f.Labels) > maxAnnotations {
		return f, "", fault.New(fault.InvalidInput, "%d labels, at most %d", len(f.Labels), maxAnnotations)
	}
	if q.Get("limit") != "" || q.Get("cursor") != "" {
		if f.Limit, err = limitOf(r); err != nil {
			return f, "", err
		}
	}
	if given := q.Get("cursor"); given != "" {
		b, err := base64.RawURLEncoding.DecodeString(given)
		if err == nil {
			err = json.Unmarshal(b, &f.After)
		}
		if err != nil || f.After.ID == "" || f.After.At.IsZero() {
			return f, "", fault.New(fault.InvalidInput, "cursor: it is none that this list gave")
		}
	}
	return f, q.Get("template_id"), nil
}

// placeAfter is the cursor behind a sandbox.
func placeAfter(s sandbox.Sandbox) string {
	b, err := json.Marshal(sandboxdb.Place{At: s.CreatedAt, ID: s.ID})
	if err != nil {
		panic(err) // a time and a text
	}
	return base64.RawURLEncoding.EncodeToString(b)
}

// serveList answers a page of sandboxes. Its order is that of their making, so
// that a cursor stays good while others come and go.
func (m *Master) serveList(w http.ResponseWriter, r *http.Request) {
	answer := cubeapi.SandboxListAnswer{Envelope: cubeapi.OK(requestID(r))}
	f, name, err := sandboxQuery(r)
	if err == nil {
		err = m.db.View(r.Context(), func(tx *store.Tx) (err error) {
			answer.Data, answer.Next, answer.Partial, err = m.sandboxPage(r.Context(), tx, f, name)
			return err
		})
	}
	if err != nil {
		serve.WriteError(w, r, err)
		return
	}
	serve.WriteJSON(w, http.StatusOK, answer)
}

func (m *Master) sandboxPage(ctx context.Context, tx *store.Tx, f sandboxdb.Filter, name string) (page []cubeapi.Sandbox, next string, partial []string, err error) {
	page = []cubeapi.Sandbox{}
	if name != "" { // by id, also of a template that is gone; else by alias
		d, err := templatedb.Resolve(ctx, tx, name)
		if err != nil && !errors.Is(err, fault.TemplateNotFound) && !errors.Is(err, fault.TemplateNotReady) {
			return nil, "", nil, err
		}
		if f.TemplateID = d.ID; d.ID == "" {
			f.TemplateID = template.ID(name)
			if bad := template.CheckID(name) != nil || !strings.HasPrefix(name, template.IDPrefix); bad {
				return page, "", nil, nil
			}
		}
	}
	hosts, err := sandboxdb.ListHosts(ctx, tx)
	if err != nil {
		return nil, "", nil, err
	}
	limit := f.Limit
	f.Limit++
	list, err := sandboxdb.ListSandboxes(ctx, tx, f)
	if len(list) > limit {
		list, next = list[:limit], placeAfter(list[limit-1])
	}
	for _, s := range list {
		page = append(page, showSandbox(s))
	}
	return page, next, m.silent(hosts, list, tx.Now), err
}
