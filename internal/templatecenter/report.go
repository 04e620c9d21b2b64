package templatecenter

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/lease"
	"github.com/paddock-dev/paddock/internal/platform/auth"
	"github.com/paddock-dev/paddock/internal/rootfs"
	"github.com/paddock-dev/paddock/internal/store"
	"github.com/paddock-dev/paddock/internal/store/templatedb"
	"github.com/paddock-dev/paddock/internal/template"
)

const (
	boardEvery    = 200 * time.Millisecond
	reportEvery   = 800 * time.Millisecond // of pull progress
	heartbeat     = 10 * time.Second       // in every phase
	callTime      = 10 * time.Second       // of one report
	ticketLife    = 2 * time.Minute        // of the token of one report
	stopTime      = 10 * time.Second       // of all reports, once the centre stops
	progressTries = 6
	outcomeTries  = 12
	firstPause    = 200 * time.Millisecond
	longestPause  = 5 * time.Second
)

// percent is what each phase counts as when it begins; it only grows.
var percent = map[template.Phase]int{
	template.PhasePulling: 5, template.PhaseUnpacking: 20, template.PhaseBuildingExt4: 40, template.PhaseStoring: 60,
}

// teller tells the master how one job goes: each phase when it begins, the
// pull now and then, and a sign of life in between. One goroutine sends, so
// what is told stands in order.
type teller struct {
	c      *Center
	jobID  string
	lease  lease.Fence
	ctx    context.Context // of the build
	cancel context.CancelCauseFunc

	mu       sync.Mutex
	now      cubeapi.JobReport   // what is true now
	phases   []cubeapi.JobReport // begun and not told yet
	lines    []cubeapi.LogEntry  // said and not told yet
	said     int
	lineNo   int64 // lines that are told
	news     int   // counts the changes of now
	told     int   // the last of them that was sent
	entered  int   // the last of them that is in phases
	current  template.Phase
	began    time.Time
	span     trace.Span
	pull     template.Pull
	pullFrom time.Time
	posted   time.Time // on the board
	sent     time.Time // to the master

	wake   chan struct{}
	quit   chan struct{}
	ended  chan struct{}
	closed sync.Once
}

// newTeller begins to tell. close ends it; cancel is called if the job is gone.
func (c *Center) newTeller(ctx context.Context, j claim, cancel context.CancelCauseFunc) *teller {
	t := &teller{c: c, jobID: string(j.job.ID), lease: j.Fence, ctx: ctx, cancel: cancel, wake: make(chan struct{}, 1), quit: make(chan struct{}), ended: make(chan struct{})}
	go t.loop()
	return t
}

// phase notes that the build entered p. A phase is told of once.
func (t *teller) phase(p template.Phase) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.enter(p)
}

// event notes what the root filesystem's making says.
func (t *teller) event(e rootfs.Event) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.pullFrom.IsZero() {
		t.pullFrom = time.Now()
	}
	if e.Phase == template.PhasePulling {
		took := max(time.Since(t.pullFrom).Seconds(), 0.001)
		t.pull = template.Pull{TotalBytes: e.TotalBytes, DoneBytes: e.DoneBytes, TotalLayers: e.TotalLayers, DoneLayers: e.DoneLayers, BytesPerSecond: int64(float64(e.DoneBytes) / took)}
		t.now.PullTotalBytes, t.now.PullDoneBytes, t.now.PullTotalLayers, t.now.PullDoneLayers, t.now.PullBytesPerSecond = t.pull.TotalBytes, t.pull.DoneBytes, t.pull.TotalLayers, t.pull.DoneLayers, t.pull.BytesPerSecond
		t.news++
	}
	if e.Phase != t.current {
		t.enter(e.Phase)
	} else if time.Since(t.posted) >= boardEvery {
		t.rouse()
	}
}

func (t *teller) enter(p template.Phase) {
	if p == t.current {
		return
	}
	t.leave()
	t.current, t.began = p, time.Now()
	_, t.span = tracer().Start(t.ctx, "template.image."+string(p))
	t.now.Status, t.now.Phase, t.now.Progress = cubeapi.StatusRunning, cubeapi.Word(p), percent[p]
	t.news++
	t.phases, t.entered = append(t.phases, t.now), t.news
	t.rouse()
}

// leave ends the current phase.
func (t *teller) leave() {
	if t.current == "" {
		return
	}
	t.c.metrics.phase.WithLabelValues(string(t.current)).Observe(time.Since(t.began).Seconds())
	t.span.End()
	t.current = ""
}

func (t *teller) identify(digest, spec string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.now.SourceImageDigest, t.now.SpecFingerprint = digest, spec
	t.news++
	t.rouse()
}

const (
	logSource = "templatecenter"
	maxSaid   = 2000 // lines of one build
	maxLines  = 200  // of one report
)

// say adds a line to what is kept of the job.
func (t *teller) say(format string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.said++; t.said > maxSaid {
		return
	}
	line := fault.Clip(fmt.Sprintf(format, args...), templatedb.MaxLogLine)
	if t.said == maxSaid {
		line = "this builder has more to say than is kept"
	}
	t.lines = append(t.lines, cubeapi.LogEntry{AtMS: time.Now().UnixMilli(), Line: line})
	t.rouse()
}

// withLines gives a report the lines that are not told yet, as many as one may
// have.
func (t *teller) withLines(r cubeapi.JobReport) cubeapi.JobReport {
	t.mu.Lock()
	defer t.mu.Unlock()
	r.Log, r.LogFrom = slices.Clone(t.lines[:min(len(t.lines), maxLines)]), t.lineNo+1
	return r
}

// toldLines forgets the first lines, which are told.
func (t *teller) toldLines(n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.lines, t.lineNo = t.lines[n:], t.lineNo+int64(n)
}

func (t *teller) rouse() {
	select {
	case t.wake <- struct{}{}:
	default:
	}
}

func (t *teller) loop() {
	defer close(t.ended)
	tick := time.NewTicker(heartbeat)
	defer tick.Stop()
	for {
		beat := false
		select {
		case <-t.quit:
			t.tell(false)
			return
		case <-tick.C:
			beat = true
		case <-t.wake:
		case <-t.due():
		}
		t.tell(beat)
	}
}

// due fires when a change that was held back may be sent.
func (t *teller) due() <-chan time.Time {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.news == t.told && len(t.lines) == 0 || t.now.Status == "" {
		return nil
	}
	return time.After(time.Until(t.sent.Add(reportEvery)))
}

// tell sends the phases that began, then what is true now and what was said if
// that is due or the beat asks for it.
func (t *teller) tell(beat bool) {
	t.post()
	t.mu.Lock()
	reports, at := t.phases, t.entered
	t.phases = nil
	if due := (t.news > t.told || len(t.lines) > 0) && time.Since(t.sent) >= reportEvery; len(reports) == 0 && t.now.Status != "" && (beat || due) {
		reports, at = append(reports, t.now), t.news
	}
	if len(reports) > 0 {
		t.told, t.sent = at, time.Now()
	}
	t.mu.Unlock()
	for _, r := range reports {
		err := t.send(t.ctx, r, progressTries)
		if over(err) {
			t.cancel(err)
			return
		}
		if err != nil && t.ctx.Err() == nil {
			// A lost report is made good by the next.
			t.c.log.WarnContext(t.ctx, "progress not told", slog.String("job_id", t.jobID), slog.String("error", err.Error()))
		}
	}
}

// post puts the pull on the board.
func (t *teller) post() {
	t.mu.Lock()
	p, due := t.pull, time.Since(t.posted) >= boardEvery
	if due {
		t.posted = time.Now()
	}
	t.mu.Unlock()
	if !due || p == (template.Pull{}) {
		return
	}
	if err := t.c.board.Put(t.ctx, template.JobID(t.jobID), p); err != nil && t.ctx.Err() == nil {
		t.c.log.DebugContext(t.ctx, "progress board", slog.String("error", err.Error()))
	}
}

// close ends the telling of progress, when all that began was told. It may be
// called again.
func (t *teller) close() {
	t.closed.Do(func() { close(t.quit) })
	<-t.ended
	t.mu.Lock()
	defer t.mu.Unlock()
	t.leave()
}

// built tells of the artifact.
func (t *teller) built(r cubeapi.JobReport) error {
	ctx, cancel := t.lasting()
	defer cancel()
	return t.send(ctx, r, outcomeTries)
}

// failed tells that the job failed, and reports whether the master knows.
func (t *teller) failed(r cubeapi.JobReport) bool {
	ctx, cancel := t.lasting()
	defer cancel()
	err := t.send(ctx, r, outcomeTries)
	if over(err) || err == nil {
		return true
	}
	t.c.log.ErrorContext(t.ctx, "outcome of a build not told; another builder begins anew", slog.String("job_id", t.jobID), slog.String("error", err.Error()))
	return false
}

// lasting returns a context that outlives a cancelled build, since its outcome
// must still be told, but does not hold up a stop for long.
func (t *teller) lasting() (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.ctx))
	unhook := context.AfterFunc(t.c.queue.ctx, func() {
		select {
		case <-ctx.Done():
		case <-time.After(stopTime):
			cancel()
		}
	})
	return ctx, func() { cancel(); unhook() }
}

// send reports, and again while the master may only be away for a moment. What
// was said goes along; the lease proves that this is the builder.
func (t *teller) send(ctx context.Context, r cubeapi.JobReport, tries int) error {
	r = t.withLines(r)
	r.Holder, r.Epoch = t.lease.Holder, int64(t.lease.Epoch)
	pause := firstPause
	for try := 1; ; try++ {
		bounded, cancel := context.WithTimeout(ctx, callTime)
		err := t.sendOnce(bounded, r)
		cancel()
		if err == nil {
			t.toldLines(len(r.Log))
		}
		if err == nil || try == tries || !again(err) {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pause):
			pause = min(2*pause, longestPause)
		}
	}
}

// sendOnce reports with a ticket of this job, made for this report by the clock
// that masters check it by.
func (t *teller) sendOnce(ctx context.Context, r cubeapi.JobReport) error {
	key, err := auth.NewTicketKey(t.c.cfg.Auth.CallbackToken, "", auth.ForReport, t.jobID)
	if err != nil {
		return err
	}
	var until time.Time
	err = t.c.db.View(ctx, func(tx *store.Tx) error {
		until = tx.Now.Add(ticketLife)
		return nil
	})
	if err != nil {
		return err
	}
	return t.c.report.With(key.Ticket(until)).Job(ctx, t.jobID, r)
}

// over reports whether nobody has use for a build any more: its job was deleted,
// has an outcome that this build cannot change, or is another builder's.
func over(err error) bool {
	return errors.Is(err, fault.JobNotFound) || errors.Is(err, fault.StateConflict) || errors.Is(err, fault.StaleController)
}

// again reports whether the same report may be taken later: the master is
// away, busy, or failed by itself.
func again(err error) bool {
	status := fault.Of(err).Class.HTTP
	return status == 429 || status >= 500
}
