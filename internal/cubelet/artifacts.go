package cubelet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/hostpb"
	"github.com/paddock-dev/paddock/internal/template"
)

const (
	imageSuffix    = ".ext4"
	proofSuffix    = ".json"     // what was verified of the image beside it
	partSuffix     = ".download" // bytes that are not verified
	downloadsAtOne = 2
)

// images is the artifacts that this host holds: whole and verified, or not at
// all under their final name. It is safe for concurrent use.
type images struct {
	dir    string
	client *http.Client
	slots  chan struct{}   // one for each download at once
	work   *sync.WaitGroup // of whoever stops us

	mu      sync.Mutex
	flights map[string]*flight
}

// flight is one download that several callers may wait for.
type flight struct {
	want    proof
	waiting int
	abort   context.CancelFunc
	done    chan struct{}
	fetched int64
	err     error
}

// proof is what was verified of an image.
type proof struct {
	SHA256 string `json:"sha256"`
	Size   int64  `json:"size_bytes"`
}

func newImages(dir string, work *sync.WaitGroup) *images {
	return &images{
		dir: dir, work: work, slots: make(chan struct{}, downloadsAtOne), flights: map[string]*flight{},
		client: &http.Client{Transport: &http.Transport{
			Proxy:                 nil, // the master and its store are reached directly
			ResponseHeaderTimeout: stallTime,
			IdleConnTimeout:       time.Minute,
			DisableCompression:    true, // the bytes are those of the image
		}},
	}
}

func (m *images) path(id string) string  { return filepath.Join(m.dir, id+imageSuffix) }
func (m *images) proof(id string) string { return filepath.Join(m.dir, id+proofSuffix) }

// list returns the ids of the artifacts held.
func (m *images) list() ([]string, error) {
	entries, err := os.ReadDir(m.dir)
	if err != nil {
		return nil, err
	}
	ids := []string{}
	for _, e := range entries {
		if id, ok := strings.CutSuffix(e.Name(), imageSuffix); ok {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids, nil
}

// sweep removes what an earlier process left half fetched, and images without
// proof: those were cut off, or put there by somebody else.
func (m *images) sweep() error {
	entries, err := os.ReadDir(m.dir)
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range entries {
		id, image := strings.CutSuffix(e.Name(), imageSuffix)
		other, isProof := strings.CutSuffix(e.Name(), proofSuffix)
		keep := image && m.proven(id) || isProof && m.proven(other)
		if !keep {
			errs = append(errs, os.Remove(filepath.Join(m.dir, e.Name())))
		}
	}
	return errors.Join(errs...)
}

// proven reports whether the image of id is there as it was verified.
func (m *images) proven(id string) bool {
	p, ok := m.held(id)
	return ok && p.Size > 0
}

// held returns what was verified of the image of id. Only its size is looked
// at again: reading all of it at every start would take minutes.
func (m *images) held(id string) (proof, bool) {
	var p proof
	b, err := os.ReadFile(m.proof(id))
	if err != nil || json.Unmarshal(b, &p) != nil {
		return p, false
	}
	info, err := os.Stat(m.path(id))
	return p, err == nil && info.Size() == p.Size
}

// ensure fetches an artifact unless it is held, and returns how many bytes
// crossed the wire. Calls for one artifact share one download, which ends early
// only when all of them left.
func (m *images) ensure(ctx context.Context, r *hostpb.EnsureArtifactRequest) (int64, error) {
	id, want := r.GetArtifactId(), proof{r.GetSha256(), r.GetSizeBytes()}
	if err := template.CheckID(id); err != nil {
		return 0, err
	}
	if !shaForm.MatchString(want.SHA256) || want.Size <= 0 {
		return 0, fault.New(fault.InvalidInput, "artifact %s: sha256 and size must be given", id)
	}
	for {
		f, held := m.join(ctx, r, want)
		if held {
			return 0, nil
		}
		select {
		case <-f.done:
		case <-ctx.Done():
			m.leave(f)
			return 0, ctx.Err()
		}
		if errors.Is(f.err, errAbandoned) || f.want != want {
			continue // the callers before us gave it up, or fetched another version
		}
		return f.fetched, f.err
	}
}

// join returns the download to wait for, or that none is needed.
func (m *images) join(ctx context.Context, r *hostpb.EnsureArtifactRequest, want proof) (f *flight, held bool) {
	id := r.GetArtifactId()
	m.mu.Lock()
	defer m.mu.Unlock()
	if f, ok := m.flights[id]; ok {
		f.waiting++
		return f, false
	}
	if p, ok := m.held(id); ok && p == want {
		return nil, true
	}
	own, abort := context.WithCancel(context.WithoutCancel(ctx))
	f = &flight{want: want, waiting: 1, abort: abort, done: make(chan struct{})}
	m.flights[id] = f
	m.work.Go(func() {
		defer abort()
		f.fetched, f.err = m.admit(own, r, want)
		if own.Err() != nil && f.err != nil {
			f.err = fmt.Errorf("%w: %w", errAbandoned, f.err)
		}
		m.mu.Lock()
		delete(m.flights, id)
		m.mu.Unlock()
		close(f.done)
	})
	return f, false
}

func (m *images) leave(f *flight) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if f.waiting--; f.waiting == 0 {
		f.abort()
	}
}

// admit waits for its turn and fetches.
func (m *images) admit(ctx context.Context, r *hostpb.EnsureArtifactRequest, want proof) (int64, error) {
	select {
	case m.slots <- struct{}{}:
		defer func() { <-m.slots }()
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	return m.fetch(ctx, r, want)
}

// keep makes a verified download the image of id. Sandboxes that run from an
// older one keep that one.
func (m *images) keep(id, part string, p proof) error {
	if err := os.Remove(m.path(id)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fault.Wrap(fault.DataDir, err, "artifact %s", id)
	}
	b, err := json.Marshal(p)
	if err != nil {
		return err
	}
	// The proof first: an image is never there without it.
	if err := replace(m.proof(id), b); err != nil {
		return fault.Wrap(fault.DiskFull, err, "artifact %s", id)
	}
	if err := os.Rename(part, m.path(id)); err != nil {
		return fault.Wrap(fault.DataDir, err, "artifact %s", id)
	}
	return syncDir(m.dir)
}

// remove removes an artifact's image and what was fetched of it; absent is
// success.
func (m *images) remove(id string) error {
	if err := template.CheckID(id); err != nil {
		return err
	}
	parts, err := filepath.Glob(m.path(id) + ".*" + partSuffix)
	if err != nil {
		return err
	}
	for _, path := range append(parts, m.path(id), m.proof(id)) {
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fault.Wrap(fault.DataDir, err, "artifact %s", id)
		}
	}
	return nil
}
