package runtimetest

import (
	"archive/tar"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"testing"

	"github.com/paddock-dev/paddock/internal/cubelet/runtime"
)

// counting is a first program that counts in its memory.
var counting = Options{Args: []string{ProbePath, "count", "/root/count"}}

// counted returns how far a sandbox has counted; 0 before it has begun.
func (w World) counted(t *testing.T, id string) int {
	t.Helper()
	status, out := w.exec(t, id, "cat", "/root/count")
	if status != 0 {
		return 0
	}
	n, err := strconv.Atoi(out)
	must(t, err)
	return n
}

func (w World) countsBeyond(t *testing.T, id string, n int) {
	t.Helper()
	Eventually(t, "the count goes beyond "+strconv.Itoa(n), func() bool { return w.counted(t, id) > n })
}

func freeze(t *testing.T, w World, d runtime.Freezer) {
	s, p := w.start(t, counting)
	w.countsBeyond(t, s.ID, 10)
	for range 2 {
		must(t, d.Freeze(bounded(t), s.ID))
	}
	if !p.Alive() {
		t.Error("it has ended")
	}
	for range 2 {
		must(t, d.Thaw(bounded(t), s.ID))
	}
	w.countsBeyond(t, s.ID, w.counted(t, s.ID))
	must(t, d.Freeze(bounded(t), s.ID))
	must(t, w.Driver.Delete(bounded(t), s.ID))
	if p.Alive() {
		t.Error("a frozen sandbox cannot be deleted")
	}
	if err := d.Freeze(bounded(t), s.ID); err == nil {
		t.Error("one that is not there can be frozen")
	}
}

// diff looks at what is told of changes, and begins another sandbox with them.
func diff(t *testing.T, w World, d runtime.Differ) {
	s, _ := w.start(t, Options{})
	for _, args := range [][]string{{"change"}, {"fill", "/root/mine", "1"}} {
		if status, out := w.exec(t, s.ID, args...); status != 0 {
			t.Fatalf("%v: status %d, %s", args, status, out)
		}
	}
	dir := t.TempDir()
	layer := filepath.Join(dir, "layer.tar")
	must(t, d.Diff(bounded(t), s.ID, layer))
	want := []string{"etc/.wh.group", "root/pipe", "root/mine", "root/sub/", "root/sub/.wh..wh..opq", "root/sub/link", "root/sub/new"}
	has := map[string]*tar.Header{}
	for _, h := range headers(t, layer) {
		if has[h.Name] != nil {
			t.Errorf("%s comes twice", h.Name)
		}
		has[h.Name] = h
	}
	for _, name := range want {
		if has[name] == nil {
			t.Errorf("%s is not in the layer", name)
		}
	}
	for name := range has {
		if runtime.Laid(filepath.Clean(name)) || name == "root/sub/old" {
			t.Errorf("%s is in the layer", name)
		}
	}
	if h := has["etc/passwd"]; h == nil || h.Mode != 0o600 || h.Uid != 1000 || h.Gid != 1000 {
		t.Errorf("a changed mode and owner: %+v", h)
	}
	left, err := os.ReadDir(dir)
	must(t, err)
	if len(left) != 1 {
		t.Errorf("beside the layer there is %v", left)
	}
	must(t, w.Driver.Delete(bounded(t), s.ID))

	// A second life, whose changes are the sum of both.
	n, _ := w.start(t, Options{Layer: layer})
	changed := func(id string) {
		t.Helper()
		for dir, want := range map[string]string{"/root": "mine\npipe\nsub", "/root/sub": "hard\nlink\nnew"} {
			if _, out := w.exec(t, id, "list", dir); out != want {
				t.Errorf("%s has %q, want %q", dir, out, want)
			}
		}
		if status, _ := w.exec(t, id, "cat", "/etc/group"); status == 0 {
			t.Error("a removed file is back")
		}
		if _, out := w.exec(t, id, "same", "/root/sub/new", "/root/sub/hard"); out != "true" {
			t.Error("a hard link has become a file of its own")
		}
		if _, out := w.exec(t, id, "cat", "/etc/hostname"); out == s.Hostname {
			t.Error("it has the name of the life before")
		}
	}
	changed(n.ID)
	again := filepath.Join(dir, "again.tar")
	must(t, d.Diff(bounded(t), n.ID, again))
	third, _ := w.start(t, Options{Layer: again})
	changed(third.ID)

	if err := d.Diff(bounded(t), "i00000000000000000000000f", filepath.Join(dir, "none")); err == nil {
		t.Error("one that is not there can be told of")
	}
	left, err = os.ReadDir(dir)
	must(t, err)
	if !slices.EqualFunc(left, []string{"again.tar", "layer.tar"}, func(e os.DirEntry, name string) bool { return e.Name() == name }) {
		t.Errorf("a diff that failed leaves %v", left)
	}
}

func headers(t *testing.T, path string) (list []*tar.Header) {
	t.Helper()
	f, err := os.Open(path)
	must(t, err)
	defer f.Close()
	for r := tar.NewReader(f); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return list
		}
		must(t, err)
		list = append(list, h)
	}
}

// checkpoint keeps a sandbox that goes on, brings it back several times at once,
// and keeps one that does not go on.
func checkpoint(t *testing.T, w World, d runtime.Checkpointer) {
	s, _ := w.start(t, counting)
	if status, out := w.exec(t, s.ID, "change"); status != 0 {
		t.Fatalf("status %d, %s", status, out)
	}
	w.countsBeyond(t, s.ID, 20)
	dir := t.TempDir()
	kept := filepath.Join(dir, "kept")
	must(t, os.Mkdir(kept, 0o700))
	must(t, d.Checkpoint(bounded(t), s.ID, kept, true))
	w.countsBeyond(t, s.ID, w.counted(t, s.ID))

	// Each is made before they start side by side: the world is not asked at once.
	clones := []runtime.Sandbox{w.New(t, counting), w.New(t, counting), w.New(t, counting)}
	var group sync.WaitGroup
	for _, c := range clones {
		group.Go(func() {
			p, err := d.Restore(bounded(t), c, kept)
			if err != nil {
				t.Error(err)
				return
			}
			if n := w.counted(t, c.ID); n < 20 {
				t.Errorf("it counts from %d: its memory is gone", n)
			}
			w.countsBeyond(t, c.ID, w.counted(t, c.ID))
			if _, out := w.exec(t, c.ID, "list", "/root/sub"); out != "hard\nlink\nnew" {
				t.Errorf("its files are gone: %q", out)
			}
			st, ok, err := w.Driver.Status(bounded(t), c.ID)
			if err != nil || !ok || !st.Running || st.Process != p {
				t.Errorf("status %+v, %v, %v; want process %+v running", st, ok, err, p)
			}
		})
	}
	group.Wait()
	if w.Processes(t, clones[0].ID) == 0 {
		t.Error("it is not inside its limits")
	}

	// A restored one can be kept again, this time for good.
	again := filepath.Join(dir, "again")
	must(t, os.Mkdir(again, 0o700))
	p, _, err := w.Driver.Status(bounded(t), clones[0].ID)
	must(t, err)
	must(t, d.Checkpoint(bounded(t), clones[0].ID, again, false))
	if p.Process.Alive() {
		t.Error("it goes on")
	}
	must(t, w.Driver.Delete(bounded(t), clones[0].ID))
	last := w.New(t, counting)
	_, err = d.Restore(bounded(t), last, again)
	must(t, err)
	w.countsBeyond(t, last.ID, 20)

	// One that is frozen can be kept, and stays frozen: it is that moment.
	if f, ok := d.(runtime.Freezer); ok {
		must(t, f.Freeze(bounded(t), last.ID))
		if d, ok := d.(runtime.Differ); ok {
			must(t, d.Diff(bounded(t), last.ID, filepath.Join(dir, "frozen.tar")))
		}
		still := filepath.Join(dir, "still")
		must(t, os.Mkdir(still, 0o700))
		must(t, d.Checkpoint(bounded(t), last.ID, still, true))
		thawed := w.New(t, counting)
		_, err := d.Restore(bounded(t), thawed, still)
		must(t, err)
		w.countsBeyond(t, thawed.ID, 20)
		if st, _, err := w.Driver.Status(bounded(t), last.ID); err != nil || st.Running {
			t.Errorf("its checkpoint has thawed it: %+v, %v", st, err)
		}
		must(t, f.Thaw(bounded(t), last.ID))
		w.countsBeyond(t, last.ID, w.counted(t, last.ID))
	}

	// What cannot be kept goes on, or has ended; it is never left stopped.
	must(t, os.WriteFile(filepath.Join(dir, "file"), nil, 0o600))
	if err := d.Checkpoint(bounded(t), last.ID, filepath.Join(dir, "file", "deep"), true); err == nil {
		t.Error("it was kept below a file")
	}
	if st, _, err := w.Driver.Status(bounded(t), last.ID); err == nil && st.Process.Alive() {
		w.countsBeyond(t, last.ID, w.counted(t, last.ID))
	}
	broken := w.New(t, counting)
	must(t, os.Truncate(filepath.Join(again, "checkpoint.img"), 1000))
	if _, err := d.Restore(bounded(t), broken, again); err == nil {
		t.Error("half a checkpoint was restored")
	}
}
