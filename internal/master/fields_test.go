package master_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/hostpb"
	"github.com/paddock-dev/paddock/internal/store"
	"github.com/paddock-dev/paddock/internal/store/templatedb"
	"github.com/paddock-dev/paddock/internal/template"
)

// post sends JSON as it is and reads the answer into out.
func (r *rig) post(path, body string, out any) int {
	r.t.Helper()
	q, err := http.NewRequestWithContext(r.t.Context(), http.MethodPost, r.front.URL+path, strings.NewReader(body))
	must(r.t, err)
	q.Header.Set(cubeapi.HeaderAPIKey, apiKey)
	answer, err := http.DefaultClient.Do(q)
	must(r.t, err)
	defer answer.Body.Close()
	must(r.t, json.NewDecoder(answer.Body).Decode(out))
	return answer.StatusCode
}

// orders returns the sandboxes that a host was asked for.
func (h *fakeHost) orders() []*hostpb.CreateSandboxRequest {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.created)
}

// build is a build request with more fields.
func build(more string) string {
	if more != "" {
		more = ", " + more
	}
	return `{"source_image_ref": "registry.local/base:1", "writable_layer_size": "64Mi"` + more + `}`
}

// overrides are fields within container_overrides.
func overrides(fields string) string { return `"container_overrides": {` + fields + `}` }

// Each field is honoured or refused with a code; what is refused leaves nothing.
func TestNoFieldIsIgnored(t *testing.T) {
	r := newRig(t, sqlite(t))
	r.start()
	r.host(0, plenty)
	unsupported, bad := fault.Unsupported, fault.InvalidInput
	for more, code := range map[string]*fault.Code{
		`"template_id": "tpl-mine"`:                                                              unsupported,
		`"network_type": "bridge"`:                                                               unsupported,
		`"backend": "s3"`:                                                                        unsupported,
		`"enable_ivshmem": true`:                                                                 unsupported,
		`"instance_type": "gpu"`:                                                                 fault.NoTemplateHosts,
		`"alias": "a", "display_name": "b"`:                                                      bad,
		`"display_name": "My Template"`:                                                          fault.AliasInvalid,
		`"requestID": "a\u0007b"`:                                                                bad,
		`"requestID": "a\nb"`:                                                                    bad,
		`"cube_network_config": {"rules": [{"match": {}}]}`:                                      unsupported,
		`"cube_network_config": {"allowPublicTraffic": false}`:                                   unsupported,
		`"cube_network_config": {"maskRequestHost": "x"}`:                                        unsupported,
		`"cube_network_config": {"allowOut": ["api.example.org"]}`:                               unsupported,
		`"cube_network_config": {"allowOut": ["*.example.org"]}`:                                 unsupported,
		`"cube_network_config": {"allowOut": ["2001:db8::/32"]}`:                                 unsupported,
		`"cube_network_config": {"allowOut": ["10.0.0.0/33"]}`:                                   bad,
		`"cube_network_config": {"allowOut": ["169.254.169.254"]}`:                               bad,
		`"cube_network_config": {"allowOut": ["127.0.0.1/8"]}`:                                   bad,
		`"cube_network_config": {"denyOut": ["10.0.0.1; drop"]}`:                                 bad,
		`"cube_network_config": {}, "cubevs_context": {}`:                                        bad,
		`"cubevs_context": {"allowOut": ["api.example.org"]}`:                                    unsupported,
		overrides(`"volume_mounts": [{"name": "v", "container_path": "/"}]`):                     bad,
		overrides(`"volume_mounts": [{"name": "v", "container_path": "/d"}]`):                    unsupported,
		overrides(`"security_context": {"privileged": true}`):                                    unsupported,
		overrides(`"security_context": {"readonly_rootfs": true}`):                               unsupported,
		overrides(`"security_context": {"no_new_privs": true}`):                                  unsupported,
		overrides(`"security_context": {"capabilities": {"add": ["ALL"]}}`):                      unsupported,
		overrides(`"security_context": {"run_as_group": {"value": 5}}`):                          bad,
		overrides(`"security_context": {"run_as_user": {"value": -1}}`):                          bad,
		overrides(`"security_context": {"run_as_username": "a:b"}`):                              bad,
		overrides(`"dns_config": {"servers": ["ns.example.org"]}`):                               bad,
		overrides(`"dns_config": {"searches": ["a\nnameserver 1.1.1.1"]}`):                       bad,
		overrides(`"r_limit": {"no_file": 1}`):                                                   bad,
		overrides(`"working_dir": "here"`):                                                       bad,
		overrides(`"annotations": {"": "x"}`):                                                    bad,
		overrides(`"annotations": {"a\u001b": "x"}`):                                             bad,
		overrides(`"command": [""]`):                                                             bad,
		overrides(`"command": ["a\u0000"]`):                                                      bad,
		overrides(`"args": ["\u0000"]`):                                                          bad,
		overrides(`"envs": [{"key": "A\n", "value": "x"}]`):                                      bad,
		overrides(`"envs": [{"key": "A", "value": "` + strings.Repeat("x", 128<<10) + `"}]`):     bad,
		overrides(`"args": ["` + strings.Repeat(strings.Repeat("x", 100<<10)+`", "`, 11) + `"]`): bad,
		overrides(`"resources": {"cpu": "1", "limit": {"cpu": "2"}}`):                            unsupported,
	} {
		var e cubeapi.Envelope
		status := r.post(cubeapi.PathFromImage, build(more), &e)
		if e.Error == nil || e.Error.Code != code.Name || status != code.Class.HTTP {
			t.Errorf("%s: %d %+v, want %s", more, status, e, code.Name)
		}
	}
	if n := len(r.center.builds()); n != 0 {
		t.Errorf("%d builds: a refusal leaves nothing", n)
	}
	var a cubeapi.JobAnswer
	r.post(cubeapi.PathFromImage, build(`"display_name": "older", "enable_ivshmem": false, "backend": "xfs", "network_type": "tap", "wait": true, "exposed_port": [80],`+overrides(`"comand": []`)), &a)
	if a.Job == nil || a.Job.Alias != "older" || len(a.Warnings) != 3 {
		t.Fatalf("%+v", a)
	}
	for i, field := range []string{"container_overrides.comand", "exposed_port", "wait"} {
		if !strings.Contains(a.Warnings[i], field) {
			t.Errorf("warning %d is %q, of %s", i, a.Warnings[i], field)
		}
	}
	r.ended(a.Job.JobID)
	if d, err := r.api.Template(t.Context(), "older"); err != nil || d.DisplayName != "older" {
		t.Errorf("%+v %v", d, err)
	}
}

// Hosts that are up may only be about to say so, and where there is none nobody
// can tell.
func TestAKindOfHostMayComeLater(t *testing.T) {
	r := newRig(t, sqlite(t))
	n := 0
	kind := func(q *cubeapi.FromImageRequest) { // of another template each time
		n++
		q.InstanceType, q.SourceImageRef = "gpu", fmt.Sprintf("registry.local/base:%d", n)
	}
	r.center.set(func(c *fakeCenter) { c.idle = true })
	r.start()
	_, err := r.api.FromImage(t.Context(), image(kind))
	must(t, err)
	r.host(0, plenty)
	_, err = r.api.FromImage(t.Context(), image(kind))
	refused(t, err, fault.NoTemplateHosts)
	if !strings.Contains(err.Error(), "cubebox") {
		t.Errorf("%v does not say which there are", err)
	}
	r.crash()
	r.start(func(p *running) { p.HostGrace(time.Hour) })
	_, err = r.api.FromImage(t.Context(), image(kind))
	must(t, err)
}

// What a template and a request say of the network, the resolver, the limits and
// the user comes to the host.
func TestFieldsReachTheHost(t *testing.T) {
	r := newRig(t, sqlite(t))
	r.start()
	h := r.host(0, plenty)
	var a cubeapi.JobAnswer
	r.post(cubeapi.PathFromImage, build(`"alias": "base", "cubevs_context": {"allowInternetAccess": true, "allowOut": ["10.1.2.3", "10.9.8.7/8"], "denyOut": ["192.0.2.0/24", "::/0"]},`+
		overrides(`"working_dir": "/srv", "security_context": {"run_as_user": {"value": 1000}, "run_as_group": {"value": 7}}, "r_limit": {"no_file": 4096},
			"dns_config": {"servers": ["10.1.2.3"], "searches": ["corp"], "options": ["ndots:2"]}, "annotations": {"team": "a"}`)), &a)
	if a.Job == nil || r.ended(a.Job.JobID).Status != cubeapi.StatusReady {
		t.Fatalf("%+v", a)
	}
	ask := func(more string) *hostpb.CreateSandboxRequest {
		t.Helper()
		var a cubeapi.SandboxAnswer
		var p cubeapi.PreviewAnswer
		body := `{"template_id": "base"` + more + `}`
		before := len(h.orders())
		r.post(cubeapi.PathSandboxPreview, body, &p)
		if len(h.orders()) != before || len(r.sandboxes()) != before {
			t.Errorf("a preview made something")
		}
		if r.post(cubeapi.PathSandbox, body, &a); a.SandboxID == "" {
			t.Fatalf("%+v", a)
		}
		got := h.orders()[before]
		var shown hostpb.CreateSandboxRequest
		must(t, protojson.Unmarshal(p.CubeletRequest, &shown))
		shown.SandboxId = got.GetSandboxId()
		if !proto.Equal(&shown, got) {
			t.Errorf("the preview shows %v, the host got %v", &shown, got)
		}
		return got
	}
	got := ask("")
	want := &hostpb.Egress{Internet: true, Allow: []string{"10.1.2.3/32", "10.0.0.0/8"}, Deny: []string{"192.0.2.0/24"}}
	if !proto.Equal(got.GetEgress(), want) || got.GetUser() != "1000:7" || got.GetWorkingDir() != "/srv" || got.GetOpenFiles() != 4096 || !slices.Equal(got.GetResolver().GetServers(), []string{"10.1.2.3"}) || !slices.Equal(got.GetResolver().GetOptions(), []string{"ndots:2"}) {
		t.Errorf("the host got %v", got)
	}
	got = ask(`, "cube_network_config": {"allowInternetAccess": false, "allowOut": ["198.51.100.1"]}, "containers": [{"working_dir": "/", "r_limit": {"no_file": 100}, "dns_config": {"servers": ["10.0.0.53"]}}]`)
	want.Internet, want.Allow = false, append(want.GetAllow(), "198.51.100.1/32")
	if !proto.Equal(got.GetEgress(), want) || got.GetWorkingDir() != "/" || got.GetOpenFiles() != 100 || got.GetResolver().GetServers()[0] != "10.0.0.53" {
		t.Errorf("the host got %v", got)
	}
	for _, bad := range []string{`"cube_network_config": {"allowOut": ["example.org"]}`, `"containers": [{"dns_config": {"servers": ["x"]}}]`, `"containers": [{"command": ["a\u0000"]}]`, `"create_time_env_vars": {"A": "` + strings.Repeat("x", 128<<10) + `"}`, `"requestID": "\u0001"`} {
		for _, path := range []string{cubeapi.PathSandbox, cubeapi.PathSandboxPreview} {
			var e cubeapi.Envelope
			if status := r.post(path, `{"template_id": "base", `+bad+`}`, &e); status != http.StatusBadRequest {
				t.Errorf("%s %s: %d", path, bad, status)
			}
		}
	}
	var p cubeapi.PreviewAnswer
	r.post(cubeapi.PathSandboxPreview, `{"template_id": "base", "label": {}, "labels": {"x": "y"}}`, &p)
	if len(p.Warnings) != 1 || p.MergedRequest == nil || p.MergedRequest.Annotations["team"] != "a" || p.MergedRequest.Labels["x"] != "y" || *p.MergedRequest.Network.AllowInternetAccess != true || p.APIRequest.Network != nil {
		t.Errorf("%+v", p)
	}
}

// whole is a create request of a template of an artifact.
func whole(artifact, more string) string {
	if more != "" {
		more = ", " + more
	}
	return fmt.Sprintf(`{"containers": [{"name": "c", "image": {"image": %q, "storage_media": "ext4", "annotations": {"cube.master.rootfs.artifact.id": %q}},
		"command": ["run"], "envs": [{"key": "A", "value": "1"}], "volume_mounts": [{"name": "cube_rootfs_rw", "container_path": "/"}]}],
		"volumes": [{"name": "cube_rootfs_rw", "volume_source": {"empty_dir": {"size_limit": "128Mi"}}}],
		"annotations": {"com.exposed_ports": "8080:443", "cube.master.appsnapshot.version": "v2", "team": "b"}, "labels": {"tier": "gold"}%s}`, artifact, artifact, more)
}

// A template of an artifact that is there: without a build, and with everything
// that a built one has.
func TestATemplateOfAnArtifact(t *testing.T) {
	onBoth(t, func(t *testing.T, dsn string) {
		r, hosts := ready(t, dsn, 2, plenty)
		base, err := r.api.Template(t.Context(), "base")
		must(t, err)
		builds := len(r.center.builds())
		body := whole(base.ArtifactID, `"requestID": "whole-1", "alias": "whole", "cube_network_config": {"allowInternetAccess": true}`)
		var first, again cubeapi.TemplateAnswer
		r.post(cubeapi.PathTemplate, body, &first)
		if first.Status != cubeapi.StatusReady || first.Alias != "whole" || first.TemplateID == base.TemplateID || first.ArtifactID != base.ArtifactID || len(first.Replicas) != 2 || first.RequestID != "whole-1" {
			t.Fatalf("%+v", first)
		}
		if r.post(cubeapi.PathTemplate, body, &again); again.TemplateID != first.TemplateID {
			t.Errorf("the same request again: %+v", again)
		}
		var e cubeapi.Envelope
		if r.post(cubeapi.PathTemplate, strings.Replace(body, "128Mi", "64Mi", 1), &e); e.Error == nil || e.Error.Code != fault.SubmissionReused.Name {
			t.Errorf("another request under the same id: %+v", e)
		}
		if len(r.center.builds()) != builds {
			t.Error("something was built")
		}
		s, err := r.api.CreateSandbox(t.Context(), cubeapi.SandboxCreateRequest{TemplateID: "whole", Labels: map[string]string{"tier": "iron", "x": "y"}})
		must(t, err)
		got := slices.Concat(hosts[0].orders(), hosts[1].orders())[0]
		if got.GetWritableBytes() != 128<<20 || !got.GetEgress().GetInternet() || got.GetEnvs()["A"] != "1" || !slices.Equal(got.GetCommand(), []string{"run"}) || !slices.Equal(got.GetExposedPorts(), []int32{443, 8080}) || got.GetMetadata()["tier"] != "gold" || got.GetMetadata()["x"] != "y" {
			t.Errorf("the host got %v", got)
		}
		must(t, r.api.DeleteSandbox(t.Context(), s.SandboxID))
		// A redo, and a delete that leaves the other template its bytes.
		a, err := r.api.Redo(t.Context(), cubeapi.RedoRequest{RequestID: "redo-1", TemplateID: "whole"})
		must(t, err)
		if j := r.ended(a.Job.JobID); j.Status != cubeapi.StatusReady {
			t.Errorf("redo: %+v", j)
		}
		must(t, r.api.DeleteTemplate(t.Context(), "whole"))
		r.gone(first.TemplateID, "")
		_, err = r.create("base")
		must(t, err)
	})
}

func TestATemplateOfAnArtifactIsRefused(t *testing.T) {
	r, hosts := ready(t, sqlite(t), 1, plenty)
	base, err := r.api.Template(t.Context(), "base")
	must(t, err)
	id := base.ArtifactID
	before := len(r.jobs(""))
	change := func(old, now string) string {
		body := whole(id, "")
		if !strings.Contains(body, old) {
			t.Fatalf("%s is not in the request", old)
		}
		return strings.Replace(body, old, now, 1)
	}
	for body, code := range map[string]*fault.Code{
		whole("rfs-000000000000000000000000", ""):                                                fault.ArtifactNotFound,
		whole("registry.local/base:1", ""):                                                       fault.InvalidInput,
		whole(id, `"snapshot_dir": "/x"`):                                                        fault.Unsupported,
		whole(id, `"ins_ip": "10.0.0.1"`):                                                        fault.Unsupported,
		whole(id, `"timeout": 30`):                                                               fault.Unsupported,
		whole(id, `"runtime_handler": "runc"`):                                                   fault.Unsupported,
		whole(id, `"namespace": "other"`):                                                        fault.Unsupported,
		whole(id, `"auto_pause": true`):                                                          fault.Unsupported,
		whole(id, `"instance_type": "gpu"`):                                                      fault.NoTemplateHosts,
		whole(id, `"distribution_scope": ["nobody"]`):                                            fault.NoTemplateHosts,
		change(`"name": "c"`, `"name": "c", "sysctls": {"a": "b"}`):                              fault.Unsupported,
		change(`"storage_media": "ext4"`, `"storage_media": "nfs"`):                              fault.Unsupported,
		change(`"cube.master.rootfs.artifact.id"`, `"cube.master.rootfs.artifact.url"`):          fault.Unsupported,
		change(`"cube.master.rootfs.artifact.id": "`+id, `"cube.master.rootfs.artifact.id": "x`): fault.InvalidInput,
		change(`"container_path": "/"`, `"container_path": "/data"`):                             fault.Unsupported,
		change(`"size_limit": "128Mi"`, `"medium": 1`):                                           fault.Unsupported,
		change(`"empty_dir": {"size_limit": "128Mi"}`, `"host_dir_volumes": {}`):                 fault.Unsupported,
		change(`"8080:443"`, `"http"`):                                                           fault.InvalidInput,
		change(`appsnapshot.version": "v2"`, `appsnapshot.version": "v1"`):                       fault.Unsupported,
		change(`"team": "b"`, `"cube.master.rootfs.writable_layer_size": "1Gi"`):                 fault.InvalidInput,
		`{"containers": []}`:                                                                     fault.InvalidInput,
	} {
		var e cubeapi.Envelope
		if r.post(cubeapi.PathTemplate, body, &e); e.Error == nil || e.Error.Code != code.Name {
			t.Errorf("%s: %+v, want %s", body, e.Error, code.Name)
		}
	}
	if n := len(r.jobs("")); n != before {
		t.Errorf("%d jobs: a refusal leaves nothing", n-before)
	}
	// One that no host takes leaves nothing either, but its job.
	hosts[0].set(func(h *fakeHost) {
		h.ensure = func(context.Context) error { return fault.New(fault.DiskFull, "its disk") }
		h.artifacts = map[string]bool{}
	})
	var e cubeapi.Envelope
	if r.post(cubeapi.PathTemplate, whole(id, `"alias": "failed"`), &e); e.Error == nil {
		t.Fatalf("%+v", e)
	}
	if _, err := r.api.Template(t.Context(), "failed"); fault.Of(err) != fault.TemplateNotFound {
		t.Errorf("the alias of one that failed: %v", err)
	}
	if a, err := r.api.Artifact(t.Context(), id); err != nil || a.Status != cubeapi.StatusReady {
		t.Errorf("the other template's artifact: %+v %v", a, err)
	}
}

// A master that ends behind the commit: the next one brings it to its end.
func TestATemplateOfAnArtifactOutlivesItsMaster(t *testing.T) {
	r, _ := ready(t, sqlite(t), 1, plenty)
	base, err := r.api.Template(t.Context(), "base")
	must(t, err)
	r.crash()
	change, reached := crashAt("master.template.after_commit")
	r.start(change)
	q, err := http.NewRequestWithContext(t.Context(), http.MethodPost, r.front.URL+cubeapi.PathTemplate, bytes.NewBufferString(whole(base.ArtifactID, `"requestID": "whole-1"`)))
	must(t, err)
	q.Header.Set(cubeapi.HeaderAPIKey, apiKey)
	if answer, err := http.DefaultClient.Do(q); err == nil {
		must(t, answer.Body.Close())
	}
	wait(t, "the crash", reached)
	r.crash()
	r.start()
	var j template.Job
	r.view(func(ctx context.Context, tx *store.Tx) error {
		var found bool
		var err error
		if j, found, err = templatedb.JobByRequest(ctx, tx, "whole-1", template.OpCreate); !found {
			t.Error("the job is lost")
		}
		return err
	})
	if got := r.ended(string(j.ID)); got.Status != cubeapi.StatusReady {
		t.Errorf("%+v", got)
	}
	var a cubeapi.TemplateAnswer
	if r.post(cubeapi.PathTemplate, whole(base.ArtifactID, `"requestID": "whole-1"`), &a); a.TemplateID != string(j.TemplateID) {
		t.Errorf("the same request again: %+v", a)
	}
}
