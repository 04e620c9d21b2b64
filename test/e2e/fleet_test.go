package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/paddock-dev/paddock/test/service"
)

// fleet is what a platform team runs: masters and template centres behind an
// address each, three hosts, and a database, a Redis and an object store that
// they share.
type fleet struct {
	*cluster
	image   string
	s3      service.S3Config
	members map[string]*member
}

// member is one process of the fleet.
type member struct {
	role string
	env  []string
	cmd  *exec.Cmd // nil: it does not run
}

// newFleet prepares a fleet of which nothing runs.
func newFleet(t *testing.T) *fleet {
	t.Helper()
	registry := service.Registry(t)
	f := &fleet{cluster: newCluster(t), image: busybox(t, registry, "box:1"), s3: service.S3(t), members: map[string]*member{}}
	var masterAt, centreAt []string
	for range 2 {
		masterAt, centreAt = append(masterAt, "127.0.0.1:"+freePort(t)), append(centreAt, "127.0.0.1:"+freePort(t))
	}
	masters, centres := newFront(t, masterAt), newFront(t, centreAt)
	f.env = append(f.env,
		"PADDOCK_DATABASE_DSN="+service.MariaDB(t), "PADDOCK_REDIS_ADDR="+service.Redis(t), "CUBE_ARTIFACT_STORE_BACKEND=s3",
		"CUBE_S3_ENDPOINT="+f.s3.Endpoint, "CUBE_S3_BUCKET="+f.s3.Bucket, "CUBE_S3_ACCESS_KEY="+f.s3.AccessKey, "CUBE_S3_SECRET_KEY="+f.s3.SecretKey, "CUBE_S3_REGION="+f.s3.Region, "CUBE_S3_USE_PATH_STYLE=true", "CUBE_S3_USE_SSL=false",
		"PADDOCK_API_KEY=e2b_"+strings.Repeat("ab", 20), "CUBE_TEMPLATE_CALLBACK_TOKEN="+strings.Repeat("cd", 32), "PADDOCK_HOST_TOKEN="+strings.Repeat("ef", 32),
		"CUBE_MASTER_ADDR=http://"+masters.addr, "CUBE_TEMPLATE_CENTER_ADDR=http://"+centres.addr, "PADDOCK_ADDRESS=http://"+masters.addr, "PADDOCK_HOST_STALE_AFTER=5s")
	f.data = nil
	add := func(name, role string, env ...string) {
		data := filepath.Join(f.dir, name)
		f.data = append(f.data, data)
		f.members[name] = &member{role: role, env: append(env, "PADDOCK_DATA_DIR="+data)}
	}
	for i := range 2 {
		add(fmt.Sprintf("master%d", i), "master", "PADDOCK_MASTER_LISTEN="+masterAt[i])
		add(fmt.Sprintf("centre%d", i), "templatecenter", "CUBE_TEMPLATE_CENTER_LISTEN="+centreAt[i])
	}
	for i := range 3 {
		add(fmt.Sprintf("host%d", i), "cubelet", fmt.Sprintf("PADDOCK_NODE_ID=host%d", i), fmt.Sprintf("PADDOCK_SANDBOX_SUBNET=10.23%d.0.0/16", 2+i),
			"PADDOCK_CUBELET_LISTEN=127.0.0.1:"+freePort(t), "PADDOCK_CUBELET_METRICS_LISTEN=127.0.0.1:"+freePort(t))
	}
	return f
}

// launch starts members, with more in their environment.
func (f *fleet) launch(names string, more ...string) {
	f.t.Helper()
	for _, name := range strings.Fields(names) {
		m := f.members[name]
		m.cmd = f.spawn(name, m.role, append(m.env, more...)...)
	}
}

// end kills a member and waits until it is gone.
func (f *fleet) end(name string) {
	f.t.Helper()
	if err := f.members[name].cmd.Process.Kill(); err != nil {
		f.t.Fatal(err)
	}
	f.ended(name)
}

// ended waits for the end of a member that kills itself.
func (f *fleet) ended(name string) {
	f.t.Helper()
	m := f.members[name]
	late := time.AfterFunc(time.Minute, func() { _ = m.cmd.Process.Signal(syscall.SIGTERM) })
	defer late.Stop()
	_ = m.cmd.Wait() // how is in its state
	if s, ok := m.cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || s.Signal() != syscall.SIGKILL {
		f.t.Fatalf("%s was not killed: %s\n%s", name, m.cmd.ProcessState, f.logs())
	}
	for i, cmd := range f.cmds {
		if cmd == m.cmd {
			f.cmds = append(f.cmds[:i], f.cmds[i+1:]...)
			break
		}
	}
	m.cmd = nil
}

// hosts waits until so many hosts are healthy.
func (f *fleet) hosts(n int) {
	f.t.Helper()
	f.eventually(fmt.Sprintf("%d healthy hosts", n), time.Minute, func() bool {
		out, _, code := f.run("", "host", "list", "-o", "json")
		return code == 0 && strings.Count(out, `"health": "healthy"`) == n
	})
}

// front is the one address of several processes, as a balancer gives it: a
// connection goes to the next of them that takes it.
type front struct {
	addr   string
	behind []string
}

func newFront(t *testing.T, behind []string) *front {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f := &front{addr: l.Addr().String(), behind: behind}
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	all.Go(func() {
		for n := 0; ; n++ {
			c, err := l.Accept()
			if err != nil {
				return // the test is over
			}
			all.Go(func() { f.pass(ctx, c, n) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close() // nothing was written
		cancel()
		all.Wait()
	})
	return f
}

// pass carries one connection until either side, or the test, ends.
func (f *front) pass(ctx context.Context, c net.Conn, n int) {
	defer c.Close()
	for i := range f.behind {
		up, err := net.DialTimeout("tcp", f.behind[(n+i)%len(f.behind)], time.Second)
		if err != nil {
			continue
		}
		defer up.Close()
		stop := context.AfterFunc(ctx, func() { _ = errorOf(c.Close(), up.Close()) })
		defer stop()
		var both sync.WaitGroup
		both.Go(func() { carry(up, c) })
		both.Go(func() { carry(c, up) })
		both.Wait()
		return
	}
}

func errorOf(a, b error) error {
	if a != nil {
		return a
	}
	return b
}

// carry copies until there is no more, and says so.
func carry(to, from net.Conn) {
	_, _ = io.Copy(to, from) // a broken connection is what the test is about
	if t, ok := to.(*net.TCPConn); ok {
		_ = t.CloseWrite()
	}
}

type shownJob struct {
	JobID     string `json:"job_id"`
	Status    string `json:"status"`
	ErrorCode string `json:"error_code"`
	Expected  int    `json:"expected_node_count"`
	Ready     int    `json:"ready_node_count"`
}

// submit asks for a template and does not wait for it.
func (f *fleet) submit(alias string) string {
	f.t.Helper()
	var j shownJob
	if err := json.Unmarshal([]byte(f.must("tpl", "create-from-image", "--image", f.image, "--alias", alias, "--detach", "-o", "json")), &j); err != nil || j.JobID == "" {
		f.t.Fatalf("submit: %+v %v", j, err)
	}
	return j.JobID
}

// outcome waits for the end of a job.
func (f *fleet) outcome(id string) (j shownJob) {
	f.t.Helper()
	f.eventually("an end of job "+id, 2*time.Minute, func() bool {
		out, _, _ := f.run("", "tpl", "status", "--job-id", id, "-o", "json")
		return json.Unmarshal([]byte(out), &j) == nil && (j.Status == "READY" || j.Status == "FAILED")
	})
	return j
}

// nothingLeft waits until no bytes are anywhere.
func (f *fleet) nothingLeft() {
	f.t.Helper()
	for _, dir := range []string{filepath.Join(f.s3.Dir, f.s3.Bucket), filepath.Join(f.dir, "host0/cubelet/images"), filepath.Join(f.dir, "host1/cubelet/images"), filepath.Join(f.dir, "host2/cubelet/images"), filepath.Join(f.dir, "centre0/work"), filepath.Join(f.dir, "centre1/work")} {
		f.eventually("an empty "+filepath.Base(filepath.Dir(dir))+"/"+filepath.Base(dir), time.Minute, func() bool {
			files, err := filesOf(dir)
			return err == nil && len(files) == 0
		})
	}
}

// filesOf returns the files below dir, but not what an S3 server keeps of its
// own there, nor what names a store.
func filesOf(dir string) (files []string, err error) {
	err = filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		switch {
		case os.IsNotExist(err):
			return nil
		case err != nil:
			return err
		case d.IsDir() && strings.HasPrefix(d.Name(), ".sgw"):
			return filepath.SkipDir
		case !d.IsDir() && isNoName(d):
			files = append(files, path)
		}
		return nil
	})
	return files, err
}

func TestFleet(t *testing.T) {
	f := newFleet(t)
	f.launch("master0 master1 centre0 centre1 host0 host1 host2")
	f.hosts(3)
	if j := f.outcome(f.submit("box")); j.Status != "READY" || j.Expected != 3 || j.Ready != 3 {
		t.Fatalf("job: %+v\n%s", j, f.logs())
	}
	var boxes []string
	for range 3 {
		boxes = append(boxes, f.sandbox("box"))
	}
	for _, id := range boxes {
		if out := f.must("sandbox", "exec", id, "--", "echo", "here"); out != "here\n" {
			t.Errorf("sandbox %s said %q", id, out)
		}
	}
	f.must(append([]string{"sandbox", "delete"}, boxes...)...)
	f.must("tpl", "delete", "box")
	f.nothingLeft()
}

// A process that dies for ever holds nobody up: those that are left end its
// work.
func TestFleetWithoutTheDead(t *testing.T) {
	f := newFleet(t)
	f.launch("master0 master1 centre0 centre1 host0 host1 host2")
	f.hosts(3)
	for _, dead := range []struct{ name, place string }{
		{"centre0", "rootfs.pull"},
		{"centre0", "rootfs.before_finish"},
		{"centre0", "rootfs.before_rename"},
		{"master0", "master.built.after_commit"},
		{"master0", "master.resume.after_targets"},
		{"master0", "master.resume.after_distribute"},
	} {
		other := strings.Replace(dead.name, "0", "1", 1)
		f.end(dead.name)
		f.end(other) // so that the work is sure to be the other's
		f.launch(dead.name, "PADDOCK_FAILPOINTS="+dead.place+"=crash")
		var id string
		f.eventually("a job", time.Minute, func() bool {
			var j shownJob
			out, _, code := f.run("", "tpl", "create-from-image", "--image", f.image, "--alias", "box", "--detach", "-o", "json")
			id = ""
			if code == 0 && json.Unmarshal([]byte(out), &j) == nil {
				id = j.JobID
			}
			return id != ""
		})
		f.ended(dead.name)
		f.launch(other)
		f.hosts(3)
		j := f.outcome(id)
		t.Logf("%s dead at %s: %s %s", dead.name, dead.place, j.Status, j.ErrorCode)
		if j.Status != "READY" {
			if j = f.outcome(f.submit("box")); j.Status != "READY" {
				t.Fatalf("after %s: %+v\n%s", dead.place, j, f.logs())
			}
		}
		f.launch(dead.name) // what it left in a directory of its own, only it can remove
		f.converge()
		f.nothingLeft()
	}
}

// A host that is away does not keep a template from going, and loses it when
// it returns.
func TestFleetDeletesPastADeadHost(t *testing.T) {
	f := newFleet(t)
	f.launch("master0 centre0 host0 host1 host2")
	f.hosts(3)
	if j := f.outcome(f.submit("box")); j.Ready != 3 {
		t.Fatalf("job: %+v", j)
	}
	f.end("host2")
	_, _, _ = f.run("", "tpl", "delete", "box") // it may say that a host is away
	f.launch("host2")
	f.hosts(3)
	f.converge()
	f.nothingLeft()
}
