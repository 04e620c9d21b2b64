// Package guest is the agent inside a sandbox: the processes and files that
// its API shows are those of the sandbox itself.
//
// It speaks the envd protocol of the E2B clients (facts/e2b-client 3): Connect
// RPC for processes, plain HTTP for files. It runs as the sandbox's first
// process, so it also reaps orphans. It must never trust a request to name
// what it may not touch: the sandbox is the boundary, not this program; and it
// must stay small, since every sandbox carries one.
package guest

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"maps"
	"net/http"
	"sync"
	"time"

	"github.com/paddock-dev/paddock/internal/envdpb"
)

// Port is where the guest listens.
const Port = 49983

// Version is the envd version that clients are told: they enable features by
// it.
const Version = "0.6.4"

// Guest is the agent. Make one with New.
type Guest struct {
	log   *slog.Logger
	reap  *reaper
	users accounts

	mu       sync.Mutex
	settings Settings
	running  map[uint32]*process
	ended    map[uint32]*process
}

// Settings are what /init tells.
type Settings struct {
	EnvVars        map[string]string `json:"envVars"`
	AccessToken    string            `json:"accessToken"`
	DefaultUser    string            `json:"defaultUser"`
	DefaultWorkdir string            `json:"defaultWorkdir"`
}

// New returns a guest that has not begun anything.
func New(log *slog.Logger) *Guest {
	return &Guest{
		log: log, reap: newReaper(log), users: accounts{passwd: "/etc/passwd", group: "/etc/group"},
		settings: Settings{DefaultUser: "root"},
		running:  map[uint32]*process{}, ended: map[uint32]*process{},
	}
}

// Run reaps orphans until ctx ends; then every process of the sandbox is asked
// to stop, and ended after a second.
func (g *Guest) Run(ctx context.Context) error {
	err := g.reap.run(ctx)
	g.stopAll()
	return err
}

// Handler serves the API.
func (g *Guest) Handler() http.Handler {
	mux := http.NewServeMux()
	path, rpc := envdpb.NewProcessHandler(&processAPI{g: g})
	mux.Handle(path, rpc)
	mux.HandleFunc("GET /health", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	mux.HandleFunc("POST /init", g.init)
	mux.HandleFunc("GET /files", g.readFile)
	mux.HandleFunc("POST /files", g.writeFiles)
	mux.HandleFunc("GET /envs", func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, http.StatusOK, g.current().EnvVars) })
	return g.admit(mux)
}

// admit asks for the access token, once one is set, on all but the health
// probe and init, which sets it.
func (g *Guest) admit(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		token := g.current().AccessToken
		open := token == "" || r.URL.Path == "/health" || r.URL.Path == "/init"
		if !open && !equalSecret(r.Header.Get("X-Access-Token"), token) {
			refuse(w, http.StatusUnauthorized, "unauthorized access, please provide a valid access token")
			return
		}
		next.ServeHTTP(w, r)
	})
}

func (g *Guest) init(w http.ResponseWriter, r *http.Request) {
	var s Settings
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<20)).Decode(&s); err != nil {
		refuse(w, http.StatusBadRequest, "init: "+err.Error())
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	// A token that is set may be kept or told again, never taken away: the
	// sandbox's own processes can call init too.
	if t := g.settings.AccessToken; t != "" && !equalSecret(s.AccessToken, t) {
		refuse(w, http.StatusUnauthorized, "init: the access token is set and differs")
		return
	}
	if s.DefaultUser == "" {
		s.DefaultUser = g.settings.DefaultUser
	}
	g.settings = s
	w.WriteHeader(http.StatusNoContent)
}

func (g *Guest) current() Settings {
	g.mu.Lock()
	defer g.mu.Unlock()
	s := g.settings
	s.EnvVars = maps.Clone(s.EnvVars)
	return s
}

// stopAll ends every process that the API started.
func (g *Guest) stopAll() {
	g.mu.Lock()
	all := make([]*process, 0, len(g.running))
	for _, p := range g.running {
		all = append(all, p)
	}
	g.mu.Unlock()
	for _, p := range all {
		_ = p.signal(sigTerm) // one that ended meanwhile needs none
	}
	late := time.After(time.Second)
	for _, p := range all {
		select {
		case <-p.done:
		case <-late:
			_ = p.signal(sigKill) // as above
			late = time.After(0)
		}
	}
}

type failure struct {
	Code    int    `json:"code"`
	Message string `json:"message"`
}

func refuse(w http.ResponseWriter, status int, message string) {
	writeJSON(w, status, failure{status, message})
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // the status is sent: nobody is left to tell
}

var errNoProcess = errors.New("process not found")
