package master_test

import (
	"strings"
	"testing"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/scheduler"
)

// zoned puts hosts a and c into zone one, b and d into two.
func zoned(h *fakeHost) string {
	return map[byte]string{'a': "one", 'c': "one", 'b': "two", 'd': "two"}[h.id[len(h.id)-1]]
}

func in(key string, values ...string) []cubeapi.Requirement {
	return []cubeapi.Requirement{{Key: key, Operator: "In", Values: values}}
}

func TestWhereARequestWantsToBe(t *testing.T) {
	r, hosts := ready(t, sqlite(t), 4, plenty)
	r.inZones(hosts, zoned)
	on := func(q cubeapi.SandboxCreateRequest) map[string]int {
		t.Helper()
		q.TemplateID = "base"
		n := map[string]int{}
		for range 4 {
			a, err := r.api.CreateSandbox(t.Context(), q)
			must(t, err)
			for _, h := range hosts {
				if string(h.id) == a.HostID {
					n[zoned(h)]++
				}
			}
		}
		return n
	}
	ofZone := func(a cubeapi.Affinity) cubeapi.SandboxCreateRequest {
		return cubeapi.SandboxCreateRequest{Affinity: &a}
	}
	if n := on(ofZone(cubeapi.Affinity{Required: [][]cubeapi.Requirement{in(scheduler.LabelZone, "two")}})); n["two"] != 4 {
		t.Errorf("required: %v", n)
	}
	if n := on(ofZone(cubeapi.Affinity{Required: [][]cubeapi.Requirement{in(scheduler.LabelZone, "none"), in(scheduler.LabelZone, "one")}})); n["one"] != 4 {
		t.Errorf("one of two: %v", n)
	}
	if n := on(ofZone(cubeapi.Affinity{Preferred: []cubeapi.Preferred{{Weight: 100, Term: in(scheduler.LabelZone, "two")}}})); n["two"] != 4 {
		t.Errorf("preferred: %v", n)
	}
	apart := cubeapi.SandboxCreateRequest{Labels: map[string]string{"app": "web"}, Affinity: &cubeapi.Affinity{Spread: []cubeapi.Spread{{Key: scheduler.LabelZone, MaxSkew: 1, Hard: true, Labels: map[string]string{"app": "web"}}}}}
	if n := on(apart); n["one"] != 2 || n["two"] != 2 {
		t.Errorf("spread: %v", n)
	}
	if n := on(cubeapi.SandboxCreateRequest{Annotations: map[string]string{scheduler.AnnotationSelector: `[{"key":"topology.kubernetes.io/zone","operator":"NotIn","values":["one"]}]`}}); n["two"] != 4 {
		t.Errorf("selector: %v", n)
	}
	if n := on(cubeapi.SandboxCreateRequest{Scope: []string{"one"}}); n["one"] != 4 {
		t.Errorf("scope: %v", n)
	}
}

func TestWhatIsScarceCanBeAskedFor(t *testing.T) {
	r, _ := ready(t, sqlite(t), 1, plenty)
	ask := func(a cubeapi.Affinity) (cubeapi.ScheduleAnswer, error) {
		return r.api.Schedule(t.Context(), cubeapi.SandboxCreateRequest{TemplateID: "base", Affinity: &a}, cubeapi.ScheduleQuery{})
	}
	spread := cubeapi.Spread{Key: scheduler.LabelZone, MaxSkew: 1, Hard: true, Labels: map[string]string{"app": "x"}}
	a, err := ask(cubeapi.Affinity{Spread: []cubeapi.Spread{spread}})
	must(t, err)
	if len(a.Out) != 1 || !strings.Contains(a.Out[0].Reason, "has no label "+scheduler.LabelZone) || a.Decision.Request.Affinity.Spread[0].Labels["app"] != "x" {
		t.Errorf("a host without the key of a spread: %+v", a)
	}
	_, err = r.api.LabelHost(t.Context(), "host-a", cubeapi.HostLabelsRequest{Set: map[string]string{"gpu": "a100"}})
	must(t, err)
	gpu := cubeapi.Affinity{Required: [][]cubeapi.Requirement{{{Key: "gpu", Operator: "Exists"}}}}
	eventually(t, "the label counts", func() bool { a, err = ask(gpu); return err == nil && a.Fits })
	if a, err = ask(cubeapi.Affinity{}); err != nil || a.Fits || len(a.Out) != 1 || !strings.Contains(a.Out[0].Reason, "label gpu") {
		t.Errorf("nothing asked for: %+v, %v", a, err)
	}
	_, err = ask(cubeapi.Affinity{Required: [][]cubeapi.Requirement{in("rack", "r1")}})
	if !strings.Contains(fault.Describe(err).Remedy, "node_affinity_selector_allowed_keys") {
		t.Errorf("a label that is not allowed: %v", err)
	}
}

func TestBadWishesAreRefused(t *testing.T) {
	r, hosts := ready(t, sqlite(t), 1, plenty)
	bad := func(a cubeapi.Affinity) cubeapi.SandboxCreateRequest {
		return cubeapi.SandboxCreateRequest{TemplateID: "base", Affinity: &a}
	}
	rows := len(r.sandboxes())
	for name, q := range map[string]cubeapi.SandboxCreateRequest{
		"a label that may not be selected by": bad(cubeapi.Affinity{Required: [][]cubeapi.Requirement{in("secret", "x")}}),
		"no values":                           bad(cubeapi.Affinity{Required: [][]cubeapi.Requirement{in(scheduler.LabelZone)}}),
		"an unknown operator":                 bad(cubeapi.Affinity{Required: [][]cubeapi.Requirement{{{Key: scheduler.LabelZone, Operator: "Like", Values: []string{"x"}}}}}),
		"a weight":                            bad(cubeapi.Affinity{Preferred: []cubeapi.Preferred{{Weight: 101, Term: in(scheduler.LabelZone, "x")}}}),
		"a skew":                              bad(cubeapi.Affinity{Spread: []cubeapi.Spread{{Key: scheduler.LabelZone, Labels: map[string]string{"a": "b"}}}}),
		"a group of nobody":                   bad(cubeapi.Affinity{Spread: []cubeapi.Spread{{Key: scheduler.LabelZone, MaxSkew: 1}}}),
		"a selector":                          {TemplateID: "base", Annotations: map[string]string{scheduler.AnnotationSelector: "zone=a"}},
		"ports":                               {TemplateID: "base", Annotations: map[string]string{cubeapi.AnnotationPorts: "80:http"}},
		"a port":                              {TemplateID: "base", Annotations: map[string]string{cubeapi.AnnotationPorts: "70000"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := r.api.CreateSandbox(t.Context(), q)
			refused(t, err, fault.InvalidInput)
			_, err = r.api.Preview(t.Context(), q)
			refused(t, err, fault.InvalidInput)
		})
	}
	if len(r.sandboxes()) != rows || hosts[0].called("create") != 0 {
		t.Error("a refused request left something")
	}
}

// What a request and its template say of one thing, and which of them counts.
func TestHowATemplateIsMerged(t *testing.T) {
	r := newRig(t, sqlite(t))
	r.start()
	r.host(0, plenty)
	yes, no := true, false
	r.template(alias("base"), func(q *cubeapi.FromImageRequest) {
		q.ExposedPorts = []int{80}
		q.Network = &cubeapi.NetworkConfig{AllowInternetAccess: &yes, AllowOut: []string{"1.1.1.1/32"}, DenyOut: []string{"9.9.9.9/32"}}
		q.Overrides = &cubeapi.ContainerOverride{
			Annotations: map[string]string{"team": "template", "com.netid": "template", "own": "t"}, WorkingDir: "/template",
			Envs: []cubeapi.KeyValue{{Key: "A", Value: "template"}, {Key: "T", Value: "template"}}, Resources: &cubeapi.Quantity{CPU: "2"},
			DNS: &cubeapi.DNSConfig{Searches: []string{"template"}}, RLimit: &cubeapi.RLimit{NoFile: 100},
		}
	})
	ask := cubeapi.SandboxCreateRequest{
		TemplateID: "base", Annotations: map[string]string{"team": "request", "com.netid": "request", "mine": "r", cubeapi.AnnotationPorts: "80:443"},
		Network: &cubeapi.NetworkConfig{AllowInternetAccess: &no, AllowOut: []string{"2.2.2.2/32"}, DenyOut: []string{"8.8.8.8/32"}},
		Containers: []cubeapi.Container{{
			Resources: &cubeapi.Quantity{CPU: "1", Mem: "256Mi"}, Envs: []cubeapi.KeyValue{{Key: "A", Value: "request"}}, WorkingDir: "/request",
			DNS: &cubeapi.DNSConfig{Searches: []string{"request"}}, RLimit: &cubeapi.RLimit{NoFile: 200},
		}},
	}
	a, err := r.api.Preview(t.Context(), ask)
	must(t, err)
	m := a.MergedRequest
	for key, want := range map[string]string{"team": "template", "com.netid": "request", "own": "t", "mine": "r"} {
		if m.Annotations[key] != want {
			t.Errorf("annotation %s is %q, want the %s's", key, m.Annotations[key], want)
		}
	}
	c := m.Containers[0]
	envs := map[string]string{}
	for _, e := range c.Envs {
		envs[e.Key] = e.Value
	}
	for what, got := range map[string][2]string{
		"env of both": {envs["A"], "request"}, "env of the template": {envs["T"], "template"}, "cpu: the template's": {c.Resources.CPU, "2000m"}, "memory: it says none": {c.Resources.Mem, "268435456B"},
		"working dir": {c.WorkingDir, "/request"}, "dns": {c.DNS.Searches[0], "request"}, "name": {c.Name, "cubebox_0"},
	} {
		if got[0] != got[1] {
			t.Errorf("%s is %q, want %q", what, got[0], got[1])
		}
	}
	if c.RLimit.NoFile != 200 || *m.Network.AllowInternetAccess || len(m.Network.AllowOut) != 2 || len(m.Network.DenyOut) != 2 {
		t.Errorf("limit %d, network %+v", c.RLimit.NoFile, m.Network)
	}
	// What the request leaves out is the template's.
	a, err = r.api.Preview(t.Context(), cubeapi.SandboxCreateRequest{TemplateID: "base", Containers: []cubeapi.Container{{Name: "own"}}})
	must(t, err)
	c = a.MergedRequest.Containers[0]
	if c.WorkingDir != "/template" || c.DNS.Searches[0] != "template" || c.RLimit.NoFile != 100 || c.Name != "own" || !*a.MergedRequest.Network.AllowInternetAccess {
		t.Errorf("%+v", c)
	}
	_, err = r.api.Preview(t.Context(), cubeapi.SandboxCreateRequest{TemplateID: "base", Containers: []cubeapi.Container{{Resources: &cubeapi.Quantity{Mem: "much"}}}})
	refused(t, err, fault.InvalidInput)
	if got := err.Error(); len(got) < 30 || got[:30] != "containers[0].resources.mem: s" {
		t.Errorf("the field is not named: %s", got)
	}
}
