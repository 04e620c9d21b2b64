package cubelet_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/cubelet/runtime/runtimetest"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/host"
	"github.com/paddock-dev/paddock/internal/platform/config"
	"github.com/paddock-dev/paddock/internal/platform/serve"
)

// books is the part of a master that hosts report to.
type books struct {
	mu         sync.Mutex
	registered []cubeapi.HostRegisterRequest
	last       cubeapi.HostStatusRequest
	reports    int
	known      bool
	quota      *host.Quota // told with each answer; nil: none is
	revisions  []int64     // of the reports since the last registration
	tokens     map[string]bool
}

func (b *books) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.tokens[r.Header.Get(cubeapi.HeaderHostToken)] = true
	switch r.URL.Path {
	case cubeapi.PathHostRegister:
		var m cubeapi.HostRegisterRequest
		_ = json.NewDecoder(r.Body).Decode(&m)
		b.registered, b.known, b.revisions = append(b.registered, m), true, []int64{m.Revision}
	case "/internal/meta/nodes/host-under-test/status":
		if !b.known {
			serve.WriteError(rw, r, fault.New(fault.HostUnknown, "host"))
			return
		}
		b.last = cubeapi.HostStatusRequest{}
		_ = json.NewDecoder(r.Body).Decode(&b.last)
		b.reports++
		b.revisions = append(b.revisions, b.last.Revision)
		serve.WriteJSON(rw, http.StatusOK, cubeapi.HostStatusAnswer{Envelope: cubeapi.OK(""), Quota: b.quota})
		return
	default:
		http.NotFound(rw, r)
		return
	}
	serve.WriteJSON(rw, http.StatusOK, cubeapi.OK(""))
}

func (b *books) look(f func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	f()
}

// reportingTo makes the cubelet, once it is opened, report to b.
func (w *world) reportingTo(b *books) *world {
	master := httptest.NewServer(b)
	w.t.Cleanup(master.Close)
	w.cfg.Master.Addr, w.cfg.Auth.HostToken, w.cfg.Cubelet.HeartbeatInterval = master.URL, config.Secret("the host's token"), 50_000_000
	return w
}

func TestHostReports(t *testing.T) {
	b := &books{tokens: map[string]bool{}}
	w := newWorld(t).reportingTo(b).open()
	reported := func(what string, ok func() bool) {
		t.Helper()
		runtimetest.Eventually(t, what, func() (is bool) { b.look(func() { is = ok() }); return is })
	}
	reported("a first report", func() bool { return b.reports > 0 && b.last.Ready && len(b.last.Artifacts) == 0 })
	w.hold()
	reported("the artifact", func() bool { return len(b.last.Artifacts) == 1 && b.last.Artifacts[0] == artifactID })
	r := request()
	w.create(r)
	reported("the sandbox", func() bool {
		return b.last.Sandboxes == 1 && b.last.Allocated.MilliCPU == r.GetResources().GetMilliCpu() && b.last.Allocated.MemBytes == r.GetResources().GetMemBytes() && b.last.Allocated.Slots == 1
	})
	// A master that lost its books is told again who this is.
	b.look(func() { b.known = false })
	reported("another registration", func() bool { return len(b.registered) == 2 && b.known && b.last.Sandboxes == 1 })
	w.delete(r.GetSandboxId())
	reported("the room", func() bool { return b.last.Sandboxes == 0 && b.last.Allocated.MemBytes == 0 })
	b.look(func() {
		first := b.registered[0]
		if first.NodeID != "host-under-test" || first.GRPCPort != 1 || first.HostIP == "" || first.Version != "test" || first.Allocatable.MilliCPU != 16*first.Capacity.MilliCPU || first.Allocatable.Slots != int64(w.cfg.Cubelet.MaxSandboxes) || first.Capacity.MemBytes <= 0 {
			t.Errorf("registration %+v", first)
		}
		if len(b.tokens) != 1 || !b.tokens["the host's token"] {
			t.Errorf("tokens %v", b.tokens)
		}
	})
}
