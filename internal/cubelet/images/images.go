// Package images keeps the artifacts of one host: whole and verified, or not at
// all under their final name.
//
// What a host lacks of an artifact is put together of chunks: from artifacts
// that it holds already, from hosts that hold this one, and last from the store.
// Nobody's word counts for the bytes, also not that of the store: each chunk is
// compared with the manifest, and the manifest with the sha256 that was asked
// for, or, where that is not known, the whole with its own.
// This package must never know what an image is for, nor who runs from it.
package images

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/paddock-dev/paddock/internal/artifact"
	"github.com/paddock-dev/paddock/internal/cubelet/durable"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/hostpb"
	"github.com/paddock-dev/paddock/internal/platform/config"
	"github.com/paddock-dev/paddock/internal/template"
)

const (
	imageSuffix    = ".ext4"
	proofSuffix    = ".json"     // what was verified of the image beside it
	manifestSuffix = ".chunks"   // of which chunks it is
	wholeSuffix    = ".download" // bytes in a row that are not verified
	partSuffix     = ".part"     // verified chunks, with holes where others belong

	downloadsAtOnce = 2
	readersAtOnce   = 16             // streams to other hosts
	partKept        = 24 * time.Hour // chunks that nobody asks for again
)

var shaForm = regexp.MustCompile(`^[0-9a-f]{64}$`)

// Options are what a Store goes by.
type Options struct {
	Dir   string // there already; its files are ours alone
	Log   *slog.Logger
	Token config.Secret // that hosts show each other
	// RedirectTo are the object stores, as host:port, to which a download may be
	// led although their addresses are private.
	RedirectTo []string
}

// Store is the artifacts of one host. It is safe for concurrent use.
type Store struct {
	dir     string
	log     *slog.Logger
	token   config.Secret
	web     *web
	slots   chan struct{} // one for each download at once
	readers chan struct{} // one for each stream to another host
	stall   stalls
	work    sync.WaitGroup

	mu      sync.Mutex
	flights map[string]*flight
}

// stalls are how long a transfer may bring nothing before it counts as broken.
type stalls struct{ origin, peer time.Duration }

// Traffic is where an artifact's bytes came from.
type Traffic struct {
	Wire  int64 // from anybody else
	Peers int64 // those of them that came from other hosts
	Local int64 // from artifacts that were held
}

func (t *Traffic) add(o Traffic) {
	t.Wire, t.Peers, t.Local = t.Wire+o.Wire, t.Peers+o.Peers, t.Local+o.Local
}

// flight is one download that several callers may wait for.
type flight struct {
	want    proof
	waiting int
	abort   context.CancelFunc
	done    chan struct{}
	got     Traffic
	err     error
}

// proof is what was verified of an image.
type proof struct {
	SHA256 string `json:"sha256"`
	Size   int64  `json:"size_bytes"`
	// PeerKey checks the tokens that other hosts must show.
	PeerKey string `json:"peer_key,omitempty"`
}

func (p proof) same(o proof) bool { return p.SHA256 == o.SHA256 && p.Size == o.Size }

// New returns the artifacts in a directory. Sweep should follow.
func New(o Options) *Store {
	return &Store{
		dir: o.Dir, log: o.Log, token: o.Token, web: newWeb(o.RedirectTo), stall: stalls{origin: 30 * time.Second, peer: 10 * time.Second},
		slots: make(chan struct{}, downloadsAtOnce), readers: make(chan struct{}, readersAtOnce), flights: map[string]*flight{},
	}
}

// Path returns where the image of an artifact is, if it is held.
func (m *Store) Path(id string) string { return filepath.Join(m.dir, id+imageSuffix) }

func (m *Store) proof(id string) string    { return filepath.Join(m.dir, id+proofSuffix) }
func (m *Store) manifest(id string) string { return filepath.Join(m.dir, id+manifestSuffix) }

// List returns the ids of the artifacts held.
func (m *Store) List() ([]string, error) {
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

// Sweep removes what an earlier process left half fetched, and images without
// proof: those were cut off, or put there by somebody else. Verified chunks of
// the last day stay, for whoever asks for the rest.
func (m *Store) Sweep() error {
	entries, err := os.ReadDir(m.dir)
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range entries {
		id, keep := "", false
		for _, suffix := range []string{imageSuffix, proofSuffix, manifestSuffix} {
			if name, ok := strings.CutSuffix(e.Name(), suffix); ok {
				id = name
			}
		}
		if id != "" {
			p, ok := m.held(id)
			keep = ok && p.Size > 0
		} else if strings.HasSuffix(e.Name(), partSuffix) {
			info, err := e.Info()
			keep = err == nil && time.Since(info.ModTime()) < partKept
		}
		if !keep {
			errs = append(errs, os.Remove(filepath.Join(m.dir, e.Name())))
		}
	}
	return errors.Join(errs...)
}

// dropOld removes chunks that nobody has asked for in a day.
func (m *Store) dropOld() error {
	parts, err := filepath.Glob(filepath.Join(m.dir, "*"+partSuffix))
	errs := []error{err}
	for _, path := range parts {
		if info, err := os.Stat(path); err == nil && time.Since(info.ModTime()) > partKept {
			errs = append(errs, ignoreAbsent(os.Remove(path)))
		}
	}
	return errors.Join(errs...)
}

func ignoreAbsent(err error) error {
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

// held returns what was verified of the image of id. Only its size is looked
// at again: reading all of it at every start would take minutes.
func (m *Store) held(id string) (proof, bool) {
	var p proof
	b, err := os.ReadFile(m.proof(id))
	if err != nil || json.Unmarshal(b, &p) != nil {
		return p, false
	}
	info, err := os.Stat(m.Path(id))
	return p, err == nil && info.Size() == p.Size
}

// Ensure fetches an artifact unless it is held, and returns where its bytes came
// from. Calls for one artifact share one download, which ends early only when
// all of them left.
func (m *Store) Ensure(ctx context.Context, r *hostpb.EnsureArtifactRequest) (Traffic, error) {
	id, want := r.GetArtifactId(), proof{SHA256: r.GetSha256(), Size: r.GetSizeBytes(), PeerKey: r.GetPeerKey()}
	if err := template.CheckID(id); err != nil {
		return Traffic{}, err
	}
	if !shaForm.MatchString(want.SHA256) || want.Size <= 0 {
		return Traffic{}, fault.New(fault.InvalidInput, "artifact %s: sha256 and size must be given", id)
	}
	for {
		f, held, err := m.join(ctx, r, want)
		if held || err != nil {
			return Traffic{}, err
		}
		select {
		case <-f.done:
		case <-ctx.Done():
			m.leave(f)
			return Traffic{}, ctx.Err()
		}
		if errors.Is(f.err, errAbandoned) || !f.want.same(want) {
			continue // the callers before us gave it up, or fetched another version
		}
		return f.got, f.err
	}
}

var errAbandoned = errors.New("nobody waits for the download any more")

// join returns the download to wait for, or that none is needed.
func (m *Store) join(ctx context.Context, r *hostpb.EnsureArtifactRequest, want proof) (f *flight, held bool, err error) {
	id := r.GetArtifactId()
	m.mu.Lock()
	defer m.mu.Unlock()
	if f, ok := m.flights[id]; ok {
		f.waiting++
		return f, false, nil
	}
	if p, ok := m.held(id); ok && p.same(want) {
		if p == want {
			return nil, true, nil
		}
		return nil, true, m.prove(id, want) // it was registered anew, with another key
	}
	own, abort := context.WithCancel(context.WithoutCancel(ctx))
	f = &flight{want: want, waiting: 1, abort: abort, done: make(chan struct{})}
	m.flights[id] = f
	m.work.Go(func() {
		defer abort()
		f.got, f.err = m.admit(own, r, want)
		if own.Err() != nil && f.err != nil {
			f.err = fmt.Errorf("%w: %w", errAbandoned, f.err)
		}
		m.mu.Lock()
		delete(m.flights, id)
		m.mu.Unlock()
		close(f.done)
	})
	return f, false, nil
}

func (m *Store) leave(f *flight) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if f.waiting--; f.waiting == 0 {
		f.abort()
	}
}

// Wait returns when no download runs. Callers of Ensure must have gone.
func (m *Store) Wait() {
	m.work.Wait()
	m.web.close()
}

// admit waits for its turn and fetches.
func (m *Store) admit(ctx context.Context, r *hostpb.EnsureArtifactRequest, want proof) (Traffic, error) {
	select {
	case m.slots <- struct{}{}:
		defer func() { <-m.slots }()
	case <-ctx.Done():
		return Traffic{}, ctx.Err()
	}
	if err := m.dropOld(); err != nil {
		m.log.WarnContext(ctx, "old chunks not removed", slog.String("error", err.Error()))
	}
	return m.fetch(ctx, r, want)
}

// fetch puts the artifact together of chunks. One that has no manifest, or a
// manifest that its bytes do not bear out, is fetched whole.
func (m *Store) fetch(ctx context.Context, r *hostpb.EnsureArtifactRequest, want proof) (got Traffic, err error) {
	if r.GetManifestUrl() == "" {
		return m.fetchWhole(ctx, r, want)
	}
	man, sums, n, err := m.readManifest(ctx, r, want)
	got.Wire = n
	if err == nil {
		var more Traffic
		more, err = m.assemble(ctx, r, want, man, sums)
		got.add(more)
	}
	if !errors.Is(err, errUnfit) || ctx.Err() != nil {
		return got, err
	}
	m.log.WarnContext(ctx, "an artifact cannot be put together of chunks; it is fetched whole", slog.String("artifact_id", r.GetArtifactId()), slog.String("error", err.Error()))
	more, err := m.fetchWhole(ctx, r, want)
	got.add(more)
	return got, err
}

// keep makes a verified file the image of id. Sandboxes that run from an older
// one keep that one.
func (m *Store) keep(id, part string, p proof, man *artifact.Manifest) error {
	for _, path := range []string{m.Path(id), m.manifest(id)} {
		if err := os.Remove(path); ignoreAbsent(err) != nil {
			return fault.Wrap(fault.DataDir, err, "artifact %s", id)
		}
	}
	if man != nil {
		b, err := json.Marshal(man)
		if err != nil {
			return err
		}
		if err := durable.Replace(m.manifest(id), b); err != nil {
			return fault.Wrap(fault.DiskFull, err, "artifact %s", id)
		}
	}
	// The proof first: an image is never there without it.
	if err := m.prove(id, p); err != nil {
		return err
	}
	if err := os.Rename(part, m.Path(id)); err != nil {
		return fault.Wrap(fault.DataDir, err, "artifact %s", id)
	}
	return durable.SyncDir(m.dir)
}

func (m *Store) prove(id string, p proof) error {
	b, err := json.Marshal(p)
	if err != nil {
		return err
	}
	if err := durable.Replace(m.proof(id), b); err != nil {
		return fault.Wrap(fault.DiskFull, err, "artifact %s", id)
	}
	return nil
}

// Remove removes an artifact's image and what was fetched of it; absent is
// success.
func (m *Store) Remove(id string) error {
	if err := template.CheckID(id); err != nil {
		return err
	}
	parts, err := filepath.Glob(m.Path(id) + ".*")
	if err != nil {
		return err
	}
	for _, path := range append(parts, m.Path(id), m.manifest(id), m.proof(id)) {
		if err := os.Remove(path); ignoreAbsent(err) != nil {
			return fault.Wrap(fault.DataDir, err, "artifact %s", id)
		}
	}
	return nil
}
