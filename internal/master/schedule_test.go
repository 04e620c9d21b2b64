package master_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/host"
	"github.com/paddock-dev/paddock/internal/master"
	"github.com/paddock-dev/paddock/internal/scheduler/sim"
)

var base = cubeapi.SandboxCreateRequest{TemplateID: "base"}

// quiet waits until nothing is charged, and the hosts' reports show nothing.
func (r *rig) quiet() {
	r.t.Helper()
	eventually(r.t, "the fleet is quiet", func() bool {
		list, err := r.api.Hosts(r.t.Context())
		if err != nil {
			return false
		}
		for _, h := range list {
			if h.Allocated != (host.Resources{}) || r.m.Charged(host.ID(h.NodeID)) != (host.Resources{}) {
				return false
			}
		}
		a, err := r.api.Schedule(r.t.Context(), base, cubeapi.ScheduleQuery{})
		return err == nil && a.Fits && len(a.Out) == 0 && a.Decision.Score > 99 // the view is as new
	})
}

// reasons is what must be equal of two decisions that are one.
func reasons(d cubeapi.Decision) cubeapi.Decision {
	d.SandboxID, d.Attempt, d.At = "", 0, ""
	return d
}

func TestADryRunIsTheDecisionOfACreate(t *testing.T) {
	onBoth(t, func(t *testing.T, dsn string) {
		r, _ := ready(t, dsn, 3, plenty)
		chosen := map[string]bool{}
		for range 5 {
			r.quiet()
			made, err := r.create("base")
			must(t, err)
			kept, err := r.api.Decisions(t.Context(), made.SandboxID)
			must(t, err)
			if len(kept) != 1 || kept[0].HostID != made.HostID || kept[0].Attempt != 1 || kept[0].Kind != cubeapi.DecisionPlaced || kept[0].SandboxID != made.SandboxID || kept[0].At == "" {
				t.Fatalf("kept %+v of %+v", kept, made)
			}
			chosen[made.HostID] = true
			must(t, r.api.DeleteSandbox(t.Context(), made.SandboxID))
			r.quiet()
			dry, err := r.api.Schedule(t.Context(), base, cubeapi.ScheduleQuery{Seed: kept[0].Request.Seed})
			must(t, err)
			if got, want := reasons(dry.Decision), reasons(kept[0]); !reflect.DeepEqual(got, want) {
				t.Errorf("a dry run decides\n%+v\nthe create did\n%+v", got, want)
			}
			if !dry.Fits || len(dry.Hosts) != 3 || len(dry.Out) != 0 || dry.HostIP != "127.0.0.1" || len(dry.Parts) == 0 || len(dry.RunnerUpParts) == 0 || dry.All < dry.Select {
				t.Errorf("answer: %+v", dry)
			}
		}
		seeds := map[string]bool{}
		for seed := range 20 {
			dry, err := r.api.Schedule(t.Context(), base, cubeapi.ScheduleQuery{Seed: strconv.Itoa(seed)})
			must(t, err)
			seeds[dry.Decision.HostID] = true
		}
		if len(seeds) < 2 {
			t.Errorf("equal hosts, and every seed takes %v", seeds)
		}
	})
}

// The other way round: what a dry run says is what the next create does.
func TestTheNextCreateDoesWhatTheDryRunSaid(t *testing.T) {
	r, _ := ready(t, sqlite(t), 2, plenty)
	bigger := plenty
	bigger.MilliCPU, bigger.MemBytes = 2*plenty.MilliCPU, 2*plenty.MemBytes
	big := r.host(2, bigger)
	j := r.template(alias("wide"), spec(1))
	ask := cubeapi.SandboxCreateRequest{TemplateID: j.TemplateID, Containers: []cubeapi.Container{{Resources: &cubeapi.Quantity{CPU: "8", Mem: "4Gi"}}}}
	r.quiet()
	dry, err := r.api.Schedule(t.Context(), ask, cubeapi.ScheduleQuery{})
	must(t, err)
	made, err := r.api.CreateSandbox(t.Context(), ask)
	must(t, err)
	kept, err := r.api.Decisions(t.Context(), made.SandboxID)
	must(t, err)
	if dry.Decision.HostID != string(big.id) || made.HostID != string(big.id) {
		t.Errorf("said %s, did %s, want %s", dry.Decision.HostID, made.HostID, big.id)
	}
	dry.Decision.Request.Seed = kept[0].Request.Seed // of the tie for the second place
	dry.Decision.RunnerUp, kept[0].RunnerUp = "", ""
	if got, want := reasons(dry.Decision), reasons(kept[0]); !reflect.DeepEqual(got, want) {
		t.Errorf("said\n%+v\ndid\n%+v", got, want)
	}
}

func TestADryRunLeavesNothing(t *testing.T) {
	r, hosts := ready(t, sqlite(t), 2, roomFor(1))
	for range 10 {
		_, err := r.api.Schedule(t.Context(), base, cubeapi.ScheduleQuery{})
		must(t, err)
	}
	if n := len(r.sandboxes()); n != 0 {
		t.Errorf("%d rows of sandboxes", n)
	}
	for _, h := range hosts {
		if charged := r.m.Charged(h.id); charged != (host.Resources{}) || h.called("create") != 0 {
			t.Errorf("%s: charged %+v, asked %d times", h.id, charged, h.called("create"))
		}
	}
	var trace bytes.Buffer
	must(t, r.api.ScheduleTrace(t.Context(), "", 0, &trace))
	if trace.Len() != 0 {
		t.Errorf("trace: %s", trace.String())
	}
}

func TestADryRunSaysWhyNoHostFits(t *testing.T) {
	r, _ := ready(t, sqlite(t), 2, roomFor(2))
	big := base
	big.Containers = []cubeapi.Container{{Resources: &cubeapi.Quantity{CPU: "1", Mem: "1536Mi"}}}
	eventually(t, "reports show the template", func() bool {
		dry, err := r.api.Schedule(t.Context(), base, cubeapi.ScheduleQuery{})
		return err == nil && dry.Fits && len(dry.Hosts) == 2
	})
	dry, err := r.api.Schedule(t.Context(), big, cubeapi.ScheduleQuery{})
	must(t, err)
	d := dry.Decision
	if dry.Ret.Code != 200 || dry.Fits || d.Kind != cubeapi.DecisionRefused || d.Code != fault.NoCapacity.Name || d.HostID != "" || !strings.Contains(d.Reason, "(dry run)") {
		t.Errorf("answer: %+v", dry)
	}
	if d.Nearest == nil || d.Nearest.Short.MemBytes != 512<<20 || d.Nearest.Text != "would fit if "+d.Nearest.HostID+" had 512 MiB more memory" {
		t.Errorf("nearest: %+v", d.Nearest)
	}
	if d.Considered != 2 || d.Fit != 0 || !reflect.DeepEqual(d.Dropped, []cubeapi.DropCount{{Plugin: "mem", Hosts: 2}}) {
		t.Errorf("decision: %+v", d)
	}
	if len(dry.Out) != 2 || dry.Out[0].HostID != "host-a" || dry.Out[1].HostID != "host-b" || dry.Out[0].Plugin != "mem" || dry.Out[0].Reason == "" {
		t.Errorf("out: %+v", dry.Out)
	}
	for name, q := range map[string]cubeapi.ScheduleQuery{"limit": {Limit: 1}, "host": {Hosts: []string{"host-a"}}} {
		if some, err := r.api.Schedule(t.Context(), big, q); err != nil || len(some.Out) != 1 || some.Out[0].HostID != "host-a" {
			t.Errorf("%s: %+v, %v", name, some.Out, err)
		}
	}
	if some, err := r.api.Schedule(t.Context(), big, cubeapi.ScheduleQuery{Hosts: []string{"nobody", "host-b"}}); err != nil || len(some.Out) != 2 || some.Out[1].HostID != "nobody" || !strings.Contains(some.Out[1].Reason, "no such host") {
		t.Errorf("%+v, %v", some.Out, err)
	}
	elsewhere := base
	elsewhere.Scope = []string{"nobody"}
	if dry, err := r.api.Schedule(t.Context(), elsewhere, cubeapi.ScheduleQuery{}); err != nil || dry.Fits || dry.Decision.Code != fault.NoHost.Name || dry.Decision.Nearest != nil || dry.Decision.Request.Scope[0] != "nobody" {
		t.Errorf("%+v, %v", dry, err)
	}
	selected := base
	selected.Annotations = map[string]string{"com.nodeaffinity.cluster.label": "far:away"}
	dry, err = r.api.Schedule(t.Context(), selected, cubeapi.ScheduleQuery{})
	must(t, err)
	want := &cubeapi.AffinityTerms{Terms: [][]cubeapi.Requirement{{{Key: "topology.kubernetes.io/cluster-id", Operator: "In", Values: []string{"far", "away"}}}}}
	if dry.Fits || !reflect.DeepEqual(dry.Decision.Request.Affinity, want) || dry.Decision.Dropped[0].Plugin != "affinity" {
		t.Errorf("%+v", dry)
	}
	for what, do := range map[string]func() error{
		"seed": func() error {
			_, err := r.api.Schedule(t.Context(), base, cubeapi.ScheduleQuery{Seed: "-1"})
			return err
		},
		"limit": func() error {
			_, err := r.api.Schedule(t.Context(), base, cubeapi.ScheduleQuery{Limit: 5000})
			return err
		},
		"mem": func() error {
			q := base
			q.Containers = []cubeapi.Container{{Resources: &cubeapi.Quantity{Mem: "much"}}}
			_, err := r.api.Schedule(t.Context(), q, cubeapi.ScheduleQuery{})
			return err
		},
		"selector": func() error {
			q := base
			q.Annotations = map[string]string{"com.nodeaffinity.selector": "{"}
			_, err := r.api.Schedule(t.Context(), q, cubeapi.ScheduleQuery{})
			return err
		},
		"since": func() error { return r.api.ScheduleTrace(t.Context(), "yesterday", 0, &bytes.Buffer{}) },
	} {
		if err := do(); fault.Of(err) != fault.InvalidInput {
			t.Errorf("%s: got %v", what, err)
		}
	}
	_, err = r.api.Schedule(t.Context(), cubeapi.SandboxCreateRequest{TemplateID: "nobody"}, cubeapi.ScheduleQuery{})
	refused(t, err, fault.TemplateNotFound)
}

func TestOlderToolsAskForAFakeCreate(t *testing.T) {
	r, _ := ready(t, sqlite(t), 1, roomFor(1))
	ask := func(body string) (int, map[string]any) {
		status, text := post(t, r.front.URL+cubeapi.PathFakeCreate, cubeapi.HeaderAPIKey, apiKey, body)
		var v map[string]any
		must(t, json.Unmarshal([]byte(text), &v))
		return status, v
	}
	eventually(t, "a host is named", func() bool {
		status, a := ask(`{"template_id": "base"}`)
		return status == http.StatusOK && a["host_id"] == "host-a" && a["host_ip"] == "127.0.0.1" && a["select_cost"] != nil && a["all_cost"] != nil
	})
	status, a := ask(`{"template_id": "base", "containers": [{"resources": {"mem": "1Gi"}}]}`)
	ret, _ := a["ret"].(map[string]any)
	if status != fault.NoCapacity.Class.HTTP || int(ret["ret_code"].(float64)) != fault.NoCapacity.RetCode() { //nolint:forcetypeassert // a number of JSON
		t.Errorf("%d %v", status, a)
	}
}

func TestEachAttemptIsRemembered(t *testing.T) {
	onBoth(t, func(t *testing.T, dsn string) {
		r, hosts := ready(t, dsn, 2, plenty, patient)
		for _, h := range hosts[:1] {
			h.set(func(h *fakeHost) {
				h.create = func(context.Context) error { return fault.New(fault.HostFull, "no room at all") }
			})
		}
		var second []cubeapi.Decision
		for second == nil { // a tie sends the first attempt to either
			made, err := r.create("base")
			must(t, err)
			kept, err := r.api.Decisions(t.Context(), made.SandboxID)
			must(t, err)
			if len(kept) > 1 {
				second = kept
			}
		}
		if a, b := second[0], second[1]; len(second) != 2 || a.HostID != "host-a" || a.After != "" || b.HostID != "host-b" || b.Attempt != 2 || !strings.Contains(b.After, "no room at all") || !reflect.DeepEqual(b.Request.Excluded, []string{"host-a"}) {
			t.Errorf("kept %+v", second)
		}
		hosts[1].set(func(h *fakeHost) {
			h.create = func(context.Context) error { return fault.New(fault.HostFull, "not here either") }
		})
		if _, err := r.create("base"); err == nil {
			t.Fatal("a create without a host worked")
		}
		failed := r.sandboxes()[0]
		kept, err := r.api.Decisions(t.Context(), string(failed.ID))
		must(t, err)
		last := kept[len(kept)-1]
		if len(kept) != 3 || last.Kind != cubeapi.DecisionRefused || last.HostID != "" || last.Code != fault.NoHost.Name || last.After == "" || last.Attempt != 3 || last.Considered != 2 || !reflect.DeepEqual(last.Dropped, []cubeapi.DropCount{{Plugin: "excluded", Hosts: 2}}) {
			t.Errorf("kept %+v", kept)
		}
		_, err = r.api.Decisions(t.Context(), nobody)
		refused(t, err, fault.SandboxNotFound)
		_, err = r.api.Decisions(t.Context(), "")
		refused(t, err, fault.InvalidInput)
	})
}

func TestWhatIsKeptOfADecisionIsBounded(t *testing.T) {
	long := strings.Repeat("x", 300)
	var d cubeapi.Decision
	var term []cubeapi.Requirement
	for range 20 {
		term = append(term, cubeapi.Requirement{Key: long, Operator: "In", Values: []string{long, long}})
		d.Request.Excluded = append(d.Request.Excluded, long)
		d.Request.Scope = append(d.Request.Scope, long)
	}
	d.Request.Affinity = &cubeapi.AffinityTerms{Terms: [][]cubeapi.Requirement{term}}
	d.Request.Labels = map[string]string{"a": strings.Repeat(long, 30)}
	d.Request.Seed, d.Reason = "7", long
	body, err := master.KeptDecision(d)
	must(t, err)
	var kept cubeapi.Decision
	must(t, json.Unmarshal(body, &kept))
	if len(body) > 8<<10 || kept.Reason != long || kept.Request.Seed != "7" || len(kept.Request.Excluded) != 20 || !reflect.DeepEqual(kept.Clipped, []string{"affinity", "labels", "distribution_scope"}) {
		t.Errorf("%d bytes, clipped %v: %s", len(body), kept.Clipped, body[:200])
	}
	body, err = master.KeptDecision(cubeapi.Decision{Reason: long, Request: cubeapi.Placement{Tenant: strings.Repeat(long, 100)}})
	if err != nil || len(body) > 8<<10 {
		t.Errorf("%d bytes, %v", len(body), err)
	}
}

// What a master remembers is a trace, and its hosts are a fleet, that a
// simulation replays.
func TestWhatWasDoneCanBeSimulated(t *testing.T) {
	r, _ := ready(t, sqlite(t), 2, roomFor(2), patient)
	var made []string
	for range 4 {
		a, err := r.api.CreateSandbox(t.Context(), cubeapi.SandboxCreateRequest{TemplateID: "base", Labels: map[string]string{"team": "a"}, Annotations: map[string]string{"com.nodeaffinity.instancetype": "cubebox"}})
		must(t, err)
		made = append(made, a.SandboxID)
	}
	if _, err := r.create("base"); !errors.Is(err, fault.NoCapacity) {
		t.Fatalf("a fifth in the room of four: %v", err)
	}
	must(t, r.api.DeleteSandbox(t.Context(), made[1]))
	_, err := r.api.CordonHost(t.Context(), "host-b", true)
	must(t, err)
	var text, fleet bytes.Buffer
	must(t, r.api.ScheduleTrace(t.Context(), "", 0, &text))
	must(t, r.api.ScheduleFleet(t.Context(), &fleet))
	trace, err := sim.Read(bytes.NewReader(text.Bytes()))
	must(t, err)
	machines, err := sim.ReadFleet(&fleet)
	must(t, err)
	if len(trace) != 5 || string(trace[1].Sandbox) != made[1] || trace[1].Life == 0 || trace[0].Life != 0 || trace[0].At != 0 || trace[0].Refused || !trace[4].Refused || trace[0].Labels["team"] != "a" || len(trace[0].Terms) != 1 || trace[0].Size.MemBytes != 512<<20 {
		t.Errorf("trace: %s", text.String())
	}
	if len(machines) != 2 || machines[0].Allocatable != roomFor(2) || machines[0].Cordoned || !machines[1].Cordoned || machines[0].Artifacts[0] != string(trace[0].Artifact) {
		t.Errorf("fleet: %+v", machines)
	}
	sim.Live(trace)
	if trace[4].Life == 0 || trace[4].Life != trace[1].Life/1000*1000 {
		t.Errorf("lives: %s and %s", trace[4].Life, trace[1].Life)
	}
	machines[1].Cordoned = false
	run := sim.Defaults()
	run.Hosts, run.Trace, run.Masters = machines, trace, 1
	got, err := run.Do()
	must(t, err)
	if got.Placed+got.Refused != 5 || got.Placed < 4 || got.Oversold != 0 || got.Hits != 1 {
		t.Errorf("simulated: %+v", got)
	}
	var rest bytes.Buffer
	second, err := r.api.Decisions(t.Context(), made[1])
	must(t, err)
	must(t, r.api.ScheduleTrace(t.Context(), second[0].At, 2, &rest))
	if some, err := sim.Read(&rest); err != nil || len(some) != 2 || string(some[0].Sandbox) != made[1] || some[0].At != 0 || string(some[1].Sandbox) != made[2] {
		t.Errorf("from the second on, at most 2: %+v, %v", some, err)
	}
	var old bytes.Buffer
	must(t, r.api.ScheduleTrace(t.Context(), "2001-02-03T04:05:06Z", 0, &old))
	if old.String() != text.String() {
		t.Errorf("since long ago: %s", old.String())
	}
}
