package master_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/host"
	"github.com/paddock-dev/paddock/internal/hostpb"
	"github.com/paddock-dev/paddock/internal/master"
	"github.com/paddock-dev/paddock/internal/platform/config"
	"github.com/paddock-dev/paddock/internal/sandbox"
)

// nobody is the id of no sandbox.
const nobody = "i000000000000000000000000"

func put(t *testing.T, r *rig, path, body string) (int, string) {
	t.Helper()
	q, err := http.NewRequestWithContext(t.Context(), http.MethodPut, r.front.URL+path, strings.NewReader(body))
	must(t, err)
	q.Header.Set(cubeapi.HeaderAPIKey, apiKey)
	answer, err := http.DefaultClient.Do(q)
	must(t, err)
	defer answer.Body.Close()
	b, err := io.ReadAll(answer.Body)
	must(t, err)
	return answer.StatusCode, string(b)
}

// one is a rig with one sandbox.
func one(t *testing.T, dsn string, change ...func(*config.Config)) (*rig, *fakeHost, string) {
	t.Helper()
	r, hosts := ready(t, dsn, 1, plenty, change...)
	a, err := r.create("base")
	must(t, err)
	return r, hosts[0], a.SandboxID
}

func (r *rig) state(id string) sandbox.State {
	r.t.Helper()
	for _, s := range r.sandboxes() {
		if string(s.ID) == id {
			return s.State
		}
	}
	return ""
}

func TestSandboxesAreListed(t *testing.T) {
	r, h, id := one(t, sqlite(t))
	second, err := r.create("base")
	must(t, err)
	list, err := r.api.Sandboxes(t.Context(), false)
	must(t, err)
	if len(list) != 2 || list[0].SandboxID != second.SandboxID || list[1].Status != "RUNNING" {
		t.Errorf("list: %+v", list)
	}
	must(t, r.api.DeleteSandbox(t.Context(), id))
	live, err := r.api.Sandboxes(t.Context(), false)
	must(t, err)
	all, err := r.api.Sandboxes(t.Context(), true)
	must(t, err)
	if len(live) != 1 || len(all) != 2 || all[1].Status != "TERMINATED" || all[1].Reason != "request" {
		t.Errorf("live %+v, all %+v", live, all)
	}
	r.silence(h)
	eventually(t, "the list says whose word is old", func() bool {
		q, err := http.NewRequestWithContext(t.Context(), http.MethodGet, r.front.URL+cubeapi.PathSandboxList, nil)
		must(t, err)
		q.Header.Set(cubeapi.HeaderAPIKey, apiKey)
		answer, err := http.DefaultClient.Do(q)
		must(t, err)
		defer answer.Body.Close()
		b, err := io.ReadAll(answer.Body)
		must(t, err)
		return strings.Contains(string(b), `"partial":["host-a"]`) && strings.Contains(string(b), second.SandboxID)
	})
}

func TestWhatIsNotThereIsNotFound(t *testing.T) {
	r, _, id := one(t, sqlite(t))
	refused(t, r.api.DeleteSandbox(t.Context(), "i000000000000000000000000"), fault.SandboxNotFound)
	refused(t, r.api.DeleteSandbox(t.Context(), ""), fault.InvalidInput)
	_, err := r.api.Sandbox(t.Context(), "i000000000000000000000000")
	refused(t, err, fault.SandboxNotFound)
	_, err = r.api.Sandbox(t.Context(), "nobody")
	refused(t, err, fault.InvalidInput)
	refused(t, r.api.DeleteSandbox(t.Context(), "nobody"), fault.InvalidInput)
	_, err = r.api.Host(t.Context(), "nobody")
	refused(t, err, fault.HostUnknown)
	_, err = r.api.Artifact(t.Context(), "rfs-nobody")
	refused(t, err, fault.ArtifactNotFound)
	_, err = r.api.BuildStatus(t.Context(), "job-nobody")
	refused(t, err, fault.JobNotFound)
	_, err = r.api.Template(t.Context(), "nobody")
	refused(t, err, fault.TemplateNotFound)
	must(t, r.api.DeleteSandbox(t.Context(), id))
	refused(t, r.api.DeleteSandbox(t.Context(), id), fault.SandboxNotFound)
	if status, body := post(t, r.front.URL+"/cube/nothing", "", "", "{}"); status != 404 {
		t.Errorf("unknown path: %d %s", status, body)
	}
}

// "Cannot tell" is never "gone".
func TestADeleteOfAHostThatIsAwayGoesOnBehind(t *testing.T) {
	onBoth(t, func(t *testing.T, dsn string) {
		r, h, id := one(t, dsn)
		h.away()
		refused(t, r.api.DeleteSandbox(t.Context(), id), fault.HostUnreachable)
		if s, err := r.api.Sandbox(t.Context(), id); err != nil || s.Status != "TERMINATING" {
			t.Fatalf("sandbox: %+v %v", s, err)
		}
		if len(h.live()) != 1 {
			t.Fatal("the host lost it by itself")
		}
		h.back()
		eventually(t, "it is gone", func() bool { return r.state(id) == sandbox.Terminated && len(h.live()) == 0 })
	})
}

func TestADeleteSurvivesACrash(t *testing.T) {
	onBoth(t, func(t *testing.T, dsn string) {
		r, h, id := one(t, dsn)
		r.crash()
		crash, reached := crashAt("master.sandbox_delete.after_commit")
		r.start(crash)
		if err := r.api.DeleteSandbox(t.Context(), id); err == nil {
			t.Fatal("the delete did not end")
		}
		wait(t, "the crash", reached)
		r.crash()
		r.start()
		eventually(t, "it is gone", func() bool { return r.state(id) == sandbox.Terminated && len(h.live()) == 0 })
	})
}

func TestRowsFollowTheHosts(t *testing.T) {
	onBoth(t, func(t *testing.T, dsn string) {
		r, h, lost := one(t, dsn)
		a, err := r.create("base")
		must(t, err)
		b, err := r.create("base")
		must(t, err)
		h.set(func(h *fakeHost) {
			delete(h.boxes, lost)
			h.boxes[a.SandboxID].State, h.boxes[a.SandboxID].Reason = hostpb.SandboxState_SANDBOX_STATE_EXITED, "oom: it needed more"
		})
		eventually(t, "both are ended", func() bool {
			return r.state(lost) == sandbox.Terminated && r.state(a.SandboxID) == sandbox.Terminated
		})
		for id, want := range map[string]string{lost: "lost: its host has it no more", a.SandboxID: "oom: it needed more"} {
			if s, err := r.api.Sandbox(t.Context(), id); err != nil || s.Reason != want {
				t.Errorf("sandbox %s: %+v %v", id, s, err)
			}
		}
		if got := h.live(); len(got) != 1 || got[0] != b.SandboxID || r.state(b.SandboxID) != sandbox.Running {
			t.Errorf("the host has %v", got)
		}
	})
}

func TestSandboxesInNoBookAreRemoved(t *testing.T) {
	r, h, id := one(t, sqlite(t))
	h.set(func(h *fakeHost) { h.boxes["istranger"] = &hostpb.Sandbox{SandboxId: "istranger"} })
	eventually(t, "the stranger goes", func() bool { return len(h.live()) == 1 })
	if h.live()[0] != id || r.state(id) != sandbox.Running {
		t.Errorf("the host has %v, the row is %s", h.live(), r.state(id))
	}
}

func TestRowsOfTheEndedAreForgotten(t *testing.T) {
	r, _, id := one(t, sqlite(t))
	must(t, r.api.DeleteSandbox(t.Context(), id))
	r.crash()
	r.start(func(p *running) { p.KeepTerminated(time.Millisecond) })
	eventually(t, "the row is gone", func() bool { return len(r.sandboxes()) == 0 })
}

func TestFiles(t *testing.T) {
	r, h, id := one(t, sqlite(t))
	for name, data := range map[string]string{"/tmp/a": "hello", "/tmp/empty": "", "/tmp/large": strings.Repeat("x", 1<<20+7)} {
		n, err := r.api.WriteFile(t.Context(), id, name, strings.NewReader(data))
		must(t, err)
		var back bytes.Buffer
		must(t, r.api.ReadFile(t.Context(), id, name, &back))
		if n != int64(len(data)) || back.String() != data {
			t.Errorf("%s: wrote %d, read %d, want %d", name, n, back.Len(), len(data))
		}
	}
	refused(t, r.api.ReadFile(t.Context(), id, "/nothing", io.Discard), fault.FileNotFound)
	refused(t, r.api.ReadFile(t.Context(), id, "", io.Discard), fault.InvalidInput)
	refused(t, r.api.ReadFile(t.Context(), nobody, "/x", io.Discard), fault.SandboxNotFound)
	_, err := r.api.WriteFile(t.Context(), id, "/full", strings.NewReader("x"))
	refused(t, err, fault.SandboxDiskFull)
	_, err = r.api.WriteFile(t.Context(), nobody, "/x", strings.NewReader("x"))
	refused(t, err, fault.SandboxNotFound)
	// An upload that breaks off must not look whole.
	_, err = r.api.WriteFile(t.Context(), id, "/tmp/cut", io.MultiReader(strings.NewReader("half"), brokenReader{}))
	if err == nil {
		t.Error("a broken upload succeeded")
	}
	eventually(t, "the host sees that it broke off", func() bool { return h.called("write_broken") > 0 })
	h.mu.Lock()
	defer h.mu.Unlock()
	if _, ok := h.files["/tmp/cut"]; ok {
		t.Error("half a file was stored")
	}
}

// A caller that ends its sending early, and still waits for the answer.
func TestAShortUploadIsNotStored(t *testing.T) {
	r, h, id := one(t, sqlite(t))
	c, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", r.front.Listener.Addr().String())
	must(t, err)
	defer c.Close()
	_, err = fmt.Fprintf(c, "PUT %s?sandbox_id=%s&path=/tmp/short HTTP/1.1\r\nHost: x\r\n%s: %s\r\nContent-Length: 100\r\n\r\nhalf", cubeapi.PathSandboxFiles, id, cubeapi.HeaderAPIKey, apiKey)
	must(t, err)
	must(t, c.(*net.TCPConn).CloseWrite()) //nolint:forcetypeassert // it dialled TCP
	answer, err := io.ReadAll(c)
	must(t, err)
	if strings.HasPrefix(string(answer), "HTTP/1.1 200") {
		t.Errorf("answer: %s", answer)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if data, ok := h.files["/tmp/short"]; ok {
		t.Errorf("%q was stored", data)
	}
}

type brokenReader struct{}

func (brokenReader) Read([]byte) (int, error) { return 0, errors.New("the disk broke") }

func TestHostsAreSeen(t *testing.T) {
	r := newRig(t, sqlite(t))
	r.start()
	h := r.host(0, plenty)
	list, err := r.api.Hosts(t.Context())
	must(t, err)
	if len(list) != 1 || list[0].NodeID != "host-a" || list[0].Health != string(host.Healthy) || list[0].Allocatable != plenty || list[0].HeartbeatAt == "" {
		t.Errorf("hosts: %+v", list)
	}
	refused(t, h.tell.Report(t.Context(), "nobody", cubeapi.HostStatusRequest{Ready: true}), fault.HostUnknown)
	good := cubeapi.HostRegisterRequest{NodeID: "x", HostIP: "127.0.0.1", GRPCPort: 1, InstanceType: "cubebox"}
	for name, change := range map[string]func(*cubeapi.HostRegisterRequest){
		"no id":        func(q *cubeapi.HostRegisterRequest) { q.NodeID = "" },
		"a long id":    func(q *cubeapi.HostRegisterRequest) { q.NodeID = strings.Repeat("x", 129) },
		"no address":   func(q *cubeapi.HostRegisterRequest) { q.HostIP = "somewhere" },
		"no port":      func(q *cubeapi.HostRegisterRequest) { q.GRPCPort = 0 },
		"no type":      func(q *cubeapi.HostRegisterRequest) { q.InstanceType = "" },
		"room under 0": func(q *cubeapi.HostRegisterRequest) { q.Allocatable.MemBytes = -1 },
	} {
		q := good
		change(&q)
		if err := h.tell.Register(t.Context(), q); fault.Of(err) != fault.InvalidInput {
			t.Errorf("%s: %v", name, err)
		}
	}
	wrong := cubeapi.NewHostClient(r.front.URL, "wrong")
	refused(t, wrong.Register(t.Context(), good), fault.TokenRejected)
	r.silence(h)
	eventually(t, "a silent host is unknown", func() bool {
		shown, err := r.api.Host(t.Context(), "host-a")
		return err == nil && shown.Health == string(host.Unknown) && strings.Contains(shown.Reason, "not heard of")
	})
	h.speak()
	eventually(t, "and healthy again", func() bool {
		shown, err := r.api.Host(t.Context(), "host-a")
		return err == nil && shown.Health == string(host.Healthy)
	})
}

// A host that starts again may be another than the one that was ready: it is
// not chosen before it says so.
func TestAHostThatRegistersAgainIsNotReadyYet(t *testing.T) {
	r, hosts := ready(t, sqlite(t), 1, plenty)
	h := hosts[0]
	h.hush()
	must(t, h.register(t.Context()))
	shown, err := r.api.Host(t.Context(), string(h.id))
	must(t, err)
	if shown.Health != string(host.NotReady) || shown.Reason == "" {
		t.Errorf("registered anew: %s, %q", shown.Health, shown.Reason)
	}
	_, err = r.create("base")
	refused(t, err, fault.NoHost)
	h.speak()
	eventually(t, "it is healthy after its first report", func() bool {
		shown, err := r.api.Host(t.Context(), string(h.id))
		return err == nil && shown.Health == string(host.Healthy)
	})
	_, err = r.create("base")
	must(t, err)
}

// What a host says of another peer is not the host being away.
func TestAHostsOwnWordKeepsItsCode(t *testing.T) {
	r, hosts := ready(t, sqlite(t), 1, plenty)
	hosts[0].set(func(h *fakeHost) {
		h.create = func(context.Context) error { return fault.New(fault.PeerUnavailable, "download") }
	})
	_, err := r.create("base")
	refused(t, err, fault.PeerUnavailable)
	gone, leave := context.WithCancel(t.Context())
	leave()
	for _, c := range []struct {
		ctx  context.Context
		word error
		want *fault.Code
	}{
		{t.Context(), status.Error(codes.Unavailable, "refused"), fault.HostUnreachable},
		{t.Context(), status.Error(codes.Canceled, "the connection is closing"), fault.HostUnreachable},
		{gone, status.Error(codes.Canceled, "the caller left"), fault.CallCancelled},
	} {
		if err := master.HostFault(c.ctx, c.word, "h"); fault.Of(err) != c.want {
			t.Errorf("the transport's word %v: got %v, want %s", c.word, err, c.want.Name)
		}
	}
}

func TestHealthNeedsNoDatabase(t *testing.T) {
	r := newRig(t, sqlite(t))
	m := r.start()
	must(t, m.db.Close())
	must(t, r.api.Health(t.Context()))
	_, err := r.api.Templates(t.Context())
	refused(t, err, fault.StoreUnavailable)
	answer, err := http.Get(r.front.URL + cubeapi.PathMetrics) //nolint:noctx // a test
	must(t, err)
	defer answer.Body.Close()
	b, err := io.ReadAll(answer.Body)
	must(t, err)
	if !strings.Contains(string(b), `paddock_http_request_seconds_count{face="master",route="GET /notify/health",status="200"}`) {
		t.Error("the metrics do not count requests by route")
	}
}
