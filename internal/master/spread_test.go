package master_test

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/hostpb"
	"github.com/paddock-dev/paddock/internal/platform/config"
)

// watch lets a test see how many hosts fetch at once and how many had it then.
type watch struct {
	mu              sync.Mutex
	active, holders int
	over            bool
}

func (w *watch) on(h *fakeHost) {
	h.set(func(h *fakeHost) {
		h.ensure = func(context.Context) error {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.active++
			w.over = w.over || w.active > max(1, w.holders)
			return nil
		}
		h.fetched = func() {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.active, w.holders = w.active-1, w.holders+1
		}
	})
}

// The first host fetches from the store; the others are told who has it, and no
// more of them begin than there are to ask.
func TestHostsTakeArtifactsFromEachOther(t *testing.T) {
	r := newRig(t, sqlite(t))
	r.start(func(p *running) { p.SpreadWait(time.Hour) })
	var w watch
	var hosts []*fakeHost
	for i := range 4 {
		hosts = append(hosts, r.host(i, plenty))
		w.on(hosts[i])
	}
	r.template()
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.over {
		t.Error("more hosts fetched at once than had it")
	}
	var told []int
	for _, h := range hosts {
		q := h.asked(t)
		told = append(told, len(q.GetPeers()))
		for _, at := range q.GetPeers() {
			if at == h.address() || !slices.ContainsFunc(hosts, func(o *fakeHost) bool { return o.address() == at }) {
				t.Errorf("host %s is told of %s", h.id, at)
			}
		}
	}
	slices.Sort(told)
	if told[0] != 0 || told[1] != 1 || told[2] < 1 || told[3] < 2 {
		t.Errorf("they were told of %v peers", told)
	}
}

// A host that joins later is told of those that had it before.
func TestLateHostsAreToldOfHolders(t *testing.T) {
	r, hosts := ready(t, sqlite(t), 2, plenty)
	late := r.host(2, plenty)
	r.template(alias("again"), func(q *cubeapi.FromImageRequest) { q.DistributionScope = []string{string(late.id)} })
	got := late.asked(t).GetPeers()
	slices.Sort(got)
	want := []string{hosts[0].address(), hosts[1].address()}
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("told of %v, want %v", got, want)
	}
}

// One host that hangs holds the others up for a while and no longer; one that
// fails at once not at all.
func TestAHangingHostDoesNotHoldUpTheRest(t *testing.T) {
	r := newRig(t, sqlite(t), func(c *config.Config) { c.Master.DistributeTimeout = time.Hour })
	r.start()
	first, free := make(chan struct{}, 4), make(chan struct{})
	first <- struct{}{}
	var hosts []*fakeHost
	for i := range 3 {
		hosts = append(hosts, r.host(i, plenty))
		hosts[i].set(func(h *fakeHost) {
			h.ensure = func(ctx context.Context) error {
				select {
				case <-first: // whoever it is
					<-free
					return fault.New(fault.DataDir, "it hung")
				default:
					return nil
				}
			}
		})
	}
	j, err := r.api.FromImage(t.Context(), image())
	must(t, err)
	eventually(t, "the others have it", func() bool {
		n := 0
		for _, h := range hosts {
			h.mu.Lock()
			n += len(h.artifacts)
			h.mu.Unlock()
		}
		return n == 2
	})
	close(free)
	if j = r.ended(j.JobID); j.Status != cubeapi.StatusReady || j.ReadyNodeCount != 2 {
		t.Errorf("%+v", j)
	}
}

// Where hosts download from is what the configuration says, whatever name a
// request came by.
func TestDownloadsComeFromTheConfiguredAddress(t *testing.T) {
	r := newRig(t, sqlite(t))
	r.start()
	h := r.host(0, plenty)
	body, err := json.Marshal(image(alias("poisoned")))
	must(t, err)
	q, err := http.NewRequestWithContext(t.Context(), http.MethodPost, r.front.URL+cubeapi.PathFromImage, bytes.NewReader(body))
	must(t, err)
	q.Host = "evil.example"
	q.Header.Set(cubeapi.HeaderAPIKey, apiKey)
	q.Header.Set("X-Forwarded-Host", "evil.example")
	answer, err := http.DefaultClient.Do(q)
	must(t, err)
	must(t, answer.Body.Close())
	eventually(t, "the host holds it", func() bool { return h.called("ensure") > 0 })
	for _, link := range []string{h.asked(t).GetUrl(), h.asked(t).GetManifestUrl()} {
		if !strings.HasPrefix(link, r.cfg.Master.DownloadBaseURL+"/cube/template/artifact/") {
			t.Errorf("the host is sent to %s", link)
		}
	}
}

// asked returns the first request to hold an artifact.
func (h *fakeHost) asked(t *testing.T) *hostpb.EnsureArtifactRequest {
	t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.ensured) == 0 {
		t.Fatalf("host %s was never asked", h.id)
	}
	return h.ensured[0]
}
