package master

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"

	"google.golang.org/protobuf/encoding/protojson"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/platform/serve"
)

// servePreview says what a create would do. Nothing is made, and no host is
// asked.
func (m *Master) servePreview(w http.ResponseWriter, r *http.Request) {
	var req cubeapi.SandboxCreateRequest
	unknown, err := serve.ReadJSONWarn(r, maxBody, &req)
	var answer cubeapi.PreviewAnswer
	if err == nil {
		answer, err = m.preview(r.Context(), req)
	}
	if err != nil {
		serve.WriteError(w, r, err)
		return
	}
	answer.Envelope = cubeapi.OK(named(r, req.RequestID))
	answer.Warnings = warnings(unknown)
	serve.WriteJSON(w, http.StatusOK, answer)
}

func (m *Master) preview(ctx context.Context, req cubeapi.SandboxCreateRequest) (a cubeapi.PreviewAnswer, err error) {
	p, err := m.planned(ctx, req)
	if err != nil {
		return a, err
	}
	order := p.order()
	order.SandboxId = "" // of no sandbox
	host, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(order)
	if err != nil {
		return a, fault.Wrap(fault.Bug, err, "preview")
	}
	return cubeapi.PreviewAnswer{APIRequest: &req, MergedRequest: p.merged(), CubeletRequest: host}, nil
}

// merged is the request with its template laid under it.
func (p *plan) merged() *cubeapi.SandboxCreateRequest {
	r := p.req
	r.TemplateID, r.InstanceType, r.Labels, r.Envs = string(p.template.ID), p.kind(), p.row.Metadata, nil
	r.Annotations = p.annotations
	c := cubeapi.Container{
		Command: p.command, WorkingDir: p.workingDir,
		Resources: &cubeapi.Quantity{CPU: fmt.Sprintf("%dm", p.row.Resources.MilliCPU), Mem: fmt.Sprintf("%dB", p.row.Resources.MemBytes)},
	}
	for _, k := range slices.Sorted(maps.Keys(p.envs)) {
		c.Envs = append(c.Envs, cubeapi.KeyValue{Key: k, Value: p.envs[k]})
	}
	if d := p.resolver; d != nil {
		c.DNS = &cubeapi.DNSConfig{Servers: d.GetServers(), Searches: d.GetSearches(), Options: d.GetOptions()}
	}
	if p.openFiles != 0 {
		c.RLimit = &cubeapi.RLimit{NoFile: p.openFiles}
	}
	c.Name = "cubebox_0"
	for _, given := range p.req.Containers {
		c.Name = cmp.Or(given.Name, c.Name)
	}
	r.Containers = []cubeapi.Container{c}
	r.Network = nil
	if e := p.egress; e != nil {
		r.Network = &cubeapi.NetworkConfig{AllowInternetAccess: &e.Internet, AllowOut: e.GetAllow(), DenyOut: e.GetDeny()}
	}
	return &r
}
