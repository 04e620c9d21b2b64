package master

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/host"
	"github.com/paddock-dev/paddock/internal/hostpb"
	"github.com/paddock-dev/paddock/internal/platform/fail"
	"github.com/paddock-dev/paddock/internal/platform/id"
	"github.com/paddock-dev/paddock/internal/platform/serve"
	"github.com/paddock-dev/paddock/internal/sandbox"
	"github.com/paddock-dev/paddock/internal/scheduler"
	"github.com/paddock-dev/paddock/internal/store"
	"github.com/paddock-dev/paddock/internal/store/sandboxdb"
	"github.com/paddock-dev/paddock/internal/store/templatedb"
	"github.com/paddock-dev/paddock/internal/template"
)

const (
	defaultMilliCPU = 1000
	defaultMem      = 512 << 20
	minMem          = 64 << 20
	hostCall        = 15 * time.Second

	// The delay between attempts grows by a random factor of 1 to 1.8
	// (spec/scheduling 6.3).
	firstDelay = 5 * time.Millisecond
	maxDelay   = time.Second
)

// plan is a request with its template merged in: what will be placed.
type plan struct {
	req      cubeapi.SandboxCreateRequest
	template template.Definition
	artifact template.Artifact
	writable int64
	command  []string
	envs     map[string]string
	row      sandbox.Sandbox
}

func (m *Master) serveCreate(w http.ResponseWriter, r *http.Request) {
	began := time.Now()
	var req cubeapi.SandboxCreateRequest
	err := serve.ReadJSON(r, maxBody, &req)
	var s sandbox.Sandbox
	var made *hostpb.Sandbox
	var f host.Facts
	if err == nil {
		req.RequestID = named(r, req.RequestID)
		s, f, made, err = m.create(r.Context(), req)
	}
	outcome := "success"
	if err != nil {
		outcome = fault.Of(err).Name
	}
	m.metrics.create.WithLabelValues(outcome).Observe(time.Since(began).Seconds())
	if err != nil {
		serve.WriteError(w, r, err)
		return
	}
	ext := map[string]string{"cube-e2e": fmt.Sprintf("%.1f", time.Since(began).Seconds()*1000)}
	for step, us := range made.GetStepUs() {
		ext["step-"+step] = fmt.Sprintf("%.1f", float64(us)/1000)
	}
	shown := showSandbox(s)
	serve.WriteJSON(w, http.StatusOK, cubeapi.SandboxAnswer{Envelope: cubeapi.OK(req.RequestID), SandboxID: string(s.ID), SandboxIP: s.IP, HostID: string(s.HostID), HostIP: f.IP, ExtInfo: ext, Sandbox: &shown})
}

// create is the whole transaction: row, choice, host, row. Whatever fails
// after a host was called is undone by an outbox message, whether or not the
// caller is still there.
func (m *Master) create(ctx context.Context, req cubeapi.SandboxCreateRequest) (sandbox.Sandbox, host.Facts, *hostpb.Sandbox, error) {
	ctx, cancel := context.WithTimeout(ctx, m.cfg.Master.CreateTimeout)
	defer cancel()
	p, err := m.begin(ctx, req)
	if err != nil {
		return p.row, host.Facts{}, nil, err
	}
	f, made, err := m.place(ctx, p)
	if err == nil {
		err = fail.Point("master.create.after_host")
	}
	if err == nil {
		p.row.IP = made.GetIp()
		err = m.move(ctx, &p.row, sandbox.OnStarted)
	}
	if err != nil {
		m.abandon(ctx, p.row, err)
		return p.row, f, nil, err
	}
	m.fleet.ledger.Confirm(p.row.ID, p.row.ChangedAt)
	return p.row, f, made, nil
}

// begin resolves the template and stores the sandbox, in one transaction that
// keeps the template from being deleted.
func (m *Master) begin(ctx context.Context, req cubeapi.SandboxCreateRequest) (*plan, error) {
	name := req.TemplateID
	if name == "" {
		name = req.Annotations[cubeapi.AnnotationTemplate]
	}
	if name == "" {
		return &plan{}, fault.New(fault.InvalidInput, "template_id is missing")
	}
	p := &plan{req: req}
	err := m.db.Update(ctx, func(tx *store.Tx) (err error) {
		if p.template, err = templatedb.Resolve(ctx, tx, name); err != nil {
			return err
		}
		if err := templatedb.Pin(ctx, tx, p.template); err != nil {
			return err
		}
		if p.artifact, err = templatedb.GetArtifact(ctx, tx, p.template.ArtifactID); err != nil {
			return err
		}
		if err := p.merge(); err != nil {
			return err
		}
		p.row, err = sandboxdb.AddSandbox(ctx, tx, p.row)
		return err
	})
	return p, err
}

// merge lays the request over its template.
func (p *plan) merge() error {
	var t cubeapi.FromImageRequest
	if err := json.Unmarshal(p.template.Request, &t); err != nil {
		return fault.Wrap(fault.Bug, err, "request of template %s", p.template.ID)
	}
	var err error
	if p.writable, err = sandbox.Bytes(t.WritableLayerSize, "Gi"); err != nil {
		return err
	}
	var asked *cubeapi.Quantity
	p.envs = map[string]string{}
	if o := t.Overrides; o != nil {
		p.command = append(append([]string{}, o.Command...), o.Args...)
		for _, e := range o.Envs {
			p.envs[e.Key] = e.Value
		}
	}
	for i, c := range p.req.Containers {
		if i == 0 {
			asked = c.Resources
		}
		for _, e := range c.Envs {
			p.envs[e.Key] = e.Value
		}
	}
	for k, v := range p.req.Envs {
		p.envs[k] = v
	}
	res, err := resources(t.Overrides, asked, p.writable)
	if err != nil {
		return err
	}
	stored, err := json.Marshal(p.req)
	if err != nil {
		return err
	}
	p.row = sandbox.Sandbox{ID: sandbox.ID(id.New(sandbox.IDPrefix)), TemplateID: p.template.ID, Resources: res, Metadata: p.req.Labels, Request: stored}
	return nil
}

// resources returns what a sandbox takes: the template's word, else the
// request's, else the defaults. What does not parse is refused.
func resources(o *cubeapi.ContainerOverride, asked *cubeapi.Quantity, disk int64) (host.Resources, error) {
	res := host.Resources{MilliCPU: defaultMilliCPU, MemBytes: defaultMem, DiskBytes: disk, Slots: 1}
	list := []*cubeapi.Quantity{asked}
	if o != nil {
		list = append(list, o.Resources)
	}
	for _, q := range list {
		if q == nil {
			continue
		}
		var err error
		if q.CPU != "" {
			if res.MilliCPU, err = sandbox.MilliCPU(q.CPU); err != nil {
				return res, err
			}
		}
		if q.Mem != "" {
			if res.MemBytes, err = sandbox.Bytes(q.Mem, "Mi"); err != nil {
				return res, err
			}
		}
	}
	if res.MilliCPU < 10 || res.MemBytes < minMem {
		return res, fault.New(fault.InvalidInput, "a sandbox needs at least 10m CPU and %d MiB memory", minMem>>20)
	}
	return res, nil
}

// place chooses hosts until one makes the sandbox, none is left, or time is up.
func (m *Master) place(ctx context.Context, p *plan) (host.Facts, *hostpb.Sandbox, error) {
	r := scheduler.Request{Sandbox: p.row.ID, Template: p.template.ID, Artifact: p.template.ArtifactID, InstanceType: p.template.InstanceType, Resources: p.row.Resources, Seed: rand.Uint64()}
	for _, s := range p.req.Scope {
		r.Scope = append(r.Scope, host.ID(s))
	}
	delay := firstDelay
	var last error
	for {
		f, err := m.choose(ctx, r)
		if err != nil {
			if last != nil {
				err = errors.Join(err, last)
			}
			return host.Facts{}, nil, err
		}
		p.row.HostID = f.ID
		if err := m.move(ctx, &p.row, sandbox.OnCharged); err != nil {
			return f, nil, err
		}
		made, err := m.callCreate(ctx, p, f)
		if err == nil {
			return f, made, nil
		}
		if !elsewhere(err) || ctx.Err() != nil {
			return f, nil, err
		}
		m.log.InfoContext(ctx, "sandbox placed anew", slog.String("sandbox_id", string(p.row.ID)), slog.String("host_id", string(f.ID)), slog.String("error", err.Error()))
		// The host may have it after all: whatever it made is removed.
		if err := m.bounce(ctx, p, f.ID); err != nil {
			return f, nil, err
		}
		last = err
		r.Exclude = append(r.Exclude, f.ID)
		select {
		case <-ctx.Done():
			return f, nil, errors.Join(ctx.Err(), last)
		case <-time.After(delay):
			delay = min(maxDelay, time.Duration(float64(delay)*(1+0.8*rand.Float64())))
		}
	}
}

// elsewhere reports whether another host may do what one could not.
func elsewhere(err error) bool {
	for _, c := range []*fault.Code{fault.HostFull, fault.HostUnreachable, fault.ArtifactNotFound, fault.RuntimeFailed, fault.GuestUnreachable, fault.DataDir, fault.DiskFull} {
		if errors.Is(err, c) {
			return true
		}
	}
	return false
}

func (m *Master) choose(ctx context.Context, r scheduler.Request) (host.Facts, error) {
	v, now, err := m.fleet.now(ctx)
	if err != nil {
		return host.Facts{}, err
	}
	began := time.Now()
	d, err := m.fleet.placer.Choose(v, m.fleet.ledger, r, now)
	m.metrics.decision.Observe(time.Since(began).Seconds())
	for _, o := range d.Out {
		m.metrics.refused.WithLabelValues(o.Plugin).Add(float64(o.Hosts))
	}
	f, _ := v.Host(d.Host)
	return f, err
}

func (m *Master) callCreate(ctx context.Context, p *plan, f host.Facts) (*hostpb.Sandbox, error) {
	client, err := m.hosts.to(f)
	if err != nil {
		return nil, err
	}
	r := p.row.Resources
	answer, err := client.CreateSandbox(ctx, &hostpb.CreateSandboxRequest{
		SandboxId: string(p.row.ID), TemplateId: string(p.template.ID), ArtifactId: string(p.artifact.ID), WritableBytes: p.writable, Envs: p.envs, Command: p.command, Metadata: p.row.Metadata,
		Resources: &hostpb.Resources{MilliCpu: r.MilliCPU, MemBytes: r.MemBytes, DiskBytes: r.DiskBytes, Slots: r.Slots},
	})
	if err != nil {
		return nil, hostFault(err, f.ID)
	}
	return answer.GetSandbox(), nil
}

// bounce takes a sandbox back from a host: the row is free for another, and
// the host is told to remove what it may have made.
func (m *Master) bounce(ctx context.Context, p *plan, from host.ID) error {
	m.fleet.ledger.Release(p.row.ID)
	return m.db.Update(ctx, func(tx *store.Tx) (err error) {
		row := p.row
		row.HostID = ""
		if row, err = sandboxdb.MoveSandbox(ctx, tx, row, sandbox.OnBounced); err != nil {
			return err
		}
		p.row = row
		return enqueueDelete(ctx, tx, row.ID, from, false, "bounced")
	})
}

// move changes a sandbox's state in a transaction of its own.
func (m *Master) move(ctx context.Context, s *sandbox.Sandbox, on sandbox.Event) error {
	return m.db.Update(ctx, func(tx *store.Tx) error {
		next, err := sandboxdb.MoveSandbox(ctx, tx, *s, on)
		if err == nil {
			*s = next
		}
		return err
	})
}

// abandon ends a sandbox whose create failed. On a context of its own: the
// caller may have gone, and nothing may be left of it.
func (m *Master) abandon(ctx context.Context, s sandbox.Sandbox, why error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), hostCall)
	defer cancel()
	m.fleet.ledger.Release(s.ID)
	if err := m.end(ctx, s.ID, "failed: "+why.Error()); err != nil {
		m.log.ErrorContext(ctx, "failed create not undone; a sweep will try again", slog.String("sandbox_id", string(s.ID)), slog.String("error", err.Error()))
	}
}
