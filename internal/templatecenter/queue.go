package templatecenter

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/lease"
	"github.com/paddock-dev/paddock/internal/platform/fail"
	"github.com/paddock-dev/paddock/internal/platform/id"
	"github.com/paddock-dev/paddock/internal/store"
	"github.com/paddock-dev/paddock/internal/store/templatedb"
	"github.com/paddock-dev/paddock/internal/template"
)

// pace is how often the queue is looked at, and how long a builder that is
// silent keeps its job.
type pace struct {
	look     time.Duration // between two looks at the queue; a hand-over is looked at at once
	leaseFor time.Duration // after its builder's last sign of life a job is another's
	renew    time.Duration // between two signs of life
	margin   time.Duration // a builder that could give none stops so long before
	lost     time.Duration // between two looks for jobs whose builder is lost
}

var usualPace = pace{look: time.Second, leaseFor: 15 * time.Second, renew: 3 * time.Second, margin: 3 * time.Second, lost: 3 * time.Second}

const (
	queuePage = 50   // rows of one look
	maxHanded = 1024 // hand-overs that are remembered
)

// queue builds the jobs of the database, which is the queue: those of the
// highest priority first, and of these the one that came first. Several template
// centres share it. Whoever builds a job has the lease on it, which the master
// demands of every report, so that no two build one.
type queue struct {
	c      *Center
	holder string // this process, among all that there ever were
	limit  int
	pace   pace
	ctx    context.Context // of all builds
	cancel context.CancelFunc
	wake   chan struct{}

	mu     sync.Mutex
	handed map[template.JobID]handOver
	inHand map[template.JobID]bool // those that are built here
	claims int
	builds sync.WaitGroup

	present lease.Fence // of template.CentersSubject; the loop's own
	shown   time.Time
	swept   time.Time
}

// handOver is what the master said of a job and no row keeps: it is forgotten
// when the job begins or ends.
type handOver struct {
	username, password string
	envd               []byte // the agent of the job's own
	private            bool
	trace              map[string]string
}

// claim is a job that is this process's to build.
type claim struct {
	job  template.Job
	hand handOver
	lease.Fence
	sent time.Time // when the lease was last extended, by our own clock
}

func newQueue(c *Center, limit int) *queue {
	q := &queue{c: c, holder: id.New("tc-"), limit: max(1, limit), pace: usualPace, wake: make(chan struct{}, 1), handed: map[template.JobID]handOver{}, inHand: map[template.JobID]bool{}}
	q.ctx, q.cancel = context.WithCancel(context.Background())
	return q
}

// hand remembers what the master says of a job and has the queue looked at. A
// job that is in hand is fault.BuildInProgress.
func (q *queue) hand(job template.JobID, h handOver) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	_, known := q.handed[job]
	switch {
	case q.ctx.Err() != nil:
		return fault.New(fault.PeerUnavailable, "template centre: it stops")
	case q.inHand[job]:
		return fault.New(fault.BuildInProgress, "job %s", job)
	case !known && len(h.envd) > 0 && !q.roomFor(len(h.envd)):
		return fault.New(fault.TooManyWaiting, "template centre: envd of job %s", job)
	case known || len(q.handed) < maxHanded:
		q.handed[job] = h
	case h.private:
		return fault.New(fault.PeerUnavailable, "template centre: it keeps the credentials of %d jobs already", maxHanded)
	}
	q.rouse()
	if known {
		return fault.New(fault.BuildInProgress, "job %s", job)
	}
	return nil
}

func (q *queue) rouse() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// run claims and builds until ctx ends.
func (q *queue) run(ctx context.Context) {
	tick := time.NewTicker(q.pace.look)
	defer tick.Stop()
	for {
		if err := q.round(ctx); err != nil && ctx.Err() == nil {
			q.c.log.WarnContext(ctx, "queue", slog.String("error", err.Error()))
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-q.wake:
		}
	}
}

// round is one look. Each part is done although another failed.
func (q *queue) round(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, q.pace.leaseFor)
	defer cancel()
	errs := []error{q.show(ctx), q.fill(ctx)}
	if time.Since(q.swept) >= q.pace.lost {
		q.swept = time.Now()
		errs = append(errs, q.c.endLost(ctx, q.knows), q.forgetBegun(ctx))
	}
	return errors.Join(append(errs, q.measure(ctx))...)
}

// show keeps the lease that says that a template centre is up, unless another
// one does.
func (q *queue) show(ctx context.Context) error {
	if time.Since(q.shown) < q.pace.renew {
		return nil
	}
	q.shown = time.Now()
	err := q.c.db.Update(ctx, func(tx *store.Tx) error {
		if q.present.Epoch > 0 {
			if _, err := tx.Renew(ctx, q.present, q.pace.leaseFor); !errors.Is(err, fault.StaleController) {
				return err
			}
		}
		l, err := tx.Acquire(ctx, template.CentersSubject, q.holder, q.pace.leaseFor)
		q.present = l.Fence()
		return err
	})
	if errors.Is(err, fault.LeaseHeld) {
		q.present = lease.Fence{}
		return nil
	}
	return err
}

// fill claims jobs while there are builders.
func (q *queue) fill(ctx context.Context) error {
	free := q.free()
	if free == 0 {
		return nil
	}
	list, spent, err := q.next(ctx, free)
	errs := []error{err}
	for _, j := range list {
		if ctx.Err() != nil || q.free() == 0 {
			break
		}
		c, ok, err := q.claim(ctx, j.ID)
		errs = append(errs, err)
		if ok {
			q.begin(c)
		}
	}
	for _, j := range spent {
		errs = append(errs, q.c.endStalled(ctx, j, fmt.Sprintf("%d builders took it in hand, and each was lost before its first word", template.MaxBuilders)))
	}
	return errors.Join(errs...)
}

func (q *queue) free() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.limit - len(q.inHand)
}

// knows reports whether this process could build j, as far as credentials go.
func (q *queue) knows(j template.Job) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return !isPrivate(j) || q.handed[j.ID].private
}

// next returns the jobs that this process may build, at most n, and those that
// nobody may any more. Private jobs of others, of which there may be any number,
// are not read.
func (q *queue) next(ctx context.Context, n int) (list, spent []template.Job, err error) {
	private := q.lent()
	err = q.c.db.View(ctx, func(tx *store.Tx) error {
		list, spent = nil, nil
		own, err := templatedb.StillQueued(ctx, tx, private)
		if err == nil {
			_, err = q.sift(ctx, tx, own, &list, &spent)
		}
		for _, of := range []string{templatedb.Building, templatedb.Waiting} {
			var last *template.Job
			for found := 0; err == nil && found < n; {
				var page []template.Job
				if page, err = templatedb.Queue(ctx, tx, of, last, queuePage); err != nil {
					break
				}
				var more int
				more, err = q.sift(ctx, tx, page, &list, &spent)
				if found += more; len(page) < queuePage {
					break
				}
				last = &page[len(page)-1]
			}
		}
		return err
	})
	slices.SortFunc(list, func(a, b template.Job) int {
		return cmp.Or(cmp.Compare(b.Priority, a.Priority), a.CreatedAt.Compare(b.CreatedAt), cmp.Compare(a.ID, b.ID))
	})
	return list[:min(n, len(list))], spent, err
}

// sift adds what may be built here to list, and what nobody may to spent.
func (q *queue) sift(ctx context.Context, tx *store.Tx, page []template.Job, list, spent *[]template.Job) (found int, err error) {
	holds, err := templatedb.HoldsOf(ctx, tx, page)
	if err != nil {
		return 0, err
	}
	for _, j := range page {
		switch {
		case j.State == template.JobQueued && holds[j.ID] == template.Spent:
			*spent = append(*spent, j)
		case j.Claimable(holds[j.ID]) && q.knows(j) && !q.has(j.ID):
			*list = append(*list, j)
			found++
		}
	}
	return found, nil
}

// lent returns the private jobs whose credentials this process has.
func (q *queue) lent() (ids []template.JobID) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for id, h := range q.handed {
		if h.private {
			ids = append(ids, id)
		}
	}
	return ids
}

// has reports whether a job is built here.
func (q *queue) has(job template.JobID) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.inHand[job]
}

// claim takes the lease on a job in the transaction that sees that it may still
// be built; ok is false when it may not.
func (q *queue) claim(ctx context.Context, job template.JobID) (c claim, ok bool, err error) {
	q.claims++
	// Of its own: a lease of ours that is not over must not be taken for this one.
	holder := fmt.Sprintf("%s.%d", q.holder, q.claims)
	sent := time.Now()
	var waited time.Duration
	err = q.c.db.Update(ctx, func(tx *store.Tx) error {
		ok = false
		j, err := templatedb.GetJob(ctx, tx, job)
		if err != nil {
			return err
		}
		hold, _, err := templatedb.HoldOf(ctx, tx, j)
		if err != nil || !j.Claimable(hold) {
			return err
		}
		l, err := tx.Acquire(ctx, template.BuildSubject(job), holder, q.pace.leaseFor)
		if err != nil {
			return err
		}
		if j, err = templatedb.TouchJob(ctx, tx, j); err != nil { // nobody ended it meanwhile
			return err
		}
		c, ok, waited = claim{job: j, Fence: l.Fence(), sent: sent}, true, tx.Now.Sub(j.CreatedAt)
		return nil
	})
	if errors.Is(err, fault.LeaseHeld) || errors.Is(err, fault.VersionConflict) || errors.Is(err, fault.JobNotFound) {
		return c, false, nil // another was faster, or it is over
	}
	if err != nil || !ok {
		return c, false, err
	}
	if c.Epoch == 1 {
		q.c.metrics.wait.Observe(waited.Seconds())
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	c.hand = q.handed[job]
	delete(q.handed, job)
	q.inHand[job] = true
	return c, true, fail.Point("templatecenter.claimed")
}

// begin builds a claimed job.
func (q *queue) begin(c claim) {
	q.builds.Go(func() {
		defer func() {
			q.mu.Lock()
			defer q.mu.Unlock()
			delete(q.inHand, c.job.ID)
			q.c.metrics.running.Set(float64(len(q.inHand)))
			q.rouse()
		}()
		q.c.build(q.ctx, c)
	})
}

// keep shows that a claimed job is worked on, until the returned function is
// called. cancel is called when the job must not be worked on any more: it has
// ended, the lease is another's, or it could not be extended in time.
func (q *queue) keep(ctx context.Context, c claim, cancel context.CancelCauseFunc) (stop func()) {
	ctx, end := context.WithCancel(context.WithoutCancel(ctx))
	expiry := time.AfterFunc(time.Until(q.until(c.sent)), func() {
		cancel(fault.New(fault.StaleController, "job %s: this builder's lease could not be extended in time", c.job.ID))
	})
	kept := make(chan struct{})
	go func() {
		defer close(kept)
		q.renew(ctx, c, cancel, expiry)
	}()
	return func() {
		end()
		<-kept
		expiry.Stop()
	}
}

func (q *queue) until(sent time.Time) time.Time {
	return lease.StopAt(sent, q.pace.leaseFor, q.pace.margin)
}

func (q *queue) renew(ctx context.Context, c claim, cancel context.CancelCauseFunc, expiry *time.Timer) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(q.pace.renew):
		}
		sent := time.Now()
		bounded, done := context.WithTimeout(ctx, q.pace.leaseFor)
		err := q.c.db.Update(bounded, func(tx *store.Tx) error {
			if _, err := tx.Renew(bounded, c.Fence, q.pace.leaseFor); err != nil {
				return err
			}
			j, err := templatedb.GetJob(bounded, tx, c.job.ID)
			if err == nil && j.State == template.JobFailed {
				err = fault.New(fault.StateConflict, "job %s has ended: %s", j.ID, j.Error)
			}
			return err
		})
		done()
		switch {
		case over(err):
			cancel(err)
			q.c.log.WarnContext(ctx, "build stopped", slog.String("job_id", string(c.job.ID)), slog.String("error", err.Error()))
			return
		case err == nil && !expiry.Stop():
			return // too late: it was told
		case err == nil:
			expiry.Reset(time.Until(q.until(sent)))
		case ctx.Err() == nil:
			q.c.log.WarnContext(ctx, "lease of a build not extended", slog.String("job_id", string(c.job.ID)), slog.String("error", err.Error()))
		}
	}
}

// release ends the lease on a job that is worked on no more, so that nobody
// waits for its end. What cannot be written now ends by itself.
func (q *queue) release(ctx context.Context, f lease.Fence) {
	if f.Epoch == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTime)
	defer cancel()
	err := q.c.db.Update(ctx, func(tx *store.Tx) error { return tx.Release(ctx, f) })
	if err != nil && !errors.Is(err, fault.StaleController) {
		q.c.log.WarnContext(ctx, "lease not released", slog.String("subject", f.Subject), slog.String("error", err.Error()))
	}
}

// giveBack leaves a job that is worked on to the others when this process stops:
// it waits again, and the builder does not count as one that was lost. It reports
// false when there is no stop, or when nobody else can build the job, which then
// fails. What cannot be written now is another's when the lease is over.
func (q *queue) giveBack(ctx context.Context, c claim) bool {
	if q.ctx.Err() == nil || !errors.Is(context.Cause(ctx), context.Canceled) || isPrivate(c.job) {
		return false
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTime)
	defer cancel()
	err := q.c.db.Update(ctx, func(tx *store.Tx) error {
		if err := tx.Guard(ctx, c.Fence); err != nil {
			return err
		}
		j, err := templatedb.GetJob(ctx, tx, c.job.ID)
		if err != nil {
			return err
		}
		j.Plan.Returned++
		if _, err = templatedb.MoveJob(ctx, tx, j, template.OnJobReturned); err != nil {
			return err
		}
		if err := templatedb.AddLog(ctx, tx, j.ID, templatedb.LogLine{At: tx.Now, Source: logSource, Line: "template centre " + c.Holder + " stops and gives the job back"}); err != nil {
			return err
		}
		return tx.Release(ctx, c.Fence)
	})
	if err != nil && !over(err) {
		q.c.log.WarnContext(ctx, "a job is not given back; another takes it when the lease is over", slog.String("job_id", string(c.job.ID)), slog.String("error", err.Error()))
	}
	return true
}

// forgetBegun drops what was handed over of jobs that wait no more.
func (q *queue) forgetBegun(ctx context.Context) error {
	q.mu.Lock()
	ids := make([]template.JobID, 0, len(q.handed))
	for id := range q.handed {
		ids = append(ids, id)
	}
	q.mu.Unlock()
	var still []template.Job
	err := q.c.db.View(ctx, func(tx *store.Tx) (err error) {
		still, err = templatedb.StillQueued(ctx, tx, ids)
		return err
	})
	if err != nil {
		return err
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, id := range ids {
		if !slices.ContainsFunc(still, func(j template.Job) bool { return j.ID == id }) {
			delete(q.handed, id)
		}
	}
	return nil
}

func (q *queue) measure(ctx context.Context) error {
	var n int
	err := q.c.db.View(ctx, func(tx *store.Tx) (err error) {
		n, err = templatedb.QueueLen(ctx, tx)
		return err
	})
	if err == nil {
		q.c.metrics.waiting.Set(float64(n))
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.c.metrics.running.Set(float64(len(q.inHand)))
	return err
}

// stop cancels every build and waits until each has ended. What waits is left
// to the others, or to the next start.
func (q *queue) stop() {
	q.cancel()
	q.builds.Wait()
	q.release(q.ctx, q.present)
	q.mu.Lock()
	defer q.mu.Unlock()
	clear(q.handed)
}

// request is what a claimed job asks for, with the credentials that are to be
// used.
func (c claim) request() (cubeapi.FromImageRequest, error) {
	r, err := storedRequest(c.job)
	r.RegistryUsername, r.RegistryPassword = c.hand.username, c.hand.password
	return r.FromImageRequest, err
}
