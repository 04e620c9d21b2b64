package cubelet_test

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/paddock-dev/paddock/internal/cubelet"
	"github.com/paddock-dev/paddock/internal/cubelet/runtime/runtimetest"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/hostpb"
	"github.com/paddock-dev/paddock/internal/platform/serve"
)

func (w *world) logs(ctx context.Context, id string, tail int32, follow bool) (string, error) {
	stream, err := w.host.ReadLogs(ctx, &hostpb.ReadLogsRequest{SandboxId: id, Tail: tail, Follow: follow})
	check(w.t, err)
	var b strings.Builder
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return b.String(), nil
		}
		if err != nil {
			return b.String(), serve.FromGRPC(err)
		}
		b.Write(m.GetData())
	}
}

func (w *world) stats(id string) *hostpb.SandboxStats {
	w.t.Helper()
	answer, err := w.host.StatSandboxes(w.ctx(), &hostpb.StatSandboxesRequest{SandboxIds: []string{id}})
	check(w.t, err)
	if len(answer.GetSandboxes()) != 1 {
		w.t.Fatalf("stats of %s: %v", id, answer)
	}
	return answer.GetSandboxes()[0]
}

// root is what an export has: names with their contents.
func (w *world) root(r *hostpb.ExportRootRequest) map[string]string {
	w.t.Helper()
	stream, err := w.host.ExportRoot(w.ctx(), r)
	check(w.t, err)
	var b bytes.Buffer
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			w.t.Fatal(serve.FromGRPC(err))
		}
		b.Write(m.GetData())
	}
	has := map[string]string{}
	for t := tar.NewReader(&b); ; {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			return has
		}
		check(w.t, err)
		if _, twice := has[h.Name]; twice {
			w.t.Errorf("%s comes twice", h.Name)
		}
		content, err := io.ReadAll(io.LimitReader(t, 1<<10))
		check(w.t, err)
		has[h.Name] = string(content)
	}
}

// What a sandbox's program says can be read while it runs, while it is paused,
// and followed until it ends; what it uses is told.
func TestASandboxTellsOfItself(t *testing.T) {
	w := newWorld(t).open().hold()
	r := request()
	r.Command = []string{"/bin/probe", "cat", "/etc/passwd"}
	w.create(r)
	i := r.GetSandboxId()
	followed := make(chan string, 1)
	ctx, cancel := context.WithCancel(w.ctx())
	defer cancel()
	go func() {
		text, _ := w.logs(ctx, i, 0, true)
		followed <- text
	}()
	said := "root:x:0:0:root"
	runtimetest.Eventually(t, "its program is heard", func() bool {
		text, err := w.logs(w.ctx(), i, 0, false)
		return err == nil && strings.Contains(text, said)
	})
	if last, err := w.logs(w.ctx(), i, 1, false); err != nil || strings.Count(last, "\n") > 1 {
		t.Errorf("the last line is %q, %v", last, err)
	}
	if got := w.exec(i, "probe", "fill", "/root/mine", "5"); got.code != 0 {
		t.Fatalf("%+v", got)
	}
	u := w.stats(i)
	if u.GetMemBytes() == 0 || u.GetMemBytes() > u.GetMemLimitBytes() || u.GetCpuUs() == 0 || u.GetProcesses() == 0 || u.GetDiskBytes() < 5<<20 || u.GetDiskLimitBytes() != 32<<20 || u.GetRxBytes() == 0 || u.GetTxBytes() == 0 {
		t.Errorf("it uses %v", u)
	}
	check(t, w.pause(i, 2, true))
	if text := <-followed; !strings.Contains(text, said) {
		t.Errorf("followed to its end: %q", text)
	}
	if text, err := w.logs(w.ctx(), i, 0, false); err != nil || !strings.Contains(text, said) {
		t.Errorf("while it is paused: %q, %v", text, err)
	}
	if u := w.stats(i); u.GetMemBytes() != 0 || u.GetDiskBytes() == 0 {
		t.Errorf("paused it uses %v", u)
	}
	w.delete(i)
	if _, err := w.logs(w.ctx(), i, 0, false); !errors.Is(err, fault.SandboxNotFound) {
		t.Errorf("of one that is gone: %v", err)
	}
	w.mustBeEmpty()
}

// An export is the template with all that the sandbox changed, of a running
// sandbox, a paused one and a snapshot.
func TestExportIsTheWholeRoot(t *testing.T) {
	w := newWorld(t).open().hold()
	r := request()
	w.create(r)
	i := r.GetSandboxId()
	for _, args := range [][]string{{"probe", "change"}, {"probe", "fill", "/root/mine", "1"}} {
		if got := w.exec(i, args...); got.code != 0 {
			t.Fatalf("%v: %+v", args, got)
		}
	}
	k := w.snapshot(i, true).GetSnapshotId()
	look := func(what string, r *hostpb.ExportRootRequest) {
		t.Helper()
		has := w.root(r)
		for _, name := range []string{"etc/passwd", "bin/probe", "root/mine", "root/sub/new", "root/sub/"} {
			if _, ok := has[name]; !ok {
				t.Errorf("%s: %s is missing", what, name)
			}
		}
		for name := range has {
			if strings.Contains(name, ".wh.") || name == "etc/group" || name == "root/sub/old" || strings.Contains(name, ".paddock") || strings.Contains(has[name], i) {
				t.Errorf("%s: %s is there", what, name)
			}
		}
	}
	look("running", &hostpb.ExportRootRequest{SandboxId: i})
	w.countsAfterExport(i)
	check(t, w.pause(i, 2, true))
	look("paused", &hostpb.ExportRootRequest{SandboxId: i})
	w.delete(i)
	look("snapshot", &hostpb.ExportRootRequest{SnapshotId: k})
	for _, bad := range []*hostpb.ExportRootRequest{{}, {SandboxId: i, SnapshotId: k}, {SandboxId: i}, {SnapshotId: "snap-none"}} {
		stream, err := w.host.ExportRoot(w.ctx(), bad)
		check(t, err)
		if _, err := stream.Recv(); err == nil || errors.Is(err, io.EOF) {
			t.Errorf("%v is exported", bad)
		}
	}
	w.dropSnapshot(k)
	if left, err := os.ReadDir(w.path("snapshots")); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
	w.mustBeEmpty()
}

func (w *world) countsAfterExport(id string) {
	w.t.Helper()
	if got := w.exec(id, "probe", "list", "/root"); got.code != 0 {
		w.t.Errorf("after an export: %+v", got)
	}
}

// A log that grows too long loses its beginning and nothing else.
func TestALongLogLosesItsBeginning(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	check(t, err)
	defer f.Close()
	for round := range 3 {
		for n := range 30_000 {
			_, err := fmt.Fprintf(f, "round %d, line %06d of a program that says much\n", round, n)
			check(t, err)
		}
		check(t, cubelet.TrimLog(path))
		text := cubelet.LogText(t, path, 0)
		lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
		if len(text) > 600<<10 || len(text) < 400<<10 {
			t.Errorf("%d bytes are left", len(text))
		}
		for i, line := range lines {
			if want := fmt.Sprintf("round %d, line %06d of a program that says much", round, 30_000-len(lines)+i); line != want {
				t.Fatalf("line %d is %q, want %q", i, line, want)
			}
		}
		if got := cubelet.LogText(t, path, 2); got != strings.Join(lines[len(lines)-2:], "\n")+"\n" {
			t.Errorf("the last two lines: %q", got)
		}
	}
}
