package master

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/host"
	"github.com/paddock-dev/paddock/internal/hostpb"
	"github.com/paddock-dev/paddock/internal/store"
	"github.com/paddock-dev/paddock/internal/store/sandboxdb"
	"github.com/paddock-dev/paddock/internal/store/templatedb"
	"github.com/paddock-dev/paddock/internal/template"
)

// peersAtMost is how many hosts another is told of.
const peersAtMost = 8

// spread lets hosts take an artifact from each other: as many may fetch it at
// once as hold it, and one when none does. So the store sends it about once,
// and who holds it doubles with each round. It is safe for concurrent use.
type spread struct {
	mu   sync.Mutex
	runs map[template.ArtifactID]*run
}

// run is one artifact on its way to hosts.
type run struct {
	callers int // between beginFetch and endFetch, and those who keep it
	active  int
	extra   int                // let in because nothing came to an end for long
	holders map[host.ID]string // their addresses
	changed chan struct{}      // closed when somebody's turn may have come
}

// beginFetch waits until f may fetch the artifact and returns whom it may ask for it.
// Who waits for so long without any fetch coming to an end goes ahead: one host
// that hangs must not hold up the rest. endFetch must follow, unless there is an
// error.
func (m *Master) beginFetch(ctx context.Context, id template.ArtifactID, f host.Facts) (peers []string, err error) {
	s := &m.spread
	s.mu.Lock()
	r := s.join(id)
	known := r.holders != nil
	s.mu.Unlock()
	if !known {
		err = m.findHolders(ctx, id, r)
	}
	for err == nil {
		s.mu.Lock()
		if r.active < max(1, len(r.holders))+r.extra {
			r.active++
			peers = r.peersOf(f.ID)
			s.mu.Unlock()
			return peers, nil
		}
		changed := r.changed
		s.mu.Unlock()
		select {
		case <-changed:
		case <-time.After(m.pace.spread):
			s.mu.Lock()
			if changed == r.changed { // nothing happened, and nobody else saw it first
				r.extra++
				r.wake()
			}
			s.mu.Unlock()
		case <-ctx.Done():
			err = ctx.Err()
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drop(id, r)
	return nil, err
}

// endFetch notes what came of a fetch.
func (m *Master) endFetch(id template.ArtifactID, f host.Facts, err error) {
	s := &m.spread
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.runs[id]
	r.active--
	if delete(r.holders, f.ID); err == nil {
		r.holders[f.ID] = address(f)
	}
	r.wake()
	s.drop(id, r)
}

// keep has it remembered who holds an artifact until the returned function is
// called.
func (s *spread) keep(id template.ArtifactID) (end func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.join(id)
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.drop(id, r)
	}
}

// join returns the run of an artifact; drop must follow.
func (s *spread) join(id template.ArtifactID) *run {
	r := s.runs[id]
	if r == nil {
		r = &run{changed: make(chan struct{})}
		s.runs[id] = r
	}
	r.callers++
	return r
}

func (s *spread) drop(id template.ArtifactID, r *run) {
	if r.callers--; r.callers == 0 {
		delete(s.runs, id)
	}
}

func (r *run) wake() {
	close(r.changed)
	r.changed = make(chan struct{})
}

// peersOf returns holders for a host to ask. Each host gets another order, so
// that no holder has all of the work.
func (r *run) peersOf(id host.ID) []string {
	var list []string
	for h, at := range r.holders { // in a random order
		if h != id {
			list = append(list, at)
		}
		if len(list) == peersAtMost {
			break
		}
	}
	return list
}

// ensureOn makes one host hold an artifact.
func (m *Master) ensureOn(ctx context.Context, a template.Artifact, f host.Facts) error {
	client, err := m.hosts.to(f)
	if err != nil {
		return err
	}
	peers, err := m.beginFetch(ctx, a.ID, f)
	if err != nil {
		return err
	}
	bounded, cancel := context.WithTimeout(ctx, m.cfg.Master.DistributeTimeout)
	defer cancel()
	manifest := m.manifestOf(bounded, a.ID)
	err = m.handOut(bounded, a, func(t tickets) error {
		_, err := client.EnsureArtifact(bounded, &hostpb.EnsureArtifactRequest{
			ArtifactId: string(a.ID), Token: t.download, Sha256: a.SHA256, SizeBytes: a.SizeBytes,
			Url: m.downloadURL(cubeapi.PathArtifactDownload, a), ManifestUrl: m.downloadURL(cubeapi.PathArtifactManifest, a),
			Peers: peers, PeerToken: t.peers, PeerKey: t.peerKey, ManifestSha256: manifest,
		})
		return hostFault(ctx, err, f.ID)
	})
	m.endFetch(a.ID, f, err)
	return err
}

// manifestOf returns the sha256 of an artifact's chunk manifest. Without it the
// host proves the whole, which takes longer and is as good.
func (m *Master) manifestOf(ctx context.Context, id template.ArtifactID) (sum string) {
	err := m.db.View(ctx, func(tx *store.Tx) (err error) {
		sum, err = templatedb.ManifestOf(ctx, tx, id)
		return err
	})
	if err != nil && ctx.Err() == nil {
		m.log.WarnContext(ctx, "chunk manifest not known", slog.String("artifact_id", string(id)), slog.String("error", err.Error()))
	}
	return sum
}

// findHolders reads which healthy hosts hold the artifact: hosts of another
// template, or of an earlier try.
func (m *Master) findHolders(ctx context.Context, id template.ArtifactID, r *run) error {
	found := map[host.ID]string{}
	err := m.db.View(ctx, func(tx *store.Tx) error {
		clear(found)
		placed, err := templatedb.ListPlacements(ctx, tx, id)
		if err != nil || len(placed) == 0 {
			return err
		}
		all, err := sandboxdb.ListHosts(ctx, tx)
		for _, f := range all {
			if host.HealthOf(f, tx.Now, m.cfg.Master.HostStaleAfter) != host.Unknown && slices.ContainsFunc(placed, func(p template.Placement) bool { return p.HostID == f.ID }) {
				found[f.ID] = address(f)
			}
		}
		return err
	})
	if err != nil {
		return err
	}
	m.spread.mu.Lock()
	defer m.spread.mu.Unlock()
	if r.holders == nil {
		r.holders = found
	}
	return nil
}
