package e2e

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/paddock-dev/paddock/test/service"
)

// A template whose program answers after a while is READY then, and so are its
// sandboxes; one whose port never opens fails, with the port and the last answer
// in the words of whoever watches, and leaves nothing.
func TestATemplateIsReadyWhenItsProgramServes(t *testing.T) {
	registry := service.Registry(t)
	c := newCluster(t)
	c.start("up")
	image := busybox(t, registry, "web:1")
	serve := func(after string) []string {
		return []string{"--cmd", "/bin/sh", "--arg", "-c", "--arg", "echo warming up; sleep " + after + "; cd /tmp; echo fine > health; exec /bin/busybox httpd -f -p 8080"}
	}
	create := func(more ...string) []string {
		return append([]string{"tpl", "create-from-image", "--image", image, "--writable-layer-size", "32Mi"}, more...)
	}
	c.must(append(create("--alias", "web", "--probe", "8080"), serve("2")...)...)
	if out := c.must("tpl", "info", "web", "--include-request", "-o", "json"); !strings.Contains(out, `"http_get"`) || !strings.Contains(out, `"/health"`) || !strings.Contains(out, "READY") {
		t.Errorf("info: %s", out)
	}
	if out := c.must("sandbox", "list", "-o", "json"); strings.TrimSpace(out) != "[]" {
		t.Errorf("the trial is left: %s", out)
	}
	id := c.sandbox("web")
	if out := c.must("sandbox", "exec", id, "--", "wget", "-q", "-O", "-", "http://127.0.0.1:8080/health"); out != "fine\n" {
		t.Errorf("at once it says %q", out)
	}
	c.must("sandbox", "delete", id)

	_, errs, code := c.run("", append(create("--alias", "deaf", "--probe", "8081", "--probe-path", "/up"), serve("0")...)...)
	for _, want := range []string{"probe_failed", "probe http GET :8081/up", "last answer: connection refused", `its program runs, its last output: "warming up"`} {
		if code == 0 || !strings.Contains(errs, want) {
			t.Errorf("exit %d, it says %q, not %q", code, errs, want)
		}
	}
	if out, _, code := c.run("", "tpl", "info", "deaf"); code == 0 {
		t.Errorf("a template that failed is left: %s", out)
	}
	if _, errs, code := c.run("", create("--probe-path", "/up")...); code != 2 || !strings.Contains(errs, "--probe") {
		t.Errorf("a path without a port: %d %s", code, errs)
	}
	c.must("tpl", "delete", "web")
	c.empty("artifacts", "cubelet/images", "cubelet/sandboxes")
}

// The whole process is killed while a trial is asked: after a start the job goes
// on to its end, with nothing left of the first trial.
func TestKilledInATrial(t *testing.T) {
	registry := service.Registry(t)
	c := newCluster(t)
	c.start("up")
	image := busybox(t, registry, "web:1")
	out := c.must("tpl", "create-from-image", "--image", image, "--alias", "web", "--writable-layer-size", "32Mi", "--probe", "8080", "--detach", "-o", "json",
		"--cmd", "/bin/sh", "--arg", "-c", "--arg", "sleep 3; cd /tmp; echo fine > health; exec /bin/busybox httpd -f -p 8080")
	_, rest, _ := strings.Cut(out, `"job_id": "`)
	job, _, _ := strings.Cut(rest, `"`)
	c.eventually("the trial", time.Minute, func() bool {
		out, _, _ := c.run("", "tpl", "status", job, "-o", "json")
		return strings.Contains(out, `"SNAPSHOTTING"`)
	})
	c.kill()
	c.start("up")
	if out := c.must("tpl", "watch", job); !strings.Contains(out, "READY") {
		t.Errorf("the job: %s", out)
	}
	c.must("tpl", "delete", "web")
	c.empty("artifacts", "cubelet/images", "cubelet/sandboxes")
}

// A template with an envd of its own: what is put in is what was sent, and a redo
// that would need it again is refused.
func TestAnEnvdOfItsOwn(t *testing.T) {
	registry := service.Registry(t)
	c := newCluster(t)
	c.env = append(c.env, "PADDOCK_HEAL_REBUILD=false")
	c.start("up")
	guest, err := os.ReadFile(filepath.Join(c.bin, "paddock-guest"))
	if err != nil {
		t.Fatal(err)
	}
	own := filepath.Join(c.dir, "envd")
	if err := os.WriteFile(own, append(guest, "of its own"...), 0o600); err != nil {
		t.Fatal(err)
	}
	c.must("tpl", "create-from-image", "--image", busybox(t, registry, "box:1"), "--alias", "own", "--writable-layer-size", "32Mi", "--envd", own, "--probe", "49983")
	id := c.sandbox("own")
	if out := c.must("sandbox", "exec", id, "--", "sh", "-c", "dd if=/.paddock/guest bs=1 skip="+strconv.Itoa(len(guest))+" 2>/dev/null"); out != "of its own" {
		t.Errorf("the guest ends with %q", out)
	}
	c.must("sandbox", "delete", id)
	images, err := filepath.Glob(filepath.Join(c.data[0], "artifacts", "*.ext4"))
	if err != nil || len(images) != 1 || os.Remove(images[0]) != nil {
		t.Fatalf("images %v: %v", images, err)
	}
	if _, errs, code := c.run("", "tpl", "redo", "own"); code != 2 || !strings.Contains(errs, "envd_needed") {
		t.Errorf("redo: %d %s", code, errs)
	}
	if _, errs, code := c.run("", "tpl", "create-from-image", "--image", registry+"/box:1", "--envd", "/etc/passwd"); code != 2 || !strings.Contains(errs, "ELF") {
		t.Errorf("no program: %d %s", code, errs)
	}
	c.must("tpl", "delete", "own")
	c.empty("artifacts", "cubelet/images", "cubelet/sandboxes")
}

// empty waits until nothing is left in directories of the data directory.
func (c *cluster) empty(subs ...string) {
	c.t.Helper()
	for _, sub := range subs {
		c.eventually("an empty "+sub, 30*time.Second, func() bool {
			left, err := os.ReadDir(filepath.Join(c.data[0], sub))
			return err == nil && !slices.ContainsFunc(left, isNoName)
		})
	}
}
