package master

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/host"
	"github.com/paddock-dev/paddock/internal/scheduler"
	"github.com/paddock-dev/paddock/internal/store"
	"github.com/paddock-dev/paddock/internal/store/sandboxdb"
)

const (
	// labelCaller is the label that tells who asked for a sandbox.
	labelCaller = "X-Caller"
	maxCaller   = 128

	maxPorts        = 64
	maxSpreads      = 4
	maxSpreadLabels = 8
)

// tenant is for whom a sandbox is made, as far as creates wait for each other.
type tenant struct{ name string }

// tenantOf returns the caller that the header names, else the namespace of the
// request. A caller of the header is noted in a label.
func tenantOf(r *http.Request, req *cubeapi.SandboxCreateRequest) (tenant, error) {
	caller := r.Header.Get(cubeapi.HeaderCaller)
	for what, name := range map[string]string{"header " + cubeapi.HeaderCaller: caller, "namespace": req.Namespace} {
		if len(name) > maxCaller || !isName(name) {
			return tenant{}, fault.New(fault.InvalidInput, "%s %.64q: at most %d bytes of text", what, name, maxCaller)
		}
	}
	if caller != "" {
		req.Labels = maps.Clone(req.Labels)
		if req.Labels == nil {
			req.Labels = map[string]string{}
		}
		req.Labels[labelCaller] = caller
	}
	return tenant{cmp.Or(caller, req.Namespace, "default")}, nil
}

// kindOf is the instance type that a create waits with, before its template is
// read.
func kindOf(r cubeapi.SandboxCreateRequest) string { return cmp.Or(r.InstanceType, "cubebox") }

// annotations are those of the request under those of the template, which
// count. A network id is the request's alone.
func annotations(r, t map[string]string) map[string]string {
	all := maps.Clone(r)
	for k, v := range t {
		if k == cubeapi.AnnotationNetID {
			continue
		}
		if all == nil {
			all = map[string]string{}
		}
		all[k] = v
	}
	return all
}

// request is what the scheduler is asked for a merged plan, by the rules that
// its create keeps.
func (p *plan) request() (scheduler.Request, error) {
	r := scheduler.Request{
		Sandbox: p.row.ID, Template: p.template.ID, Artifact: p.bytes(), ImageBytes: p.artifact.SizeBytes, InstanceType: p.kind(),
		Labels: p.row.Metadata, Resources: p.row.Resources, Breakers: p.rules.breakers,
	}
	for _, s := range p.req.Scope {
		r.Scope = append(r.Scope, host.ID(s))
	}
	debug := strings.EqualFold(p.annotations[cubeapi.AnnotationDebug], "true")
	if (p.req.InsID != "" || p.req.InsIP != "") && !debug {
		return r, fault.New(fault.InvalidInput, "ins_id and ins_ip name a host, for debugging only: with annotation %s: true", cubeapi.AnnotationDebug)
	}
	r.Direct = host.ID(p.req.InsID)
	if p.from.ID != "" { // nobody else has its bytes
		r.Direct = p.from.HostID
	}
	r.Force = debug && strings.EqualFold(p.annotations[cubeapi.AnnotationForce], "true")
	var err error
	r.Affinity, err = p.affinity()
	return r, err
}

// affinity is that of the cluster, of the annotations and of the request's own
// field: every term holds all three.
func (p *plan) affinity() (*scheduler.Affinity, error) {
	base, err := p.rules.affinity.Affinity(p.kind(), p.row.Resources, p.annotations)
	own := p.req.Affinity
	if err != nil || own == nil {
		return base, err
	}
	all := scheduler.Affinity{}
	var must scheduler.Term
	if base != nil {
		must = base.Terms[0]
		all.Terms = base.Terms
	}
	if len(own.Required) > 0 {
		all.Terms = nil
	}
	for _, list := range own.Required {
		t, err := p.term(list)
		if err != nil {
			return nil, err
		}
		all.Terms = append(all.Terms, slices.Concat(must, t))
	}
	for _, wish := range own.Preferred {
		t, err := p.term(wish.Term)
		if err != nil {
			return nil, err
		}
		all.Preferred = append(all.Preferred, scheduler.Preferred{Term: t, Weight: wish.Weight})
	}
	if len(own.Spread) > maxSpreads {
		return nil, fault.New(fault.InvalidInput, "affinity.spread has %d entries, at most %d", len(own.Spread), maxSpreads)
	}
	for i, s := range own.Spread {
		if len(s.Labels) == 0 || len(s.Labels) > maxSpreadLabels {
			return nil, fault.New(fault.InvalidInput, "affinity.spread[%d].labels: 1 to %d labels say which sandboxes are kept apart", i, maxSpreadLabels)
		}
		if !p.rules.affinity.Knows(s.Key) {
			return nil, scheduler.NotKnown(fmt.Sprintf("affinity.spread[%d].key %.80q may not be selected by", i, s.Key))
		}
		all.Spread = append(all.Spread, scheduler.Spread{Key: s.Key, MaxSkew: s.MaxSkew, Hard: s.Hard, Labels: s.Labels})
	}
	return all.Checked()
}

func (p *plan) term(list []cubeapi.Requirement) (scheduler.Term, error) {
	var t scheduler.Term
	for _, r := range list {
		if !p.rules.affinity.Knows(r.Key) {
			return nil, scheduler.NotKnown(fmt.Sprintf("affinity: label %.80q may not be selected by", r.Key))
		}
		t = append(t, scheduler.Requirement{Key: r.Key, Operator: scheduler.Operator(r.Operator), Values: r.Values})
	}
	return t, nil
}

// locate looks up what a request says of the fleet as it is now: the host that
// has an address, and where those are that it keeps apart from.
func (m *Master) locate(ctx context.Context, p *plan, r *scheduler.Request) error {
	byIP, spreads := p.req.InsIP != "", r.Affinity != nil && len(r.Affinity.Spread) > 0
	if !byIP && !spreads {
		return nil
	}
	var apart scheduler.Affinity
	if spreads {
		apart = *r.Affinity
		apart.Spread = slices.Clone(apart.Spread)
	}
	err := m.db.View(ctx, func(tx *store.Tx) error {
		if byIP {
			if err := hostAt(ctx, tx, p.req, r); err != nil {
				return err
			}
		}
		for i := range apart.Spread {
			peers, err := sandboxdb.CountByHost(ctx, tx, p.req.Affinity.Spread[i].Labels)
			if err != nil {
				return err
			}
			apart.Spread[i].Peers = peers
		}
		return nil
	})
	if err != nil || !spreads {
		return err
	}
	r.Affinity, err = apart.Checked()
	return err
}

// hostAt finds the host that a request names by its address.
func hostAt(ctx context.Context, tx *store.Tx, req cubeapi.SandboxCreateRequest, r *scheduler.Request) error {
	all, err := sandboxdb.ListHosts(ctx, tx)
	if err != nil {
		return err
	}
	for _, f := range all {
		if f.IP == req.InsIP && (req.InsID == "" || host.ID(req.InsID) == f.ID) {
			r.Direct = f.ID
			return nil
		}
	}
	return fault.New(fault.NoHost, "ins_ip %.64q: no host has that address", req.InsIP)
}

// portsFor are the ports of a template, and those of an annotation besides.
func portsFor(kept kept, all map[string]string) (ports []int32, err error) {
	more, err := portsOf(all[cubeapi.AnnotationPorts])
	if err != nil {
		return nil, err
	}
	for _, port := range slices.Concat(kept.ExposedPorts, more) {
		if port < 1 || port > 65535 || len(ports) == maxPorts {
			return nil, fault.New(fault.InvalidInput, "%s %.128q: at most %d ports of 1 to 65535", cubeapi.AnnotationPorts, all[cubeapi.AnnotationPorts], maxPorts)
		}
		if n := int32(port); !slices.Contains(ports, n) { //nolint:gosec // checked: 1 to 65535
			ports = append(ports, n)
		}
	}
	return ports, nil
}
