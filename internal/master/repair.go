package master

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/fsm"
	"github.com/paddock-dev/paddock/internal/host"
	"github.com/paddock-dev/paddock/internal/platform/id"
	"github.com/paddock-dev/paddock/internal/store"
	"github.com/paddock-dev/paddock/internal/store/sandboxdb"
	"github.com/paddock-dev/paddock/internal/store/templatedb"
	"github.com/paddock-dev/paddock/internal/template"
)

const (
	repairLock  = "paddock_master_repair"
	repairLook  = 200 // templates, and artifacts, that one round looks at
	repairTries = 64  // hosts that one round serves
)

// repairer is what the rounds of repair remember between each other. It may be
// lost at any time: the rows have what matters.
type repairer struct {
	template template.ID         // the last that was looked at
	artifact template.ArtifactID // the last whose bytes were asked for
	scan     time.Time           // when they are asked for again from the first
	lost     template.ArtifactID // the last of those that are lost
	failed   map[lack]*pause
}

// lack is a template that a host should have; without a template it is a host
// that does not answer.
type lack struct {
	template template.ID
	host     host.ID
}

// pause is how long a host that failed is left alone: ever longer.
type pause struct {
	until time.Time // by this process's clock
	last  time.Duration
}

// repairLoop finishes what jobs left open: hosts that failed or came later get
// their templates, and bytes that the store has lost are built again.
func (m *Master) repairLoop(ctx context.Context) {
	r := &repairer{failed: map[lack]*pause{}}
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(m.pace.repair):
		}
		// One master at a time: the rest have nothing to add.
		_, err := m.db.WithLock(ctx, repairLock, 0, func(ctx context.Context) error {
			return errors.Join(m.repairHosts(ctx, r), m.repairBytes(ctx, r))
		})
		if err != nil && ctx.Err() == nil {
			m.log.WarnContext(ctx, "repair", slog.String("error", err.Error()))
		}
	}
}

// repairable are the states of templates that can be better than they are.
var repairable = []template.State{template.Ready, template.PartiallyReady, template.Failed}

// repairHosts looks at the next templates, by id, so that each has its turn,
// and serves the hosts that lack one of them, as many as fit in a round.
func (m *Master) repairHosts(ctx context.Context, r *repairer) error {
	var list []template.Definition
	var all []host.Facts
	var now time.Time
	err := m.db.View(ctx, func(tx *store.Tx) (err error) {
		now = tx.Now
		if all, err = sandboxdb.ListHosts(ctx, tx); err != nil {
			return err
		}
		list, err = templatedb.DefinitionsAfter(ctx, tx, r.template, repairLook, repairable...)
		return err
	})
	if err != nil {
		return err
	}
	if len(list) < repairLook {
		r.template = "" // the next round begins anew
	} else {
		r.template = list[len(list)-1].ID
	}
	left, errs := repairTries, []error{}
	for _, d := range list {
		if ctx.Err() != nil || left <= 0 {
			break
		}
		lacking, stale, err := m.lacking(ctx, r, d, all, now)
		errs = append(errs, err)
		switch lacking = lacking[:min(len(lacking), left)]; {
		case len(lacking) > 0:
			left -= len(lacking)
			errs = append(errs, m.repairTemplate(ctx, r, d.ID, lacking))
		case stale: // a host was removed, or whoever changed a replica ended then
			errs = append(errs, m.judgeRepaired(ctx, d.ID, d.ArtifactID, &round{}))
		}
		if left <= 0 {
			r.template = d.ID // whoever comes after it is next
		}
	}
	r.forget(time.Now())
	return errors.Join(errs...)
}

// lacking returns the healthy hosts that a template is meant for and that do
// not have it, without those that failed a short while ago; and whether the
// template's state is not what its replicas make of it.
func (m *Master) lacking(ctx context.Context, r *repairer, d template.Definition, all []host.Facts, now time.Time) (list []host.Facts, stale bool, err error) {
	req, err := keptOf(d.Request)
	if err != nil {
		return nil, false, err
	}
	replicas := map[host.ID]template.Replica{}
	err = m.db.View(ctx, func(tx *store.Tx) error {
		rows, err := templatedb.ListReplicas(ctx, tx, d.ID)
		for _, p := range rows {
			replicas[p.HostID] = p
		}
		return err
	})
	for _, f := range m.fit(all, req.FromImageRequest, now, func(id host.ID) bool { _, there := replicas[id]; return there }) {
		p, there := replicas[f.ID]
		switch {
		case r.waits(lack{d.ID, f.ID}) || r.waits(lack{"", f.ID}):
		case !there, p.State == template.ReplicaReady && p.ArtifactID != d.ArtifactID:
			list = append(list, f)
		case p.State == template.ReplicaReady:
			// What it was given long ago and does not report is not there any more.
			if !slices.Contains(f.Artifacts, string(d.ArtifactID)) && now.Sub(p.ChangedAt) > m.pace.orphanGrace {
				list = append(list, f)
			}
		case now.Sub(p.ChangedAt) >= m.pace.repairFirst: // another master may just have tried
			list = append(list, f)
		}
	}
	rows := slices.Collect(maps.Values(replicas))
	on, _ := verdict(rows)
	to, stepErr := template.Definitions.Step(d.State, on, fsm.None{})
	return list, len(rows) > 0 && stepErr == nil && to != d.State, err
}

func (r *repairer) waits(k lack) bool {
	p := r.failed[k]
	return p != nil && time.Now().Before(p.until)
}

// heard remembers how a host did with a template. One that did not answer is
// not asked for its other templates either: each would take the time of all.
func (m *Master) heard(r *repairer, name template.ID, h host.ID, err error) {
	first, last := m.pace.repairFirst, m.pace.repairLast
	r.note(lack{name, h}, err, first, last)
	if err == nil || errors.Is(err, fault.HostUnreachable) || errors.Is(err, fault.Deadline) {
		r.note(lack{"", h}, err, first, last)
	}
}

// note remembers how one thing went.
func (r *repairer) note(k lack, err error, first, last time.Duration) {
	if err == nil {
		delete(r.failed, k)
		return
	}
	p := r.failed[k]
	if p == nil {
		p = &pause{}
		r.failed[k] = p
	}
	p.last = min(max(2*p.last, first), last)
	p.until = time.Now().Add(p.last)
}

// forget drops the pauses that ended so long ago that their template or host
// must have gone.
func (r *repairer) forget(now time.Time) {
	for k, p := range r.failed {
		if now.Sub(p.until) > 2*p.last+time.Hour {
			delete(r.failed, k)
		}
	}
}

// repairTemplate brings a template to hosts that lack it, and writes what it
// is then. Whoever has the artifact in hand is let go first; a template with a
// job is the job's.
func (m *Master) repairTemplate(ctx context.Context, r *repairer, name template.ID, hosts []host.Facts) error {
	d, a, ok, err := m.mayRepair(ctx, name)
	if err != nil || !ok {
		return err
	}
	_, err = m.db.WithLock(ctx, artifactLock(d.ArtifactID), 0, func(ctx context.Context) error {
		// Once more: what was read before the lock may be over.
		now, a2, ok, err := m.mayRepair(ctx, name)
		if err != nil || !ok || now.ArtifactID != d.ArtifactID {
			return err
		}
		a = a2
		w := &round{job: template.Job{ID: now.JobID, TemplateID: now.ID, ArtifactID: a.ID, Request: now.Request}, artifact: a, hosts: hosts, expected: len(hosts), failed: map[host.ID]error{}}
		m.repairRound(ctx, w)
		for _, f := range hosts {
			m.heard(r, name, f.ID, w.failed[f.ID])
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		m.doubtBytes(ctx, w)
		return m.judgeRepaired(ctx, now.ID, a.ID, w)
	})
	return err
}

// repairRound serves the hosts of a round. A ready replica whose host has lost
// the bytes is not counted as ready meanwhile.
func (m *Master) repairRound(ctx context.Context, w *round) {
	ctx, cancel := context.WithTimeout(ctx, resumeTime)
	defer cancel()
	var group errgroup.Group
	group.SetLimit(m.cfg.Master.DistributeWorkers)
	for _, f := range w.hosts {
		group.Go(func() error {
			over, err := m.bring(ctx, w.job, w.artifact, f)
			if !over { // it is tried again later, too
				err = m.endBring(ctx, w.job, w.artifact, f, true, err)
			}
			if err != nil {
				w.fail(f.ID, err)
				m.log.InfoContext(ctx, "host not repaired; it is tried again later", slog.String("template_id", string(w.job.TemplateID)), slog.String("host_id", string(f.ID)), slog.String("error", err.Error()))
			}
			return nil
		})
	}
	_ = group.Wait() // each failure is in the round
	m.fleet.changed()
}

// mayRepair reports whether nobody else is at work on a template, and its
// artifact can be brought to hosts.
func (m *Master) mayRepair(ctx context.Context, name template.ID) (d template.Definition, a template.Artifact, ok bool, err error) {
	err = m.db.View(ctx, func(tx *store.Tx) (err error) {
		d, err = templatedb.GetDefinition(ctx, tx, name)
		if err != nil || !slices.Contains(repairable, d.State) {
			return err
		}
		if _, active, err := templatedb.ActiveJob(ctx, tx, name); err != nil || active {
			return err
		}
		if a, err = templatedb.GetArtifact(ctx, tx, d.ArtifactID); err != nil {
			return err
		}
		ok = servable(a) == nil
		return nil
	})
	if errors.Is(err, fault.TemplateNotFound) || errors.Is(err, fault.ArtifactNotFound) {
		return d, a, false, nil
	}
	return d, a, ok, err
}

// noRepair reports whether a repair, which names the template's last job, is of
// no use any more: the template is deleted, or made of other bytes.
func noRepair(ctx context.Context, tx *store.Tx, j template.Job) (bool, error) {
	d, err := templatedb.GetDefinition(ctx, tx, j.TemplateID)
	if errors.Is(err, fault.TemplateNotFound) {
		return true, nil
	}
	return err == nil && (!slices.Contains(repairable, d.State) || d.ArtifactID != j.ArtifactID), err
}

// judgeRepaired writes what a template is after a repair, unless a job has
// begun meanwhile: then that is the job's to say.
func (m *Master) judgeRepaired(ctx context.Context, name template.ID, artifact template.ArtifactID, w *round) error {
	return m.update(ctx, func(tx *store.Tx) error {
		d, err := templatedb.GetDefinition(ctx, tx, name)
		if errors.Is(err, fault.TemplateNotFound) {
			return nil
		}
		if err != nil || !slices.Contains(repairable, d.State) || d.ArtifactID != artifact {
			return err
		}
		if _, active, err := templatedb.ActiveJob(ctx, tx, name); err != nil || active {
			return err
		}
		if err := settleReplicas(ctx, tx, d, w.took); err != nil {
			return err
		}
		_, err = judge(ctx, tx, d)
		return err
	})
}

// bytesState is where the bytes of an artifact are.
type bytesState int

const (
	bytesThere bytesState = iota // where hosts can fetch them
	bytesHere                    // only on this master's own disk
	bytesGone
)

// askBytes asks the template centre for an artifact's bytes: whether all are
// there and, with verify, whether they are the right ones. An error says that
// it cannot tell, and nothing may be concluded from it.
func (m *Master) askBytes(ctx context.Context, a template.Artifact, verify bool) (state bytesState, why string, err error) {
	limit := centerCall
	if verify {
		limit = m.cfg.Master.DistributeTimeout
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	s, err := m.center.StatArtifact(ctx, string(a.ID), verify)
	switch {
	case errors.Is(err, fault.ArtifactNotFound), errors.Is(err, fault.BytesElsewhere):
		switch {
		case m.onOwnDisk(a):
			return bytesHere, "", nil
		case errors.Is(err, fault.BytesElsewhere):
			return 0, "", err
		}
		return bytesGone, fmt.Sprintf("the artifact store has lost the bytes of %s", a.ID), nil
	case err != nil:
		return 0, "", fmt.Errorf("whether the bytes of artifact %s are there: %w", a.ID, err)
	case s.SizeBytes != a.SizeBytes:
		return bytesGone, fmt.Sprintf("the artifact store has %d bytes of %s, its row says %d", s.SizeBytes, a.ID, a.SizeBytes), nil
	case s.SHA256 != "" && s.SHA256 != a.SHA256:
		return bytesGone, fmt.Sprintf("the artifact store has other bytes of %s than its row says", a.ID), nil
	}
	return bytesThere, "", nil
}

// doubtBytes looks at the store when hosts say that it has not what it should.
func (m *Master) doubtBytes(ctx context.Context, r *round) {
	missing, corrupt := false, false
	for _, err := range r.failed {
		missing = missing || errors.Is(err, fault.ArtifactNotFound)
		corrupt = corrupt || errors.Is(err, fault.ArtifactCorrupt)
	}
	if !missing && !corrupt {
		return
	}
	if err := m.checkBytes(ctx, r.artifact, corrupt); err != nil && ctx.Err() == nil {
		m.log.WarnContext(ctx, "bytes that hosts did not get", slog.String("artifact_id", string(r.artifact.ID)), slog.String("error", err.Error()))
	}
}

// checkBytes demotes an artifact whose bytes are gone: nothing reuses it then,
// and the next round of repair builds it again if it can.
func (m *Master) checkBytes(ctx context.Context, a template.Artifact, verify bool) error {
	state, why, err := m.askBytes(ctx, a, verify)
	if err != nil || state != bytesGone {
		return err
	}
	m.log.WarnContext(ctx, "artifact lost", slog.String("artifact_id", string(a.ID)), slog.String("why", why))
	return m.update(ctx, func(tx *store.Tx) error {
		now, err := templatedb.GetArtifact(ctx, tx, a.ID)
		if errors.Is(err, fault.ArtifactNotFound) || err == nil && (now.State != template.ArtifactReady || now.Version != a.Version) {
			return nil // it is another now
		}
		if err != nil {
			return err
		}
		return loseBytes(ctx, tx, now, why)
	})
}

// repairBytes has lost bytes built again, and looks for more that are lost.
func (m *Master) repairBytes(ctx context.Context, r *repairer) error {
	errs := []error{}
	if !time.Now().Before(r.scan) {
		errs = append(errs, m.scanBytes(ctx, r))
	}
	var lost []template.Artifact
	err := m.db.View(ctx, func(tx *store.Tx) (err error) {
		lost, err = templatedb.ArtifactsAfter(ctx, tx, r.lost, repairLook, template.ArtifactFailed)
		return err
	})
	errs = append(errs, err)
	for _, a := range lost {
		errs = append(errs, m.heal(ctx, a))
	}
	r.lost = ""
	if len(lost) == repairLook {
		r.lost = lost[repairLook-1].ID
	}
	return errors.Join(errs...)
}

// scanTries bounds the artifacts of which a round is told nothing: then it is the
// template centre or its store that is away.
const scanTries = 3

// scanBytes asks for the bytes of the next artifacts, by id. Once all were asked
// for it rests for a while. One of which nothing can be told hides none behind
// it.
func (m *Master) scanBytes(ctx context.Context, r *repairer) error {
	var list []template.Artifact
	err := m.db.View(ctx, func(tx *store.Tx) (err error) {
		list, err = templatedb.ArtifactsAfter(ctx, tx, r.artifact, repairLook, template.ArtifactReady)
		return err
	})
	if err != nil {
		return err
	}
	var errs []error
	for _, a := range list {
		err := m.checkBytes(ctx, a, false)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		r.artifact = a.ID
		if err != nil {
			if errs = append(errs, err); len(errs) == scanTries {
				return errors.Join(errs...)
			}
		}
	}
	if len(list) < repairLook {
		r.artifact, r.scan = "", time.Now().Add(m.pace.scan)
	}
	return errors.Join(errs...)
}

// heal has the templates of a lost artifact built again, or says on each why
// that cannot be done.
func (m *Master) heal(ctx context.Context, a template.Artifact) error {
	var list []template.Definition
	due := map[template.ID]bool{}
	err := m.db.View(ctx, func(tx *store.Tx) (err error) {
		if list, err = templatedb.DefinitionsOf(ctx, tx, a.ID, repairLook); err != nil {
			return err
		}
		for _, d := range list {
			j, found, err := templatedb.LatestJob(ctx, tx, d.ID)
			if err != nil {
				return err
			}
			failed := found && j.Operation == template.OpRedo && j.State == template.JobFailed
			due[d.ID] = slices.Contains(repairable, d.State) && !(found && j.State.Active()) && (!failed || tx.Now.Sub(j.ChangedAt) > m.pace.healAgain)
		}
		return nil
	})
	errs := []error{err}
	for _, d := range list {
		if !due[d.ID] {
			continue
		}
		why := fault.New(fault.BytesLost, "template %s: master.heal_rebuild is off", d.ID)
		if m.cfg.Master.HealRebuild {
			var j template.Job
			if j, why = m.redo(ctx, cubeapi.RedoRequest{RequestID: id.New("heal-"), TemplateID: string(d.ID)}); why == nil {
				m.log.InfoContext(ctx, "lost bytes are built again", slog.String("template_id", string(d.ID)), slog.String("artifact_id", string(a.ID)), slog.String("job_id", string(j.ID)))
			}
		}
		if why != nil {
			errs = append(errs, m.mourn(ctx, d.ID, a, why))
		}
	}
	return errors.Join(errs...)
}

// mourn says on a template that its bytes are lost. Hosts that hold them still
// serve it.
func (m *Master) mourn(ctx context.Context, name template.ID, a template.Artifact, why error) error {
	if fault.Of(why).Class.Retry || errors.Is(why, fault.BuildInProgress) || errors.Is(why, fault.NoTemplateHosts) {
		return nil // it is tried again
	}
	words := clip(fmt.Sprintf("%s; hosts that hold them go on serving the template: %v", a.Error, why))
	return m.update(ctx, func(tx *store.Tx) error {
		d, err := templatedb.GetDefinition(ctx, tx, name)
		if errors.Is(err, fault.TemplateNotFound) {
			return nil
		}
		if err != nil || d.ArtifactID != a.ID || d.Error == words || !slices.Contains(repairable, d.State) {
			return err
		}
		on := map[template.State]template.Event{template.Ready: template.OnAllReady, template.PartiallyReady: template.OnSomeReady, template.Failed: template.OnNoneReady}[d.State]
		d.Error = words
		_, err = templatedb.MoveDefinition(ctx, tx, d, on)
		return err
	})
}
