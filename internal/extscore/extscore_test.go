package extscore_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/paddock-dev/paddock/internal/extscore"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/host"
	"github.com/paddock-dev/paddock/internal/scheduler"
)

// seen counts how calls ended.
type seen struct {
	mu sync.Mutex
	n  map[string]int
}

func (s *seen) note(scorer, outcome string, _ time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.n[scorer+" "+outcome]++
}

func (s *seen) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return fmt.Sprint(s.n)
}

func serve(t *testing.T, h http.HandlerFunc) string {
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s.URL
}

// asker asks one scorer for each url, which is called a, b and so on. Each has
// time enough on a slow machine.
func asker(t *testing.T, change func(i int, s *scheduler.Scorer), urls ...string) (*extscore.Asker, *seen) {
	t.Helper()
	c, said := scheduler.ExternalConfig{}, &seen{n: map[string]int{}}
	for i, url := range urls {
		s := scheduler.DefaultScorer()
		s.Name, s.URL, s.Timeout = string(rune('a'+i)), url, 2*time.Second
		if change != nil {
			change(i, &s)
		}
		c.Scorers = append(c.Scorers, s)
	}
	a := extscore.New(c, said.note)
	t.Cleanup(a.Close)
	return a, said
}

func question(hosts ...string) extscore.Question {
	q := extscore.Question{Request: extscore.Request{SandboxID: "i1", Labels: map[string]string{"tier": "gold"}}}
	for _, h := range hosts {
		q.Candidates = append(q.Candidates, extscore.Candidate{HostID: h})
	}
	return q
}

func always(text string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		_, _ = io.WriteString(w, text)
	}
}

func TestAMeanOfThoseThatAnswer(t *testing.T) {
	got := make(chan extscore.Question, 1)
	first := serve(t, func(w http.ResponseWriter, r *http.Request) {
		var q extscore.Question
		if err := json.NewDecoder(r.Body).Decode(&q); err != nil || r.Method != http.MethodPost {
			t.Error(r.Method, err)
		}
		got <- q
		always(`{"scores": {"x": 100, "y": 0.5}}`)(w, r)
	})
	a, said := asker(t, func(i int, s *scheduler.Scorer) { s.Weight = float64(1 + 2*i) }, first, serve(t, always(`{"scores": {"x": 20, "y": 40}}`)), serve(t, always("no")))
	scores, err := a.Score(t.Context(), question("x", "y"))
	if err != nil || len(scores) != 2 || scores["x"] != 40 || scores["y"] != (0.5+120)/4 {
		t.Errorf("%v %v, %s", scores, err, said)
	}
	if q := <-got; q.Request.SandboxID != "i1" || len(q.Candidates) != 2 || q.Candidates[1].HostID != "y" {
		t.Errorf("it was asked %+v", q)
	}
}

// Whatever a scorer does wrong, its scores are thrown away whole: none of them
// counts, and the choice goes on or is refused, as it was said.
func TestBadAnswersAreThrownAway(t *testing.T) {
	other := serve(t, func(http.ResponseWriter, *http.Request) { t.Error("a redirect was followed") })
	held := make(chan struct{})
	t.Cleanup(func() { close(held) }) // before the servers close, which wait for it
	for name, h := range map[string]http.HandlerFunc{
		"no JSON":    always("hello"),
		"empty":      always(""),
		"a list":     always(`[1, 2]`),
		"partial":    always(`{"scores": {"x": 1}}`),
		"null":       always(`{"scores": {"x": 1, "y": null}}`),
		"somebody":   always(`{"scores": {"x": 1, "y": 2, "z": 3}}`),
		"over 100":   always(`{"scores": {"x": 100.01, "y": 2}}`),
		"under 0":    always(`{"scores": {"x": -1, "y": 2}}`),
		"NaN":        always(`{"scores": {"x": NaN, "y": 2}}`),
		"infinite":   always(`{"scores": {"x": 1e999, "y": 2}}`),
		"text":       always(`{"scores": {"x": "100", "y": 2}}`),
		"huge":       always(`{"scores": {"x": 1, "y": 2}, "more": "` + strings.Repeat("x", 2<<20) + `"}`),
		"refused":    func(w http.ResponseWriter, _ *http.Request) { http.Error(w, `{"scores": {"x": 1, "y": 2}}`, 500) },
		"no content": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) },
		"redirect":   func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, other, http.StatusTemporaryRedirect) },
		"dies": func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, `{"scores": {"x": 1, "y": 2}}`)
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		},
		"long header": func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("X-Long", strings.Repeat("x", 1<<20))
			always(`{"scores": {"x": 1, "y": 2}}`)(w, r)
		},
		"slow": func(_ http.ResponseWriter, r *http.Request) { waitFor(r, held) },
		"slow end": func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.WriteString(w, `{"scores": {"x": 1,`)
			_ = http.NewResponseController(w).Flush()
			waitFor(r, held)
		},
	} {
		t.Run(name, func(t *testing.T) {
			url := serve(t, h)
			short := func(_ int, s *scheduler.Scorer) {
				if strings.HasPrefix(name, "slow") {
					s.Timeout = 20 * time.Millisecond
				}
			}
			a, said := asker(t, short, url)
			if scores, err := a.Score(t.Context(), question("x", "y")); scores != nil || err != nil || said.String() != "map[a failed:1]" {
				t.Errorf("%v %v, %s", scores, err, said)
			}
			closed, _ := asker(t, func(i int, s *scheduler.Scorer) { short(i, s); s.OnFailure = "closed" }, url)
			if scores, err := closed.Score(t.Context(), question("x", "y")); scores != nil || !errors.Is(err, fault.PeerUnavailable) || !strings.Contains(err.Error(), "external scorer a") {
				t.Errorf("to fail closed: %v %v", scores, err)
			}
		})
	}
}

func waitFor(r *http.Request, held chan struct{}) {
	_, _ = io.Copy(io.Discard, r.Body) // else the server does not see the caller go
	select {
	case <-held:
	case <-r.Context().Done():
	}
}

// One that fails is left alone for a while, then one call probes it.
func TestABreakerWithOneProbe(t *testing.T) {
	var bad atomic.Bool
	var calls atomic.Int32
	entered, release := make(chan struct{}, 10), make(chan struct{})
	var hold atomic.Bool
	url := serve(t, func(w http.ResponseWriter, r *http.Request) {
		calls.Add(1)
		if hold.Load() {
			entered <- struct{}{}
			<-release
		}
		if bad.Load() {
			w.WriteHeader(500)
			return
		}
		always(`{"scores": {"x": 7}}`)(w, r)
	})
	pause := 300 * time.Millisecond
	a, said := asker(t, func(_ int, s *scheduler.Scorer) { s.Failures, s.Pause = 3, pause }, url)
	ask := func() map[host.ID]float64 {
		scores, err := a.Score(context.Background(), question("x"))
		if err != nil {
			t.Error(err)
		}
		return scores
	}
	bad.Store(true)
	var shut time.Time
	for range 3 {
		ask()
		shut = time.Now()
	}
	for calls.Load() == 3 && time.Since(shut) < pause/2 {
		ask() // as long as the pause surely lasts, nobody calls it
	}
	if n := calls.Load(); n != 3 {
		t.Fatalf("%d calls while it was shut out; %s", n, said)
	}
	bad.Store(false)
	hold.Store(true)
	done := make(chan map[host.ID]float64)
	go func() {
		for {
			if s := ask(); s != nil {
				done <- s
				return
			}
		}
	}()
	<-entered
	for range 10 { // the probe is under way: nobody else calls it
		if s := ask(); s != nil {
			t.Error(s)
		}
	}
	hold.Store(false)
	close(release)
	if s := <-done; s["x"] != 7 || calls.Load() != 4 {
		t.Errorf("%v after %d calls, want one probe", s, calls.Load())
	}
	if s := ask(); s["x"] != 7 {
		t.Errorf("it recovered, and is not asked: %s", said)
	}
}

// So many calls at a time, and no more; those beyond do without at once.
func TestABulkhead(t *testing.T) {
	entered, release := make(chan struct{}, 10), make(chan struct{})
	url := serve(t, func(w http.ResponseWriter, r *http.Request) {
		entered <- struct{}{}
		<-release
		always(`{"scores": {"x": 7}}`)(w, r)
	})
	a, said := asker(t, func(_ int, s *scheduler.Scorer) { s.InFlight = 3 }, url)
	var all sync.WaitGroup
	for range 3 {
		all.Go(func() {
			if s, err := a.Score(context.Background(), question("x")); err != nil || s["x"] != 7 {
				t.Error(s, err)
			}
		})
	}
	for range 3 {
		<-entered
	}
	for range 5 {
		if s, err := a.Score(t.Context(), question("x")); s != nil || err != nil {
			t.Error(s, err)
		}
	}
	close(release)
	all.Wait()
	if said.String() != "map[a busy:5 a scored:3]" {
		t.Error(said)
	}
}

// A caller who goes away says nothing of the scorer.
func TestACallerWhoGoesAway(t *testing.T) {
	entered := make(chan struct{}, 10)
	url := serve(t, func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		entered <- struct{}{}
		<-r.Context().Done()
	})
	a, said := asker(t, func(_ int, s *scheduler.Scorer) { s.Failures = 1 }, url)
	for range 3 {
		ctx, cancel := context.WithCancel(t.Context())
		go func() { <-entered; cancel() }()
		if s, err := a.Score(ctx, question("x")); s != nil || err != nil {
			t.Error(s, err)
		}
	}
	if said.String() != "map[a unasked:3]" {
		t.Error(said)
	}
}

func FuzzAnswer(f *testing.F) {
	for _, s := range []string{`{"scores": {"x": 1, "y": 2}}`, `{"scores": {"x": 1}}`, `{"scores": null}`, `[]`, `{"scores": {"x": 1e5, "y": -0}}`} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		scores, err := extscore.Read([]byte(text), question("x", "y").Candidates)
		if err == nil && (len(scores) != 2 || !(*scores["x"] >= 0 && *scores["y"] <= 100)) {
			t.Errorf("%q: %v", text, scores)
		}
	})
}
