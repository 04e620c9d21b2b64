package master

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/host"
	"github.com/paddock-dev/paddock/internal/hostpb"
	"github.com/paddock-dev/paddock/internal/platform/id"
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
	minMilliCPU     = 10
	minMem          = 64 << 20

	// Beyond any host, so that sums never overflow; what is only beyond the
	// fleet is told by the scheduler.
	maxMilliCPU = 100_000_000
	maxMem      = 1 << 50

	forever    = -1                 // a timeout that never comes
	maxTimeout = 365 * 24 * 60 * 60 // in seconds

	// driverRunsc is the runtime of all hosts.
	driverRunsc = "runsc"

	// creator holds the submissions of creates.
	creator = "sandbox_create"
)

// plan is a request with its template merged in: what will be placed.
type plan struct {
	req      cubeapi.SandboxCreateRequest
	template template.Definition
	artifact template.Artifact
	writable int64
	command  []string
	envs     map[string]string
	ports    []int32
	row      sandbox.Sandbox
	again    bool // the row is that of an earlier request with the same id

	rules       *rules
	asks        scheduler.Request // of the scheduler, but for the fleet as it is
	annotations map[string]string // merged
	missed      *choice           // that found no host
	who         string            // the tenant

	from sandbox.Snapshot // that it begins with; zero: its template alone

	workingDir, user string
	probe            *sandbox.Probe // nil: the template has none

	egress    *hostpb.Egress
	resolver  *hostpb.Resolver
	openFiles uint64
}

// order is what a host is asked for.
func (p *plan) order() *hostpb.CreateSandboxRequest {
	r := p.row.Resources
	return &hostpb.CreateSandboxRequest{
		SandboxId: string(p.row.ID), TemplateId: string(p.template.ID), ArtifactId: string(p.artifact.ID), WritableBytes: p.writable, Envs: p.envs, Command: p.command, Metadata: p.row.Metadata,
		WorkingDir: p.workingDir, User: p.user, ExposedPorts: p.ports, Egress: p.egress, Resolver: p.resolver, OpenFiles: p.openFiles, Probe: probeMessage(p.probe),
		Driver: p.req.Driver, SnapshotId: string(p.from.ID), AccessToken: p.row.Life.AccessToken, Generation: int64(p.row.Life.Generation), NetworkRevision: p.row.Life.Revision,
		Resources: &hostpb.Resources{MilliCpu: r.MilliCPU, MemBytes: r.MemBytes, DiskBytes: r.DiskBytes, Slots: r.Slots},
	}
}

// begin stores the sandbox of a request, or finds the one that the same request
// asked for before. The same id with other content is fault.SubmissionReused.
func (m *Master) begin(ctx context.Context, req cubeapi.SandboxCreateRequest) (*plan, error) {
	if err := checkCreate(&req); err != nil {
		return &plan{rules: m.rules.Load()}, err
	}
	p := &plan{req: req, rules: m.rules.Load()}
	if req.RequestID == "" {
		return p, m.update(ctx, func(tx *store.Tx) error { return p.store(ctx, tx) })
	}
	body, err := json.Marshal(req)
	if err != nil {
		return p, err
	}
	sum := sha256.Sum256(body)
	err = m.update(ctx, func(tx *store.Tx) error {
		return p.storeOnce(ctx, tx, store.Submission{Holder: creator, ID: req.RequestID, Fingerprint: sum[:]})
	})
	return p, err
}

// storeOnce stores the sandbox unless an earlier try of the same request did. A
// try that failed left nothing, and counts for nothing.
func (p *plan) storeOnce(ctx context.Context, tx *store.Tx, sub store.Submission) error {
	for {
		p.again = true
		answer, err := tx.Once(ctx, sub, func() ([]byte, error) {
			p.again = false
			err := p.store(ctx, tx)
			return []byte(p.row.ID), err
		})
		if err != nil || !p.again {
			return err
		}
		p.row, err = sandboxdb.GetSandbox(ctx, tx, sandbox.ID(answer))
		if err != nil || !failedCreate(p.row) {
			return err
		}
		if err := tx.Forget(ctx, sub.Holder, sub.ID, answer); err != nil {
			return err
		}
	}
}

// The reasons of sandboxes that never came to be.
const (
	reasonFailed = "failed: "
	reasonLost   = "its create was lost"
)

func failedCreate(s sandbox.Sandbox) bool {
	ended := s.State == sandbox.Terminating || s.State == sandbox.Terminated
	return ended && (s.Reason == reasonLost || strings.HasPrefix(s.Reason, reasonFailed))
}

// store resolves the template and stores the sandbox, in one transaction that
// keeps the template from being deleted.
func (p *plan) store(ctx context.Context, tx *store.Tx) (err error) {
	if err := p.read(ctx, tx); err != nil {
		return err
	}
	if err := templatedb.Pin(ctx, tx, p.template); err != nil {
		return err
	}
	if p.artifact, err = templatedb.GetArtifact(ctx, tx, p.bytes()); err != nil {
		return err
	}
	if err := p.merge(); err != nil {
		return err
	}
	if p.asks, err = p.request(); err != nil {
		return err
	}
	p.row.ExpiresAt = expiry(tx.Now, p.row.Life.Timeout)
	p.row, err = sandboxdb.AddSandbox(ctx, tx, p.row)
	return err
}

// bytes is the artifact that the sandbox is over: that of its snapshot, which
// its template may have left behind.
func (p *plan) bytes() template.ArtifactID {
	return cmp.Or(p.from.ArtifactID, p.template.ArtifactID)
}

// read resolves the template, and the snapshot.
func (p *plan) read(ctx context.Context, tx *store.Tx) (err error) {
	if p.req.SnapshotID != "" {
		return p.readSnapshot(ctx, tx)
	}
	name := p.templateName()
	if name == "" {
		return fault.New(fault.InvalidInput, "template_id is missing")
	}
	p.template, err = templatedb.Resolve(ctx, tx, name)
	return err
}

func (p *plan) templateName() string {
	return cmp.Or(p.req.TemplateID, p.req.Annotations[cubeapi.AnnotationTemplate])
}

// kind is the instance type of the host.
func (p *plan) kind() string { return cmp.Or(p.req.InstanceType, p.template.InstanceType) }

// labels are those of the request and of the template, which count.
func labels(r, t map[string]string) map[string]string {
	if len(t) == 0 {
		return r
	}
	all := maps.Clone(t)
	for k, v := range r {
		if _, ok := all[k]; !ok {
			all[k] = v
		}
	}
	return all
}

// follow waits for a sandbox that an earlier try of the same request makes, and
// returns it once it runs.
func (m *Master) follow(ctx context.Context, id sandbox.ID) (sandbox.Sandbox, host.Facts, error) {
	for pause := firstDelay; ; pause = min(2*pause, maxDelay) {
		s, err := m.sandbox(ctx, id)
		if err != nil {
			return s, host.Facts{}, err
		}
		switch s.State {
		case sandbox.Allocating, sandbox.Starting:
		case sandbox.Terminating, sandbox.Terminated:
			return s, host.Facts{}, fault.New(fault.SandboxNotFound, "sandbox %s of this request ended: %s", id, s.Reason)
		default:
			f, err := m.host(ctx, s.HostID)
			if errors.Is(err, fault.HostUnknown) {
				err = nil
			}
			return s, f, err
		}
		select {
		case <-ctx.Done():
			return s, host.Facts{}, ctx.Err()
		case <-time.After(pause):
		}
	}
}

// checkCreate refuses what no template can make right.
func checkCreate(r *cubeapi.SandboxCreateRequest) (err error) {
	if err := checkRequestID(r.RequestID); err != nil {
		return err
	}
	if r.Network, r.OldNetwork, err = oneNetwork(r.Network, r.OldNetwork); err != nil {
		return err
	}
	if err := checkWords(r); err != nil {
		return err
	}
	for _, c := range r.Containers {
		if err := checkLimits(c.DNS, c.RLimit, c.Resources); err != nil {
			return err
		}
	}
	switch {
	case len(r.InstanceType) > maxKind:
		return fault.New(fault.InvalidInput, "instance_type has at most %d characters", maxKind)
	case len(r.Containers) > 1:
		return fault.New(fault.InvalidInput, "%d containers: a sandbox has one", len(r.Containers))
	case r.SnapshotID != "" && (r.TemplateID != "" || r.Annotations[cubeapi.AnnotationTemplate] != ""):
		return fault.New(fault.InvalidInput, "snapshot_id and template_id: a sandbox begins with the one or with the other")
	case r.SnapshotID != "" && (r.InsID != "" || r.InsIP != ""):
		return fault.New(fault.InvalidInput, "snapshot_id and ins_id or ins_ip: the snapshot's own host is taken")
	case r.Driver != "" && r.Driver != driverRunsc:
		return fault.New(fault.Unsupported, "driver %.64q: %s is the only one", r.Driver, driverRunsc)
	}
	if err := errors.Join(checkTimeout(r.Timeout), checkOnTimeout(r.OnTimeout)); err != nil {
		return err
	}
	if r.SnapshotID != "" {
		if err := checkSnapshotID(r.SnapshotID); err != nil {
			return err
		}
	}
	all := []cubeapi.KeyValue{}
	for k, v := range r.Envs {
		all = append(all, cubeapi.KeyValue{Key: k, Value: v})
	}
	var command, args []string
	for _, c := range r.Containers {
		command, args, all = c.Command, c.Args, append(all, c.Envs...)
	}
	return checkProgram(command, args, all)
}

// program is what a sandbox starts with, as an image says it: the entrypoint
// and its arguments.
type program struct{ entrypoint, args []string }

// with lays a command and arguments over a program, as containers do: a command
// takes the place of the entrypoint and drops its arguments, arguments alone
// take the place of the arguments.
func (p program) with(command, args []string) program {
	if len(command) > 0 {
		p = program{entrypoint: command}
	}
	if len(args) > 0 {
		p.args = args
	}
	return p
}

// merge lays the request over its template: the program and the environment of
// the image, of the template, of the request, the later one counting; resources as the
// template says, else as the request does.
func (p *plan) merge() error {
	t, err := keptOf(p.template.Request)
	if err != nil {
		return err
	}
	if p.writable, err = sandbox.Bytes(t.WritableLayerSize, "Gi"); err != nil {
		return err
	}
	// It may run again with the transaction, so it begins from nothing.
	p.envs, p.ports, p.workingDir, p.user = map[string]string{}, nil, p.artifact.WorkingDir, p.artifact.User
	run := program{p.artifact.Entrypoint, p.artifact.Cmd}
	for _, kv := range p.artifact.Env {
		if k, v, ok := strings.Cut(kv, "="); ok && k != "" {
			p.envs[k] = v
		}
	}
	add := func(list []cubeapi.KeyValue) {
		for _, e := range list {
			p.envs[e.Key] = e.Value
		}
	}
	if o := t.Overrides; o != nil {
		run = run.with(o.Command, o.Args)
		p.workingDir = cmp.Or(o.WorkingDir, p.workingDir)
		user, err := userOf(o.Security)
		if err != nil {
			return err
		}
		p.user = cmp.Or(user, p.user)
		add(o.Envs)
		p.probe = probeOf(o.Probe)
	}
	var asked *cubeapi.Quantity
	for _, c := range p.req.Containers {
		asked, run, p.workingDir = c.Resources, run.with(c.Command, c.Args), cmp.Or(c.WorkingDir, p.workingDir)
		add(c.Envs)
	}
	p.command = slices.Concat(run.entrypoint, run.args)
	maps.Copy(p.envs, p.req.Envs)
	p.annotations = p.req.Annotations
	if t.Overrides != nil {
		p.annotations = annotations(p.req.Annotations, t.Overrides.Annotations)
	}
	if p.ports, err = portsFor(t, p.annotations); err != nil {
		return err
	}
	p.egress, p.resolver, p.openFiles = egress(t.Network, p.req.Network), resolver(t.Overrides, p.req.Containers), openFiles(t.Overrides, p.req.Containers)
	res, err := resources(t.Overrides, asked, p.writable)
	if err != nil {
		return err
	}
	stored, err := json.Marshal(p.req)
	if err != nil {
		return err
	}
	p.row = sandbox.Sandbox{ID: sandbox.ID(id.New(sandbox.IDPrefix)), TemplateID: p.template.ID, Resources: res, Metadata: labels(p.req.Labels, t.Labels), Request: stored}
	return p.live(t)
}

// live fills in how the sandbox is to live.
func (p *plan) live(t kept) (err error) {
	l := &p.row.Life
	l.Generation, l.OnTimeout, l.AutoResume, l.Snapshot, l.Revision = 1, sandbox.OnTimeout(cmp.Or(p.req.OnTimeout, cubeapi.OnTimeoutKill)), p.req.AutoResume, p.from.ID, 1
	if p.req.Timeout != nil {
		l.Timeout = within(*p.req.Timeout)
	}
	if p.req.Secure {
		l.AccessToken = token()
	}
	l.Network, err = keptNetwork(together(t.Network, p.req.Network), p.egress, p.ports)
	return err
}

// token is a secret of 256 bits.
func token() string {
	var b [32]byte
	_, _ = rand.Read(b[:]) // it never fails
	return hex.EncodeToString(b[:])
}

// together is a request's policy laid over its template's; nil: neither says
// anything.
func together(t, r *cubeapi.NetworkConfig) *cubeapi.NetworkConfig {
	if t == nil || r == nil {
		return cmp.Or(r, t)
	}
	all := *t
	if r.AllowInternetAccess != nil {
		all.AllowInternetAccess = r.AllowInternetAccess
	}
	all.AllowOut, all.DenyOut = slices.Concat(t.AllowOut, r.AllowOut), slices.Concat(t.DenyOut, r.DenyOut)
	return &all
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
				return res, fmt.Errorf("containers[0].resources.cpu: %w", err)
			}
		}
		if q.Mem != "" {
			if res.MemBytes, err = sandbox.Bytes(q.Mem, "Mi"); err != nil {
				return res, fmt.Errorf("containers[0].resources.mem: %w", err)
			}
		}
	}
	if res.MilliCPU < minMilliCPU || res.MilliCPU > maxMilliCPU || res.MemBytes < minMem || res.MemBytes > maxMem {
		return res, fault.New(fault.InvalidInput, "%dm CPU and %d bytes of memory: a sandbox has %dm to %dm CPU and 64Mi to 1Pi memory", res.MilliCPU, res.MemBytes, minMilliCPU, maxMilliCPU)
	}
	return res, nil
}
