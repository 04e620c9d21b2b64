package cubelet_test

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/paddock-dev/paddock/internal/cubelet/runtime/runtimetest"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/hostpb"
)

func TestLifeOfASandbox(t *testing.T) {
	w := newWorld(t).open().hold()
	s := w.create(request())
	if s.GetState() != hostpb.SandboxState_SANDBOX_STATE_RUNNING || s.GetIp() == "" {
		t.Fatalf("created: %v", s)
	}
	for _, step := range []string{"journal", "network", "rootfs", "cgroup", "runtime", "guest", "init"} {
		if s.GetStepUs()[step] <= 0 {
			t.Errorf("step %s took no time: %v", step, s.GetStepUs())
		}
	}
	id := s.GetSandboxId()
	t.Run("exec", func(t *testing.T) { execCases(t, w, id) })
	t.Run("files", func(t *testing.T) { fileCases(t, w, id) })
	t.Run("surroundings", func(t *testing.T) { surroundings(t, w, id) })
	w.delete(id)
	w.delete(id) // absent is success
	if _, err := w.get(id); !errors.Is(err, fault.SandboxNotFound) {
		t.Errorf("after the delete: %v", err)
	}
	if _, err := w.run(&hostpb.ExecStart{SandboxId: id, Command: []string{"probe"}}, nil); !errors.Is(err, fault.SandboxNotFound) {
		t.Errorf("exec after the delete: %v", err)
	}
	w.mustBeEmpty()
}

func execCases(t *testing.T, w *world, id string) {
	for _, c := range []struct {
		name  string
		start *hostpb.ExecStart
		input []byte
		want  result
	}{
		{"output", &hostpb.ExecStart{Command: []string{"probe", "echo", "hello"}}, nil, result{out: "hello\n"}},
		{"errors apart", &hostpb.ExecStart{Command: []string{"probe", "complain", "oh"}}, nil, result{err: "oh\n"}},
		{"exit code", &hostpb.ExecStart{Command: []string{"probe", "exit", "42"}}, nil, result{code: 42}},
		{"input", &hostpb.ExecStart{Command: []string{"/bin/probe", "copy"}}, []byte("to and fro"), result{out: "to and fro"}},
		{"no input", &hostpb.ExecStart{Command: []string{"probe", "copy"}}, nil, result{}},
		{"directory and user", &hostpb.ExecStart{Command: []string{"probe", "where"}, Cwd: "/etc", User: "user"}, nil, result{out: "/etc 1000\n"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.start.SandboxId = id
			got, err := w.run(c.start, c.input)
			if err != nil || got != c.want {
				t.Errorf("%+v, %v; want %+v", got, err, c.want)
			}
		})
	}
	got, err := w.run(&hostpb.ExecStart{SandboxId: id, Command: []string{"probe", "env"}, Envs: map[string]string{"ONCE": "exec"}}, nil)
	if err != nil || !strings.Contains(got.out, "FROM=create\n") || !strings.Contains(got.out, "ONCE=exec\n") {
		t.Errorf("environment: %v, %v", got.out, err)
	}
	if _, err := w.run(&hostpb.ExecStart{SandboxId: id, Command: []string{"no-such-program"}}, nil); !errors.Is(err, fault.CommandNotFound) {
		t.Errorf("unknown program: %v", err)
	}
	if _, err := w.run(&hostpb.ExecStart{SandboxId: id}, nil); !errors.Is(err, fault.InvalidInput) {
		t.Errorf("no program: %v", err)
	}
	if got := signalled(t, w, id); got.signal == "" && got.code == 0 {
		t.Errorf("a killed process: %+v", got)
	}
}

// signalled runs a program that would take long, and kills it once it began.
func signalled(t *testing.T, w *world, id string) (r result) {
	stream, err := w.host.Exec(w.ctx())
	check(t, err)
	check(t, stream.Send(&hostpb.ExecRequest{Message: &hostpb.ExecRequest_Start{Start: &hostpb.ExecStart{SandboxId: id, Command: []string{"probe", "sleep", "600"}}}}))
	for {
		m, err := stream.Recv()
		if err != nil {
			return r
		}
		if m.GetStarted() != nil {
			check(t, stream.Send(&hostpb.ExecRequest{Message: &hostpb.ExecRequest_Signal{Signal: 9}}))
		}
		if e := m.GetExited(); e != nil {
			r = result{code: int(e.GetExitCode()), signal: e.GetSignal()}
		}
	}
}

func fileCases(t *testing.T, w *world, id string) {
	big := bytes.Repeat([]byte("0123456789abcdef"), 1<<17) // 2 MiB
	for path, data := range map[string][]byte{"/root/small": []byte("small"), "/root/new/dir/empty": nil, "/root/big": big} {
		check(t, w.write(id, path, data))
		if got, err := w.read(id, path); err != nil || !bytes.Equal(got, data) {
			t.Errorf("%s: %d bytes back of %d, %v", path, len(got), len(data), err)
		}
	}
	if _, err := w.read(id, "/root/absent"); !errors.Is(err, fault.FileNotFound) {
		t.Errorf("absent file: %v", err)
	}
	if _, err := w.read(id, "/root"); !errors.Is(err, fault.FileIsDirectory) {
		t.Errorf("reading a directory: %v", err)
	}
	if err := w.write(id, "/root", []byte("x")); !errors.Is(err, fault.FileIsDirectory) {
		t.Errorf("writing a directory: %v", err)
	}
	if err := w.write(id, "/root/huge", make([]byte, 48<<20)); !errors.Is(err, fault.SandboxDiskFull) {
		t.Errorf("48 MiB to a layer of 32: %v", err)
	}
	if got := w.exec(id, "probe", "echo", "alive"); got.out != "alive\n" {
		t.Errorf("with a full layer: %+v", got)
	}
	if err := w.write("i0123456789abcdef01234567", "/x", nil); !errors.Is(err, fault.SandboxNotFound) {
		t.Errorf("unknown sandbox: %v", err)
	}
}

func surroundings(t *testing.T, w *world, id string) {
	for path, want := range map[string]string{"/etc/hostname": id, "/etc/hosts": id, "/etc/resolv.conf": "options"} {
		if got := w.exec(id, "probe", "cat", path); !strings.Contains(got.out, want) {
			t.Errorf("%s: %+v, want %q in it", path, got, want)
		}
	}
	if got := w.exec(id, "probe", "cat", "/proc/mounts"); strings.Contains(got.out, w.cfg.DataDir) {
		t.Errorf("the host's paths are visible:\n%s", got.out)
	}
}

func TestCommandRunsBesideTheGuest(t *testing.T) {
	w := newWorld(t).open().hold()
	r := request()
	r.Command, r.User, r.WorkingDir = []string{"probe", "serve", "127.0.0.1:7000"}, "user", "/tmp"
	s := w.create(r)
	runtimetest.Eventually(t, "the command serves", func() bool { return w.exec(s.GetSandboxId(), "probe", "dial", "127.0.0.1:7000").out == "connected\n" })
	if got := w.exec(s.GetSandboxId(), "probe", "where"); got.out != "/tmp 1000\n" {
		t.Errorf("user and directory of the sandbox: %+v", got)
	}
	r = request()
	r.Command = []string{"no-such-program"}
	if _, err := w.host.CreateSandbox(w.ctx(), r); !errors.Is(fromGRPC(err), fault.CommandNotFound) {
		t.Errorf("unknown command: %v", err)
	}
	if list, err := w.host.ListSandboxes(w.ctx(), &hostpb.ListSandboxesRequest{}); err != nil || len(list.GetSandboxes()) != 1 {
		t.Errorf("the host shows %v, %v; want the first one alone", list, err)
	}
}

func TestBadRequestsAreRefused(t *testing.T) {
	w := newWorld(t).open().hold()
	for name, c := range map[string]struct {
		change func(*hostpb.CreateSandboxRequest)
		want   *fault.Code
	}{
		"id":              {func(r *hostpb.CreateSandboxRequest) { r.SandboxId = "../../etc" }, fault.InvalidInput},
		"no cpu":          {func(r *hostpb.CreateSandboxRequest) { r.Resources.MilliCpu = 0 }, fault.InvalidInput},
		"little memory":   {func(r *hostpb.CreateSandboxRequest) { r.Resources.MemBytes = 1 << 20 }, fault.InvalidInput},
		"no layer":        {func(r *hostpb.CreateSandboxRequest) { r.WritableBytes = 0 }, fault.InvalidInput},
		"artifact's form": {func(r *hostpb.CreateSandboxRequest) { r.ArtifactId = "../image" }, fault.InvalidInput},
		"no artifact":     {func(r *hostpb.CreateSandboxRequest) { r.ArtifactId = "rfs-ffffffffffffffffffffffff" }, fault.ArtifactNotFound},
		"too much memory": {func(r *hostpb.CreateSandboxRequest) { r.Resources.MemBytes = 1 << 50 }, fault.HostFull},
	} {
		t.Run(name, func(t *testing.T) {
			r := request()
			c.change(r)
			if _, err := w.host.CreateSandbox(w.ctx(), r); !errors.Is(fromGRPC(err), c.want) {
				t.Errorf("%v, want %s", err, c.want.Name)
			}
		})
	}
	w.mustBeEmpty()
}
