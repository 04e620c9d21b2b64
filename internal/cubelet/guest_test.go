package cubelet_test

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/paddock-dev/paddock/internal/cubelet"
	"github.com/paddock-dev/paddock/internal/cubelet/runtime/runtimetest"
	"github.com/paddock-dev/paddock/internal/envdpb"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/hostpb"
)

// oddGuest is one that a user wrote.
func oddGuest(t *testing.T, do http.HandlerFunc) (g cubelet.Guest, url string) {
	t.Helper()
	s := httptest.NewServer(do)
	t.Cleanup(s.Close)
	return cubelet.NewGuest(s.URL), s.URL
}

// events answers a call with messages; the last is the stream's own end.
func events(rw http.ResponseWriter, messages ...*envdpb.ProcessEvent) {
	rw.Header().Set("Content-Type", "application/connect+proto")
	for _, e := range messages {
		b, _ := proto.Marshal(&envdpb.StartResponse{Event: e})
		envelope(rw, 0, b)
	}
	envelope(rw, 2, []byte("{}"))
}

func envelope(rw http.ResponseWriter, flags byte, b []byte) {
	head := binary.BigEndian.AppendUint32([]byte{flags}, uint32(len(b))) //nolint:gosec // small
	_, _ = rw.Write(append(head, b...))                                  // whoever reads it tells
}

func TestAGuestThatSaysNothing(t *testing.T) {
	g, _ := oddGuest(t, func(rw http.ResponseWriter, _ *http.Request) { events(rw) })
	if err := g.Launch(t.Context(), "x"); !errors.Is(err, fault.GuestUnreachable) {
		t.Errorf("launch: %v", err)
	}
	if err := g.Answer(t.Context(), "x"); !errors.Is(err, fault.GuestUnreachable) {
		t.Errorf("a probe: %v", err)
	}
	begun, _ := oddGuest(t, func(rw http.ResponseWriter, _ *http.Request) {
		events(rw, nil, &envdpb.ProcessEvent{}, &envdpb.ProcessEvent{Event: &envdpb.ProcessEvent_Start{}})
	})
	if err := begun.Answer(t.Context(), "x"); !errors.Is(err, fault.GuestUnreachable) {
		t.Errorf("a probe that began: %v", err)
	}
}

// The deadline of a create is none of the program that it starts.
func TestAProgramOutlivesItsStart(t *testing.T) {
	limits := make(chan string, 1)
	g, _ := oddGuest(t, func(rw http.ResponseWriter, r *http.Request) {
		limits <- r.Header.Get("Connect-Timeout-Ms")
		events(rw, &envdpb.ProcessEvent{})
	})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	check(t, g.Launch(ctx, "x"))
	if got := <-limits; got != "" {
		t.Errorf("its program is given %s ms", got)
	}
	w := newWorld(t)
	w.cfg.Cubelet.StartTimeout = 2 * time.Second
	w.open().hold()
	for name, p := range map[string]*hostpb.Probe{"no probe": nil, "a probe": tcp(asks(time.Second), 8080)} {
		r := request()
		r.Command, r.Probe = []string{"probe", "answer", ":8080", "0"}, p
		began := time.Now()
		answer, err := w.host.CreateSandbox(w.ctx(), r)
		for range 10 { // a slow machine may need more than its time
			if err == nil {
				break
			}
			began = time.Now()
			answer, err = w.host.CreateSandbox(w.ctx(), r)
		}
		check(t, err)
		s := answer.GetSandbox()
		<-time.After(time.Until(began.Add(w.cfg.Cubelet.StartTimeout + 2500*time.Millisecond)))
		runtimetest.Eventually(t, name+": its program answers after a while", func() bool {
			c, err := net.DialTimeout("tcp", s.GetIp()+":8080", 10*time.Second)
			return err == nil && c.Close() == nil
		})
		w.delete(s.GetSandboxId())
	}
}

func TestAGuestThatSaysTooMuch(t *testing.T) {
	big := make([]byte, 16<<20)
	for i := range big {
		big[i] = 'x'
	}
	g, _ := oddGuest(t, func(rw http.ResponseWriter, _ *http.Request) {
		events(rw,
			&envdpb.ProcessEvent{Event: &envdpb.ProcessEvent_Data{Data: &envdpb.ProcessEvent_DataEvent{Output: &envdpb.ProcessEvent_DataEvent_Stdout{Stdout: big}}}},
			&envdpb.ProcessEvent{Event: &envdpb.ProcessEvent_End{End: &envdpb.ProcessEvent_EndEvent{Exited: true}}})
	})
	if err := g.Launch(t.Context(), "x"); err == nil {
		t.Error("launch takes a message of 16 MiB")
	}
	if err := g.Answer(t.Context(), "x"); err == nil {
		t.Error("a probe takes a message of 16 MiB")
	}
	wordy, _ := oddGuest(t, func(rw http.ResponseWriter, _ *http.Request) {
		events(rw, &envdpb.ProcessEvent{Event: &envdpb.ProcessEvent_End{End: &envdpb.ProcessEvent_EndEvent{Status: string(big[:2<<20])}}})
	})
	if err := wordy.Answer(t.Context(), "x"); err == nil || len(err.Error()) > 2000 {
		t.Errorf("a status of 2 MiB: %.100v", err)
	}
	heads, _ := oddGuest(t, func(rw http.ResponseWriter, _ *http.Request) {
		rw.Header().Set("X-Much", string(big[:1<<20]))
		rw.WriteHeader(http.StatusNoContent)
	})
	if heads.Ready(t.Context()) == nil || heads.Init(t.Context()) == nil {
		t.Error("headers of 1 MiB are taken")
	}
	errs, _ := oddGuest(t, func(rw http.ResponseWriter, _ *http.Request) {
		rw.Header().Set("Content-Type", "application/connect+proto")
		envelope(rw, 2, append(append([]byte(`{"error":{"code":"internal","message":"`), big[:2<<20]...), `"}}`...))
	})
	if err := errs.Launch(t.Context(), "x"); err == nil || len(err.Error()) > 3000 {
		t.Errorf("an error of 2 MiB: %.100v", err)
	}
}

// A guest cannot have its host ask somebody else.
func TestAGuestSendsItsHostNowhere(t *testing.T) {
	var asked atomic.Bool
	_, private := oddGuest(t, func(rw http.ResponseWriter, _ *http.Request) {
		asked.Store(true)
		rw.WriteHeader(http.StatusNoContent)
	})
	g, _ := oddGuest(t, func(rw http.ResponseWriter, r *http.Request) {
		http.Redirect(rw, r, private+"/secret", http.StatusTemporaryRedirect)
	})
	for name, err := range map[string]error{
		"health": g.Ready(t.Context()), "init": g.Init(t.Context()), "read": g.Read(t.Context(), "/x"), "launch": g.Launch(t.Context(), "x"),
	} {
		if err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if asked.Load() {
		t.Error("the other was asked")
	}
}
