// Package e2e drives the built programs as a user does: real processes, a real
// registry, the real runtime. It must never reach into a package of the
// product.
package e2e

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/paddock-dev/paddock/test/service"
)

// cluster is one data directory with what runs on it.
type cluster struct {
	t    *testing.T
	bin  string
	dir  string
	env  []string
	data []string // the data directories
	cmds []*exec.Cmd
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	bin := os.Getenv("PADDOCK_BIN")
	if bin == "" {
		bin = "../../bin"
	}
	bin, err := filepath.Abs(bin)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(bin, "paddock")); err != nil {
		t.Fatalf("%v: run `make build`", err)
	}
	// Short: a path of a socket or mount has its limits.
	dir, err := os.MkdirTemp("/tmp", "paddock-e2e-")
	if err != nil {
		t.Fatal(err)
	}
	c := &cluster{t: t, bin: bin, dir: dir, data: []string{filepath.Join(dir, "data")}}
	master, centre := "127.0.0.1:"+freePort(t), "127.0.0.1:"+freePort(t)
	c.env = append(os.Environ(),
		"PADDOCK_DATA_DIR="+filepath.Join(dir, "data"), "PADDOCK_MASTER_LISTEN="+master, "CUBE_TEMPLATE_CENTER_LISTEN="+centre, "CUBE_TEMPLATE_CENTER_ADDR=http://"+centre,
		"PADDOCK_CUBELET_LISTEN=127.0.0.1:"+freePort(t), "PADDOCK_CUBELET_METRICS_LISTEN=127.0.0.1:"+freePort(t), "PADDOCK_ON_STOP=kill", "PADDOCK_HEARTBEAT_INTERVAL=500ms", "PADDOCK_SWEEP_INTERVAL=1s", "PADDOCK_CREATE_TIMEOUT=30s",
		"CUBE_TEMPLATE_CENTER_RECONCILE_RUNNING_STALE_AFTER=5s", "CUBE_TEMPLATE_CENTER_RECONCILE_PENDING_STALE_AFTER=20s", "CUBE_TEMPLATE_CENTER_RECONCILE_INTERVAL=1s")
	t.Cleanup(func() {
		c.stop()
		c.checkClean()
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return c
}

// freePort finds a port that nobody has, below those that the kernel gives to
// connections: one of these might take it before it is listened on.
func freePort(t *testing.T) string {
	t.Helper()
	for range 100 {
		port := strconv.Itoa(20_000 + rand.IntN(12_000))
		l, err := net.Listen("tcp", "127.0.0.1:"+port)
		if err == nil {
			_ = l.Close() // it was only tried
			return port
		}
	}
	t.Fatal("no port is free")
	return ""
}

// start runs roles and waits for a healthy host.
func (c *cluster) start(roles ...string) {
	c.t.Helper()
	for _, role := range roles {
		c.spawn(role, role)
	}
	c.eventually("a healthy host", 30*time.Second, func() bool {
		out, _, code := c.run("", "host", "list", "-o", "json")
		return code == 0 && strings.Contains(out, `"health": "healthy"`)
	})
}

// spawn runs a role, with more in its environment, and writes what it says to a
// log called name.
func (c *cluster) spawn(name, role string, env ...string) *exec.Cmd {
	c.t.Helper()
	log, err := os.OpenFile(filepath.Join(c.dir, name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		c.t.Fatal(err)
	}
	cmd := exec.Command(filepath.Join(c.bin, "paddock"), role)
	cmd.Env, cmd.Stdout, cmd.Stderr = append(slices.Clone(c.env), env...), log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		c.t.Fatal(err)
	}
	_ = log.Close() // the child has its own
	c.cmds = append(c.cmds, cmd)
	return cmd
}

// kill ends everything without a word.
func (c *cluster) kill() {
	for _, cmd := range c.cmds {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // it was killed: that is the answer
	}
	c.cmds = nil
}

func (c *cluster) stop() {
	for i := len(c.cmds) - 1; i >= 0; i-- {
		if err := c.cmds[i].Process.Signal(syscall.SIGTERM); err != nil {
			c.t.Errorf("stop: %v", err)
		}
		if err := c.cmds[i].Wait(); err != nil {
			c.t.Errorf("a role did not stop cleanly: %v\n%s", err, c.logs())
		}
	}
	c.cmds = nil
}

func (c *cluster) logs() string {
	all, err := filepath.Glob(filepath.Join(c.dir, "*.log"))
	if err != nil {
		return err.Error()
	}
	var b strings.Builder
	for _, path := range all {
		text, err := os.ReadFile(path)
		if err == nil {
			fmt.Fprintf(&b, "--- %s\n%s\n", filepath.Base(path), text[max(0, len(text)-3000):])
		}
	}
	return b.String()
}

// run is one command line.
func (c *cluster) run(stdin string, args ...string) (stdout, stderr string, code int) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(c.bin, "paddock"), args...)
	var out, errs bytes.Buffer
	cmd.Env, cmd.Stdin, cmd.Stdout, cmd.Stderr = c.env, strings.NewReader(stdin), &out, &errs
	err := cmd.Run()
	if cmd.ProcessState == nil {
		c.t.Fatal(err)
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

func (c *cluster) must(args ...string) string {
	c.t.Helper()
	out, errs, code := c.run("", args...)
	if code != 0 {
		c.t.Fatalf("paddock %s: exit %d\n%s\n%s", strings.Join(args, " "), code, errs, c.logs())
	}
	return out
}

func (c *cluster) eventually(what string, within time.Duration, ok func() bool) {
	c.t.Helper()
	for end := time.Now().Add(within); !ok(); <-time.After(100 * time.Millisecond) {
		if time.Now().After(end) {
			c.t.Fatalf("%s did not come within %s\n%s", what, within, c.logs())
		}
	}
}

// checkClean fails if anything of the cluster is left on the machine.
func (c *cluster) checkClean() {
	c.t.Helper()
	for _, data := range c.data {
		c.checkCleanOf(data)
	}
}

func (c *cluster) checkCleanOf(data string) {
	c.t.Helper()
	sum := sha256.Sum256([]byte(filepath.Join(data, "cubelet")))
	tag := hex.EncodeToString(sum[:2])
	look := func(what string, words ...string) {
		out, err := exec.Command(words[0], words[1:]...).CombinedOutput()
		if err != nil {
			c.t.Errorf("%v: %v: %s", words, err, out)
		}
		for _, line := range strings.Split(string(out), "\n") {
			if strings.Contains(line, c.dir) || strings.Contains(line, "pd"+tag+"-") || strings.Contains(line, "paddock-"+tag) || strings.Contains(line, "paddock_"+tag) {
				c.t.Errorf("%s left behind: %s", what, line)
			}
		}
	}
	look("mount", "cat", "/proc/self/mountinfo")
	look("loop device", "losetup", "-a")
	look("link", "ip", "-o", "link")
	look("namespace", "ip", "netns")
	look("table", "nft", "list", "tables")
	look("cgroup", "find", "/sys/fs/cgroup", "-maxdepth", "2", "-name", "paddock-*")
	look("process", "ps", "-eo", "args")
	for _, sub := range []string{"cubelet/sandboxes", "cubelet/mounts"} {
		left, err := os.ReadDir(filepath.Join(data, sub))
		if err != nil && !os.IsNotExist(err) {
			c.t.Error(err)
		}
		for _, f := range left {
			c.t.Errorf("left behind: %s/%s", sub, f.Name())
		}
	}
}

// busybox pushes a small image that has a shell.
func busybox(t *testing.T, registry, name string) string {
	t.Helper()
	b, err := os.ReadFile("/bin/busybox")
	if err != nil {
		t.Fatalf("%v: run `make test`, which installs busybox-static", err)
	}
	files := []service.File{{Name: "bin/busybox", Body: string(b), Mode: 0o755}, {Name: "etc/passwd", Body: "root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000::/home/user:/bin/sh\n"}}
	for _, tool := range []string{"sh", "cat", "echo", "sleep", "dd", "id", "ls", "wget"} {
		files = append(files, service.File{Name: "bin/" + tool, Link: "busybox"})
	}
	return service.Image(t, registry, name, files...)
}

func (c *cluster) sandbox(alias string) string {
	c.t.Helper()
	return strings.TrimSpace(c.must("sandbox", "create", alias))
}

func TestLifeOfASandbox(t *testing.T) {
	for name, roles := range map[string][]string{"one process": {"up"}, "three processes": {"master", "templatecenter", "cubelet"}} {
		t.Run(name, func(t *testing.T) {
			registry := service.Registry(t)
			c := newCluster(t)
			c.start(roles...)
			c.must("tpl", "create-from-image", "--image", busybox(t, registry, "box:1"), "--alias", "box", "--writable-layer-size", "32Mi", "--env", "FROM=template")
			id := c.sandbox("box")

			if out := c.must("sandbox", "exec", id, "--", "sh", "-c", "echo $FROM; id -u"); out != "template\n0\n" {
				t.Errorf("shell said %q", out)
			}
			if out := c.must("sandbox", "exec", "--user", "user", id, "--", "id", "-u"); out != "1000\n" {
				t.Errorf("as user: %q", out)
			}
			if _, _, code := c.run("", "sandbox", "exec", id, "--", "sh", "-c", "exit 7"); code != 7 {
				t.Errorf("exit code 7 came as %d", code)
			}
			if out, _, code := c.run("in\n", "sandbox", "exec", "-i", id, "--", "cat"); out != "in\n" || code != 0 {
				t.Errorf("cat gave %q, %d", out, code)
			}
			if _, errs, code := c.run("some text", "sandbox", "cp", "-", id+":/root/deep/file"); code != 0 {
				t.Errorf("write: %s", errs)
			}
			if out := c.must("sandbox", "cp", id+":/root/deep/file", "-"); out != "some text" {
				t.Errorf("read %q", out)
			}
			// The writable layer has a size, and filling it hurts only the sandbox.
			if out, errs, code := c.run("", "sandbox", "exec", id, "--", "dd", "if=/dev/zero", "of=/root/big", "bs=1M", "count=64"); code == 0 || !strings.Contains(errs, "No space left") {
				t.Errorf("a full layer: %d %s %s", code, out, errs)
			}
			// A sandbox cannot begin a connection to its host.
			if out, errs, code := c.run("", "sandbox", "exec", id, "--", "wget", "-T", "2", "-q", "-O", "-", "http://10.231.0.1:80/"); code == 0 {
				t.Errorf("the host answered: %s %s", out, errs)
			}
			other := c.sandbox("box")
			if out, _, _ := c.run("", "sandbox", "exec", other, "--", "ls", "/root"); strings.Contains(out, "deep") {
				t.Error("one sandbox sees another's files")
			}
			if _, errs, code := c.run("", "tpl", "delete", "box"); code != 5 || !strings.Contains(errs, "template_in_use") || !strings.Contains(errs, id) {
				t.Errorf("delete in use: %d %s", code, errs)
			}
			c.must("sandbox", "delete", id, other)
			c.must("tpl", "delete", "box")
			if out := c.must("tpl", "list", "-o", "json"); strings.TrimSpace(out) != "[]" {
				t.Errorf("templates left: %s", out)
			}
		})
	}
}

func TestBadInputIsCoded(t *testing.T) {
	registry := service.Registry(t)
	c := newCluster(t)
	c.start("up")
	image := busybox(t, registry, "box:1")
	foreign := service.ForeignImage(t, registry, "foreign:1")
	c.must("tpl", "create-from-image", "--image", image, "--alias", "box")
	id := c.sandbox("box")
	build := func(image string, more ...string) []string {
		return append([]string{"tpl", "create-from-image", "--image", image}, more...)
	}
	for _, bad := range []struct {
		code string
		args []string
	}{
		{"image_not_found", build(registry + "/nothing:1")},
		{"registry_unavailable", build("127.0.0.1:1/box:1")},
		{"image_platform", build(foreign)},
		{"image_ref_invalid", build("UPPER/case:x:y")},
		{"image_ref_invalid", build("http://registry.example/box:1")},
		{"alias_invalid", build(image, "--alias", "Not_Good")},
		{"alias_invalid", build(image, "--alias", "tpl-x")},
		{"invalid_input", build(image, "--writable-layer-size", "much")},
		{"invalid_input", build(image, "--expose-port", "70000")},
		{"no_template_hosts", build(image, "--node", "nobody")},
		{"template_not_found", []string{"sandbox", "create", "nothing"}},
		{"no_capacity", []string{"sandbox", "create", "box", "--cpu", "900"}},
		{"invalid_input", []string{"sandbox", "create", "box", "--memory", "lots"}},
		{"sandbox_not_found", []string{"sandbox", "info", "i000000000000000000000000"}},
		{"sandbox_not_found", []string{"sandbox", "delete", "i000000000000000000000000"}},
		{"command_not_found", []string{"sandbox", "exec", id, "--", "nosuch"}},
		{"file_not_found", []string{"sandbox", "cp", id + ":/nosuch", "-"}},
		{"file_is_directory", []string{"sandbox", "cp", id + ":/bin", "-"}},
		{"unauthenticated", []string{"tpl", "list", "--api-key", "e2b_0000000000000000000000000000000000000000"}},
		{"peer_unavailable", []string{"tpl", "list", "--address", "http://127.0.0.1:1"}},
		{"job_not_found", []string{"tpl", "status", "--job-id", "job-x"}},
		{"port_in_use", []string{"cubelet", "--data-dir", filepath.Join(c.dir, "other")}},
		{"data_dir_unusable", []string{"up", "--data-dir", "/proc/nothing"}},
		{"data_dir_locked", []string{"up"}},
		{"bad_config", []string{"up", "--config", "/nonexistent.yaml"}},
	} {
		t.Run(bad.code+" "+strings.Join(bad.args[:min(2, len(bad.args))], " "), func(t *testing.T) {
			_, errs, code := c.run("", append([]string{"-o", "json"}, bad.args...)...)
			var said struct {
				Error struct{ Code, Message, Cause, Remedy string }
			}
			at := strings.Index(errs, "{")
			if code == 0 || at < 0 || json.Unmarshal([]byte(errs[at:]), &said) != nil {
				t.Fatalf("exit %d: %s", code, errs)
			}
			if e := said.Error; e.Code != bad.code || e.Message == "" || e.Cause == "" || e.Remedy == "" {
				t.Errorf("got %+v, want code %s with message, cause and remedy", e, bad.code)
			}
		})
	}
	c.must("sandbox", "delete", id)
	c.must("tpl", "delete", "box")
	// The bytes go after the answer, by the outbox.
	for _, sub := range []string{"artifacts", "work", "cubelet/images"} {
		c.eventually("an empty "+sub, 30*time.Second, func() bool {
			left, err := os.ReadDir(filepath.Join(c.dir, "data", sub))
			return err == nil && !slices.ContainsFunc(left, isNoName)
		})
	}
}

// isNoName tells everything else in a directory from the file that names it as a
// store.
func isNoName(e os.DirEntry) bool { return e.Name() != ".store-id" }
