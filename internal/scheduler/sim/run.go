package sim

import (
	"container/heap"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/host"
	"github.com/paddock-dev/paddock/internal/sandbox"
	"github.com/paddock-dev/paddock/internal/scheduler"
)

// Run is one replay.
type Run struct {
	Config  scheduler.Config
	Breaker scheduler.BreakerConfig
	Retry   scheduler.RetryConfig
	Queue   scheduler.QueueConfig
	Hosts   []host.Facts
	Trace   []Event
	Seed    uint64

	Masters  int           // that share the trace; each knows only what it did and what hosts report
	InFlight int           // creates that a master has under way at once
	Report   time.Duration // how often a host reports
	Create   time.Duration // how long a host takes, about
	Timeout  time.Duration // after which a reply is given up
	Lost     float64       // share of the replies that never arrive
	// Stop is asked now and then whether to give up; nil: never.
	Stop func() bool
	// Watch reads a clock around each decision; nil: nothing is measured.
	Watch func() time.Duration
}

// Defaults is a run of three masters over hosts that report each second.
func Defaults() Run {
	return Run{
		Config: scheduler.DefaultConfig(), Breaker: scheduler.DefaultBreakerConfig(), Retry: scheduler.DefaultRetryConfig(), Queue: scheduler.DefaultQueueConfig(),
		Masters: 3, InFlight: 64, Report: time.Second, Create: 15 * time.Millisecond, Timeout: 2 * time.Second,
	}
}

// batches is in how many groups hosts report, so that they do not all at once.
const batches = 10

// truth is a host as it is.
type truth struct {
	facts    host.Facts
	has      map[sandbox.ID]host.Resources
	sum      host.Resources
	revision int64
}

// master is one of those who choose.
type master struct {
	view     *scheduler.View
	ledger   *scheduler.Ledger
	breakers *scheduler.Breakers
	budget   *scheduler.RetryBudget
	queue    *scheduler.Queue
	flying   int
}

// create is one event on its way.
type create struct {
	*Event
	master  *master
	request scheduler.Request
	retries scheduler.Retries
	host    host.ID
	attempt int
	over    bool
}

// happening is something that is due at a time. Equal times keep their order.
type happening struct {
	at  time.Duration
	seq int
	do  func()
}

type agenda []happening

func (a agenda) Len() int { return len(a) }
func (a agenda) Less(i, j int) bool {
	return a[i].at < a[j].at || a[i].at == a[j].at && a[i].seq < a[j].seq
}
func (a agenda) Swap(i, j int) { a[i], a[j] = a[j], a[i] }
func (a *agenda) Push(x any)   { *a = append(*a, x.(happening)) }
func (a *agenda) Pop() any {
	last := (*a)[len(*a)-1]
	*a = (*a)[:len(*a)-1]
	return last
}

// play is a run while it runs.
type play struct {
	Run
	rng       *rand.Rand
	scheduler *scheduler.Scheduler
	policy    *scheduler.RetryPolicy
	masters   []*master
	hosts     map[host.ID]*truth
	order     []host.ID
	kinds     []string // instance types that creates ask for
	done      int      // happenings
	agenda    agenda
	seq       int
	now       time.Duration
	left      int           // creates that are not over
	until     time.Duration // when hosts stop to report
	waiting   map[string]*create
	result    Result
	digest    [8]byte
	decision  scheduler.Decision
	waits     map[string][]time.Duration
	asked     map[string]int
	served    map[string]int
	samples   samples
	affinity  map[int]*scheduler.Affinity // of the events that have one
}

// Do replays the trace. A bad configuration is refused as by the scheduler.
func (r Run) Do() (Result, error) {
	p := &play{Run: r, rng: rand.New(rand.NewPCG(r.Seed, 0x7275)), hosts: map[host.ID]*truth{}, waiting: map[string]*create{}, waits: map[string][]time.Duration{}, asked: map[string]int{}, served: map[string]int{}, affinity: map[int]*scheduler.Affinity{}}
	if r.Masters < 1 || r.InFlight < 1 || r.Report < batches || r.Create <= 0 || r.Timeout <= 0 || len(r.Hosts) == 0 || !(r.Lost >= 0 && r.Lost <= 1) {
		return Result{}, fault.New(fault.BadConfig, "simulation: it needs hosts, masters, creates in flight, positive times, and a share of lost replies within 0 and 1")
	}
	var err error
	if p.scheduler, err = scheduler.New(r.Config); err != nil {
		return Result{}, err
	}
	if p.policy, err = scheduler.NewRetryPolicy(r.Retry); err != nil {
		return Result{}, err
	}
	for i := range r.Trace {
		where, err := r.Trace[i].where()
		if err != nil {
			return Result{}, fault.Wrap(fault.BadConfig, err, "simulation: event %d", i)
		}
		if where != nil {
			p.affinity[i] = where
		}
	}
	for _, h := range r.Hosts {
		p.hosts[h.ID] = &truth{facts: h, has: map[sandbox.ID]host.Resources{}}
		p.order = append(p.order, h.ID)
	}
	for range r.Masters {
		m := &master{view: scheduler.NewView(r.Hosts, epoch), ledger: scheduler.NewLedger(), budget: p.policy.Budget()}
		if m.breakers, err = scheduler.NewBreakers(r.Breaker); err != nil {
			return Result{}, err
		}
		if m.queue, err = scheduler.NewQueue(r.Queue); err != nil {
			return Result{}, err
		}
		p.masters = append(p.masters, m)
	}
	for i := range r.Trace {
		if !slices.Contains(p.kinds, r.Trace[i].Kind) {
			p.kinds = append(p.kinds, r.Trace[i].Kind)
		}
	}
	p.play()
	if p.left > 0 {
		return Result{}, fault.New(fault.CallCancelled, "simulation: stopped with %d creates to go", p.left)
	}
	return p.finish(), nil
}

func (p *play) play() {
	p.left = len(p.Trace)
	for i := range p.Trace {
		e := &p.Trace[i]
		p.after(e.At, func() { p.arrive(e, p.masters[i%len(p.masters)], p.affinity[i]) })
	}
	for b := range batches {
		p.after(time.Duration(b)*p.Report/batches, func() { p.report(b) })
	}
	for len(p.agenda) > 0 {
		if p.done++; p.done%1024 == 0 && p.Stop != nil && p.Stop() {
			return
		}
		next := heap.Pop(&p.agenda).(happening)
		p.now = next.at
		next.do()
	}
}

func (p *play) after(d time.Duration, do func()) {
	p.seq++
	heap.Push(&p.agenda, happening{p.now + d, p.seq, do})
}

func (p *play) clock() time.Time { return epoch.Add(p.now) }

// report lets a batch of hosts tell every master how they stand.
func (p *play) report(batch int) {
	var told []host.Facts
	for i := batch; i < len(p.order); i += batches {
		t := p.hosts[p.order[i]]
		h := t.facts
		h.Allocated, h.Sandboxes, h.HeardAt, h.Usage.Revision = t.sum, len(t.has), p.clock(), t.revision
		told = append(told, h)
	}
	for _, m := range p.masters {
		m.view = m.view.With(p.clock(), told)
		m.ledger.Observe(m.view)
	}
	if batch == 0 && p.left > 0 {
		p.sample()
	}
	if p.left > 0 {
		p.until = p.now + 3*p.Report // so that what came last is reported too
	}
	if p.now < p.until {
		p.after(p.Report, func() { p.report(batch) })
	}
}

func (p *play) arrive(e *Event, m *master, where *scheduler.Affinity) {
	p.asked[e.Tenant]++
	c := &create{Event: e, master: m}
	c.request = scheduler.Request{Sandbox: e.Sandbox, InstanceType: e.Kind, Resources: e.Size, Labels: e.Labels, Scope: e.Scope, Affinity: where, Breakers: m.breakers}
	c.request.Template, c.request.Artifact = e.ids()
	t := scheduler.Ticket{ID: string(e.Sandbox), Tenant: e.Tenant, InstanceType: e.Kind}
	if e.Deadline > 0 {
		t.Deadline = p.clock().Add(e.Deadline)
	}
	m.budget.Earn()
	if err := m.queue.Push(t, p.clock()); err != nil {
		p.over(c, &p.result.TurnedAway)
		return
	}
	p.waiting[t.ID] = c
	p.serve(m, e.Kind)
}

// serve lets through whose turn it is, as long as there is room for more.
func (p *play) serve(m *master, kind string) {
	for m.flying < p.InFlight {
		t, ok, late := m.queue.Pop(kind, p.clock())
		for _, l := range late {
			p.over(p.waiting[l.ID], &p.result.Late)
		}
		if !ok {
			return
		}
		m.flying++
		p.choose(p.waiting[t.ID])
	}
}

// over ends c, for the reason that is counted.
func (p *play) over(c *create, count *int) {
	*count++
	p.left--
	c.over = true
	delete(p.waiting, string(c.Sandbox))
}

// choose takes one decision and calls the host.
func (p *play) choose(c *create) {
	m := c.master
	c.request.Seed = p.rng.Uint64()
	var began time.Duration
	if p.Watch != nil {
		began = p.Watch()
	}
	err := p.scheduler.ChooseInto(&p.decision, m.view, m.ledger, &c.request, p.clock())
	if p.Watch != nil {
		p.result.spent = append(p.result.spent, p.Watch()-began)
	}
	p.result.Decisions++
	if err != nil {
		p.note(c, "-")
		p.over(c, &p.result.Refused)
		p.landed(c)
		return
	}
	p.note(c, p.decision.Host)
	c.host = p.decision.Host
	c.attempt++
	attempt := c.attempt
	p.after(p.network(), func() { p.admit(c, attempt, c.host) })
	p.after(p.Timeout, func() { p.reply(c, attempt, answer{transport: true}) })
}

// note adds a decision to the digest.
func (p *play) note(c *create, id host.ID) {
	h := fnv.New64a()
	_, _ = h.Write(p.digest[:]) // a hash never fails
	_, _ = fmt.Fprintf(h, "%d %s %s %s", p.now, c.Sandbox, id, p.decision.RunnerUp)
	binary.LittleEndian.PutUint64(p.digest[:], h.Sum64())
}

func (p *play) network() time.Duration {
	return time.Duration(float64(time.Millisecond) * (0.2 + 0.3*p.rng.Float64()))
}

type answer struct {
	ok, transport bool
	revision      int64
}

// admit is the host's own decision: it takes what fits into its truth.
func (p *play) admit(c *create, attempt int, id host.ID) {
	t := p.hosts[id]
	a := answer{ok: true}
	took := time.Duration(0)
	if _, has := t.has[c.Sandbox]; !has {
		if a.ok = t.sum.Add(c.Size).Fits(t.facts.Allocatable); a.ok {
			t.has[c.Sandbox], t.sum = c.Size, t.sum.Add(c.Size)
			t.revision++
			took = time.Duration(float64(p.Create) * (0.5 + p.rng.ExpFloat64()/2))
		} else {
			p.result.HostSaidFull++
		}
	}
	if !t.sum.Fits(t.facts.Allocatable) {
		p.result.Oversold++
	}
	a.revision = t.revision
	if p.rng.Float64() < p.Lost {
		p.result.RepliesLost++
		return
	}
	p.after(took+p.network(), func() { p.reply(c, attempt, a) })
}

// The ret codes of what hosts answer.
const (
	codeFull    = 130480
	codeUnheard = 130596
)

// reply is what a master makes of an answer, or of none in time.
func (p *play) reply(c *create, attempt int, a answer) {
	if c.over || c.attempt != attempt {
		return // it came too late: that host was told to remove what it made
	}
	m := c.master
	if a.ok {
		m.breakers.Report(c.host, c.Sandbox, scheduler.Succeeded, p.clock())
		m.ledger.ConfirmAt(c.Sandbox, p.clock(), a.revision)
		p.running(c)
		p.landed(c)
		return
	}
	m.ledger.Release(c.Sandbox)
	code, outcome := codeFull, scheduler.CapacityRefused
	if a.transport {
		code, outcome = codeUnheard, scheduler.TransportFailed
		from := c.host
		p.after(p.network(), func() { p.remove(c, from) })
	}
	m.breakers.Report(c.host, c.Sandbox, outcome, p.clock())
	left := time.Hour
	if c.Deadline > 0 {
		left = c.At + c.Deadline - p.now
	}
	v := p.policy.After(&c.retries, code, a.transport, p.rng.Float64(), left, m.budget)
	if !v.Again {
		p.over(c, &p.result.GivenUp)
		p.landed(c)
		return
	}
	p.result.Retries++
	c.attempt++ // nothing of the last attempt counts any more
	c.request.Exclude = append(c.request.Exclude, c.host)
	p.after(v.Wait, func() { p.choose(c) })
}

// landed makes room for the next one: of its type if any waits, else of another.
func (p *play) landed(c *create) {
	c.master.flying--
	p.serve(c.master, c.Kind)
	for _, kind := range p.kinds {
		p.serve(c.master, kind)
	}
}

// running counts a sandbox that is there, until its life ends.
func (p *play) running(c *create) {
	p.waits[c.Tenant] = append(p.waits[c.Tenant], p.now-c.At)
	p.served[c.Tenant]++
	if a := string(c.request.Artifact); a != "" {
		p.result.templated++
		if h, _ := c.master.view.Host(c.host); slices.Contains(h.Artifacts, a) {
			p.result.hits++
		}
	}
	p.over(c, &p.result.Placed)
	if c.Life > 0 {
		on := c.host
		p.after(c.Life, func() {
			p.remove(c, on)
			// Who asked for its end hears of it before the next report.
			p.after(p.network(), func() { c.master.ledger.Release(c.Sandbox) })
		})
	}
}

func (p *play) remove(c *create, from host.ID) {
	t := p.hosts[from]
	if size, has := t.has[c.Sandbox]; has {
		delete(t.has, c.Sandbox)
		t.sum = t.sum.Sub(size)
		t.revision++
	}
}
