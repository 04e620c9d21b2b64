package master_test

import (
	"slices"
	"testing"
	"time"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/fault"
)

// A proxy is told where a sandbox is in each state, hears of each change, also
// of those that another master made, and wakes what traffic may wake.
func TestProxiesHearOfRoutes(t *testing.T) {
	onBoth(t, func(t *testing.T, dsn string) {
		r := newRig(t, dsn)
		r.start()
		second := r.process()
		h := r.host(0, plenty)
		r.template(alias("box"))
		begin, err := h.tell.RouteEvents(t.Context(), "", 0, 0)
		must(t, err)
		if begin.Feed == "" || !begin.Reset {
			t.Errorf("a feed begins with %+v", begin)
		}
		next := begin.Next
		hears := func(feed, id string) {
			t.Helper()
			eventually(t, "the change is heard of", func() bool {
				a, err := h.tell.RouteEvents(t.Context(), feed, next, time.Second)
				must(t, err)
				next = a.Next
				return a.Reset || slices.Contains(a.SandboxIDs, id)
			})
		}
		id := r.live(func(q *cubeapi.SandboxCreateRequest) { q.AutoResume = true })
		hears(begin.Feed, id)
		route, err := h.tell.Route(t.Context(), id)
		must(t, err)
		if route.Status != "RUNNING" || route.HostID != string(h.id) || route.HostIP != "127.0.0.1" || route.SandboxIP != "10.0.0.2" || route.Generation != 1 || !route.AutoResume || len(route.Ports) != 0 {
			t.Errorf("route: %+v", route)
		}
		other := newFace(t)
		other.show(watched(t, second))
		_, err = cubeapi.NewClient(other.URL, apiKey).Pause(t.Context(), cubeapi.PauseRequest{SandboxID: id})
		must(t, err)
		hears(begin.Feed, id)
		if route, err = h.tell.Route(t.Context(), id); err != nil || route.Status != "PAUSED" || route.SandboxIP != "" {
			t.Errorf("paused: %+v, %v", route, err)
		}
		if route, err = h.tell.Wake(t.Context(), id); err != nil || route.Status != "RUNNING" || route.Generation != 3 {
			t.Errorf("woken: %+v, %v", route, err)
		}
		must(t, r.api.DeleteSandbox(t.Context(), id))
		hears(begin.Feed, id)
		if route, err = h.tell.Route(t.Context(), id); err != nil || route.Status != "TERMINATED" || route.Reason != "request" {
			t.Errorf("ended: %+v, %v", route, err)
		}
		_, err = h.tell.Route(t.Context(), "i00000000000000000000000f")
		refused(t, err, fault.SandboxNotFound)
		_, err = h.tell.Wake(t.Context(), id)
		refused(t, err, fault.SandboxGone)
		if a, err := h.tell.RouteEvents(t.Context(), "feed-of-another-master", 7, 0); err != nil || !a.Reset {
			t.Errorf("of another feed: %+v, %v", a, err)
		}
	})
}
