package guest

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"

	"github.com/paddock-dev/paddock/internal/fault"
)

const (
	maxInit   = 4 << 20 // bytes of a body of /init
	maxLife   = 256     // bytes of the name of a life
	worstSkew = 100 * time.Millisecond
)

// settings are what holds for every process and request of the sandbox.
type settings struct {
	first values // what holds at the start of every life

	mu   sync.Mutex
	now  values
	told time.Time // timestamp of the newest /init
	life string    // the name of this life
}

// values are replaced whole, never changed, so that they may be read unlocked.
type values struct {
	base    []string          // what the runtime gave the guest itself
	envs    map[string]string // what /init told
	token   string
	user    string
	workdir string
}

func newSettings(d Deps) *settings {
	first := values{
		base: d.Environ, user: d.DefaultUser, workdir: d.DefaultWorkdir,
		envs: map[string]string{"E2B_SANDBOX": "true"},
	}
	return &settings{first: first, now: first}
}

func (s *settings) current() values {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.now
}

// initRequest is the body of /init. Nil means: as it is.
type initRequest struct {
	EnvVars        map[string]string `json:"envVars"`
	AccessToken    *string           `json:"accessToken"`
	Timestamp      *time.Time        `json:"timestamp"`
	DefaultUser    *string           `json:"defaultUser"`
	DefaultWorkdir *string           `json:"defaultWorkdir"`
	LifecycleID    *string           `json:"lifecycleID"`
	HyperloopIP    *string           `json:"hyperloopIP"` // of E2B's own hosts; nothing here has one
	VolumeMounts   []json.RawMessage `json:"volumeMounts"`
	CABundle       *string           `json:"caBundle"`

	// Of Paddock alone.
	Hostname *string `json:"hostname"`
	Resolver *string `json:"resolvConf"` // the whole /etc/resolv.conf
	NewLife  string  `json:"newLife"`    // names the life that begins; as before: it goes on
}

// configure answers POST /init: variables are added to those known, the rest
// replaces. An older timestamp than the newest one met changes nothing. With a
// newLife that is not the present one, nothing of before holds: the calls of
// before end, and what the request does not say is as at the first start.
func (g *Guest) configure(w http.ResponseWriter, r *http.Request) {
	var m initRequest
	err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxInit)).Decode(&m)
	if err != nil && !errors.Is(err, io.EOF) { // no body: nothing changes
		httpError(w, badInput("init: %s", err.Error()))
		return
	}
	if err := g.apply(m, r.Header.Get("X-Access-Token")); err != nil {
		httpError(w, err)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

func (g *Guest) apply(m initRequest, shown string) error {
	if len(m.VolumeMounts) > 0 || m.CABundle != nil && *m.CABundle != "" {
		return badInput("init: volumeMounts and caBundle are the runtime's, a guest mounts nothing")
	}
	for name, value := range m.EnvVars {
		if err := checkEnv(name, value); err != nil {
			return err
		}
	}
	if m.DefaultUser != nil && *m.DefaultUser != "" {
		if _, err := g.users.find(*m.DefaultUser); err != nil {
			return err
		}
	}
	if m.Hostname != nil {
		if err := checkHostname(*m.Hostname); err != nil {
			return err
		}
	}
	if len(m.NewLife) > maxLife {
		return badInput("init: newLife is longer than %d bytes", maxLife)
	}
	s := g.settings
	s.mu.Lock()
	defer s.mu.Unlock()
	// The sandbox's own processes can call this too: a token that is set may
	// be told again, but neither replaced nor taken away by who does not know it.
	if t := s.now.token; t != "" && !equalSecret(shown, t) && (m.AccessToken == nil || !equalSecret(*m.AccessToken, t)) {
		return refuse(connect.CodeUnauthenticated, fault.InvalidInput, "init: the access token is set and differs")
	}
	begins := m.NewLife != "" && m.NewLife != s.life
	if m.Timestamp != nil {
		if !begins && m.Timestamp.Before(s.told) {
			return nil
		}
		s.told = *m.Timestamp
		g.correct(*m.Timestamp)
	}
	next := s.now
	if begins {
		s.life, next = m.NewLife, s.first
		// Whoever is admitted from here on reads the settings below.
		g.life.next()
		g.watchers.forgetAll()
	}
	next.envs = maps.Clone(next.envs)
	maps.Copy(next.envs, m.EnvVars)
	for _, f := range []struct {
		to   *string
		from *string
	}{{&next.token, m.AccessToken}, {&next.user, m.DefaultUser}, {&next.workdir, m.DefaultWorkdir}} {
		if f.from != nil && *f.from != "" {
			*f.to = *f.from
		}
	}
	s.now = next
	if m.Resolver != nil {
		if err := g.resolveBy(*m.Resolver); err != nil {
			return err
		}
	}
	if m.Hostname == nil {
		return nil
	}
	return g.rename(*m.Hostname)
}

// correct sets a clock that stood still while the sandbox's memory was stored.
// Most sandboxes have the clock of their host, which is not theirs to set.
func (g *Guest) correct(now time.Time) {
	if g.setClock == nil || time.Since(now).Abs() < worstSkew {
		return
	}
	if err := g.setClock(now); err != nil {
		g.log.Warn("the clock could not be set", slog.String("error", err.Error()))
	}
}

func (g *Guest) envs(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, g.settings.current().envs)
}

// open are the routes that check for themselves who may call.
var open = map[string]bool{"GET /health": true, "HEAD /health": true, "GET /files": true, "HEAD /files": true, "POST /files": true, "POST /init": true}

// admit asks for the access token, once one is set.
func (g *Guest) admit(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		token := g.settings.current().token
		if token != "" && !open[r.Method+" "+r.URL.Path] && !equalSecret(r.Header.Get("X-Access-Token"), token) {
			httpError(w, refuse(connect.CodeUnauthenticated, fault.InvalidInput, "unauthorized access, please provide a valid access token"))
			return
		}
		next.ServeHTTP(w, r)
	})
}

// crossOrigin lets browsers call: the access token, not the origin, says who
// may.
func crossOrigin(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Origin") != "" {
			h := w.Header()
			h.Set("Access-Control-Allow-Origin", "*")
			h.Set("Access-Control-Expose-Headers", "*, "+HeaderCode)
			if r.Method == http.MethodOptions {
				h.Set("Access-Control-Allow-Methods", "GET, HEAD, POST, PUT")
				h.Set("Access-Control-Allow-Headers", strings.Join([]string{"*", "Authorization", r.Header.Get("Access-Control-Request-Headers")}, ", "))
				h.Set("Access-Control-Max-Age", "7200")
				w.WriteHeader(http.StatusNoContent)
				return
			}
		}
		next.ServeHTTP(w, r)
	})
}

func equalSecret(a, b string) bool {
	x, y := sha256.Sum256([]byte(a)), sha256.Sum256([]byte(b))
	return subtle.ConstantTimeCompare(x[:], y[:]) == 1
}

func checkEnv(name, value string) error {
	if name == "" || strings.ContainsAny(name, "=\x00") || strings.Contains(value, "\x00") {
		return badInput("'%s' is not the name or value of a variable", name)
	}
	return nil
}
