package e2e

import (
	"encoding/json"
	"math/rand/v2"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/paddock-dev/paddock/test/service"
)

// The moments at which a crash is sure to happen.
var failpoints = []string{
	"master.submit.after_commit", "rootfs.pull", "rootfs.before_finish", "rootfs.before_rename", "master.built.after_commit", "cubelet.artifact.verified", "master.resume.after_distribute",
	"cubelet.create.journal", "cubelet.create.parts", "cubelet.create.runtime", "cubelet.create.init", "cubelet.create.confirm", "master.create.after_host",
}

// A crash at any moment loses nothing and leaves nothing: the next start ends
// what was on its way, reclaims what was made, and works.
func TestCrashAtEachFailpoint(t *testing.T) {
	registry := service.Registry(t)
	image := busybox(t, registry, "box:1")
	for _, place := range failpoints {
		t.Run(place, func(t *testing.T) {
			t.Parallel() // most of the time, it waits
			c := newCluster(t)
			clean := c.env
			c.env = append(clean, "PADDOCK_FAILPOINTS="+place+"=crash")
			c.start("up")
			_, errs, code := c.run("", "tpl", "create-from-image", "--image", image, "--alias", "box")
			if code == 0 {
				_, errs, _ = c.run("", "sandbox", "create", "box")
			}
			t.Log(strings.SplitN(errs, "\n", 2)[0])
			c.crashed(place)
			c.env = clean
			c.start("up")
			c.converge()
			c.demo(image)
		})
	}
}

func TestCrashAtRandomMoments(t *testing.T) {
	registry := service.Registry(t)
	image := busybox(t, registry, "box:1")
	c := newCluster(t)
	const seed = 1
	rng := rand.New(rand.NewPCG(seed, seed))
	for round := range 5 {
		c.start("up")
		done := make(chan struct{})
		go func() {
			defer close(done)
			for range 50 {
				if _, _, code := c.run("", "tpl", "create-from-image", "--image", image, "--alias", "r"); code != 0 && code != 5 {
					return
				}
				id, _, code := c.run("", "sandbox", "create", "r")
				if code != 0 {
					return
				}
				_, _, _ = c.run("", "sandbox", "delete", strings.TrimSpace(id))
			}
		}()
		after := time.Duration(100+rng.IntN(1900)) * time.Millisecond
		<-time.After(after)
		c.kill()
		<-done
		t.Logf("round %d of seed %d: killed after %s", round, seed, after)
	}
	c.start("up")
	c.converge()
	c.demo(image)
}

// crashed demands that the one process has ended by its own failpoint, and not
// that some command failed.
func (c *cluster) crashed(place string) {
	c.t.Helper()
	cmd := c.cmds[0]
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	select {
	case <-ended: // how is in its state
	case <-time.After(30 * time.Second):
		_ = cmd.Process.Kill()
		<-ended
		c.cmds = nil
		c.t.Fatalf("%s was never reached\n%s", place, c.logs())
	}
	c.cmds = nil
	if s, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || !s.Signaled() || s.Signal() != syscall.SIGKILL {
		c.t.Fatalf("%s: the process ended by itself: %s\n%s", place, cmd.ProcessState, c.logs())
	}
}

// converge waits until nothing is on its way, without lending a hand, and then
// removes what exists.
func (c *cluster) converge() {
	c.t.Helper()
	var boxes []struct {
		SandboxID string `json:"sandbox_id"`
		Status    string `json:"status"`
	}
	c.eventually("an end of every sandbox on its way", 100*time.Second, func() bool {
		boxes = nil
		if json.Unmarshal([]byte(c.must("sandbox", "list", "-o", "json")), &boxes) != nil {
			return false
		}
		for _, b := range boxes {
			if b.Status != "RUNNING" {
				return false
			}
		}
		return true
	})
	for _, b := range boxes {
		if out := c.must("sandbox", "exec", b.SandboxID, "--", "echo", "alive"); out != "alive\n" {
			c.t.Errorf("sandbox %s is RUNNING and said %q", b.SandboxID, out)
		}
		c.must("sandbox", "delete", b.SandboxID)
	}
	var templates []struct {
		TemplateID string `json:"template_id"`
	}
	if err := json.Unmarshal([]byte(c.must("tpl", "list", "-o", "json")), &templates); err != nil {
		c.t.Fatal(err)
	}
	for _, tpl := range templates {
		c.eventually("a delete of "+tpl.TemplateID, time.Minute, func() bool {
			_, _, code := c.run("", "tpl", "delete", tpl.TemplateID)
			return code == 0 || code == 4
		})
	}
}

func (c *cluster) demo(image string) {
	c.t.Helper()
	c.must("tpl", "create-from-image", "--image", image, "--alias", "after")
	id := c.sandbox("after")
	if out := c.must("sandbox", "exec", id, "--", "echo", "again"); out != "again\n" {
		c.t.Errorf("said %q", out)
	}
	c.must("sandbox", "delete", id)
	c.must("tpl", "delete", "after")
}
