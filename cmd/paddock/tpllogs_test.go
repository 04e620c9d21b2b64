package main

import (
	"bytes"
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/fault"
)

func TestWhoFollowsAJobOutlastsAMasterThatStartsAgain(t *testing.T) {
	for name, follow := range map[string]func(a *app, api *cubeapi.Client) error{
		"logs": func(a *app, api *cubeapi.Client) error { return a.logs(t.Context(), api, "job-1", true) },
		"build-watch": func(a *app, api *cubeapi.Client) error {
			return a.buildState(t.Context(), api, "job-1", true, pollEvery)
		},
		"watch": func(a *app, api *cubeapi.Client) error { return a.watch(t.Context(), api, "job-1") },
	} {
		var asked atomic.Int64
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			n := asked.Add(1)
			if n == 2 || n == 3 {
				panic(http.ErrAbortHandler)
			}
			status := "RUNNING"
			if n > 3 {
				status = cubeapi.StatusReady
			}
			if strings.HasPrefix(r.URL.Path, "/cube/template/build/") {
				state := map[string]string{"RUNNING": "building", cubeapi.StatusReady: "ready"}[status]
				_ = json.NewEncoder(w).Encode(map[string]any{"build_id": "job-1", "status": state})
				return
			}
			var answer any = map[string]any{"job": map[string]any{"job_id": "job-1", "status": status}}
			if strings.HasSuffix(r.URL.Path, "/logs") {
				answer = map[string]any{"status": status, "ended": n > 3, "next": n, "lines": []any{}}
			}
			_ = json.NewEncoder(w).Encode(answer)
		}))
		var out, said bytes.Buffer
		a := &app{stdout: &out, stderr: &said, output: "table"}
		if err := follow(a, cubeapi.NewClient(server.URL, "key")); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if n := strings.Count(said.String(), "went away"); n != 1 {
			t.Errorf("%s: %d notices: %q", name, n, said.String())
		}
		server.Close()
	}
}

func TestWhoFollowsAtAWrongAddressIsToldAtOnce(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	url := "http://" + l.Addr().String()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	a := &app{stdout: &out, stderr: &out, output: "table"}
	if err := a.logs(t.Context(), cubeapi.NewClient(url, "key"), "job-1", true); fault.Of(err) != fault.PeerUnavailable {
		t.Errorf("%v, want peer_unavailable", err)
	}
}
