package guest

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/paddock-dev/paddock/internal/envdpb"
)

func (b *box) stat(path string) (*envdpb.EntryInfo, error) {
	a, err := b.file.Stat(b.t.Context(), connect.NewRequest(&envdpb.StatRequest{Path: path}))
	if err != nil {
		return nil, err
	}
	return a.Msg.GetEntry(), nil
}

func TestStatDescribesEntries(t *testing.T) {
	b := newBox(t)
	file := filepath.Join(b.home, "file")
	check(t, os.WriteFile(file, []byte("12345"), 0o640))
	check(t, os.Chown(file, agentUID, 777))
	check(t, os.Symlink("file", filepath.Join(b.home, "link")))
	check(t, os.Symlink("nowhere", filepath.Join(b.home, "broken")))
	e, err := b.stat("~/file")
	check(t, err)
	if e.GetName() != "file" || e.GetPath() != file || e.GetType() != envdpb.FileType_FILE_TYPE_FILE || e.GetSize() != 5 || e.GetMode() != 0o640 ||
		e.GetPermissions() != "-rw-r-----" || e.GetOwner() != "agent" || e.GetGroup() != "extra" || e.SymlinkTarget != nil || e.GetModifiedTime() == nil {
		t.Errorf("%v", e)
	}
	e, err = b.stat("link")
	check(t, err)
	if e.GetType() != envdpb.FileType_FILE_TYPE_FILE || e.GetSymlinkTarget() != file || e.GetName() != "link" {
		t.Errorf("%v", e)
	}
	e, err = b.stat("broken")
	check(t, err)
	if e.GetType() != envdpb.FileType_FILE_TYPE_SYMLINK || e.GetSymlinkTarget() != "nowhere" {
		t.Errorf("%v", e)
	}
	_, err = b.stat("missing")
	wantCode(t, err, connect.CodeNotFound, "file_not_found")
	r := connect.NewRequest(&envdpb.StatRequest{Path: "x"})
	r.Header().Set("Authorization", basic("stranger"))
	_, err = b.file.Stat(t.Context(), r)
	wantCode(t, err, connect.CodeUnauthenticated, "invalid_input")
}

func TestMakeDir(t *testing.T) {
	b := newBox(t)
	check(t, os.WriteFile(filepath.Join(b.home, "file"), nil, 0o644))
	make := func(path string) error {
		_, err := b.file.MakeDir(t.Context(), connect.NewRequest(&envdpb.MakeDirRequest{Path: path}))
		return err
	}
	check(t, make("a/b/c"))
	for _, path := range []string{"a", "a/b", "a/b/c"} {
		e, err := b.stat(path)
		check(t, err)
		if e.GetType() != envdpb.FileType_FILE_TYPE_DIRECTORY || e.GetOwner() != "agent" || e.GetMode() != 0o755 {
			t.Errorf("%v", e)
		}
	}
	wantCode(t, make("a/b"), connect.CodeAlreadyExists, "already_exists")
	wantCode(t, make("file"), connect.CodeInvalidArgument, "invalid_input")
	wantCode(t, make("file/below"), connect.CodeInvalidArgument, "invalid_input")
}

func TestMove(t *testing.T) {
	b := newBox(t)
	small := b.onTmpfs("size=1m,mode=755")
	move := func(from, to string) error {
		_, err := b.file.Move(t.Context(), connect.NewRequest(&envdpb.MoveRequest{Source: from, Destination: to}))
		return err
	}
	check(t, os.WriteFile(filepath.Join(b.home, "f"), []byte("text"), 0o640))
	check(t, move("f", "new/dir/g"))
	check(t, move("new/dir/g", small+"/h")) // to another file system
	text, err := os.ReadFile(small + "/h")
	check(t, err)
	if e, err := b.stat(small + "/h"); err != nil || string(text) != "text" || e.GetMode() != 0o640 {
		t.Errorf("%v, %v, %q", e, err, text)
	}
	wantCode(t, move("new/dir/g", "x"), connect.CodeNotFound, "file_not_found")
	wantCode(t, move("new", small+"/new"), connect.CodeFailedPrecondition, "state_conflict")
	wantCode(t, move(small+"/h", small+"/h/below"), connect.CodeInvalidArgument, "invalid_input")
}

func TestListDirWalksByName(t *testing.T) {
	b := newBox(t)
	for _, dir := range []string{"b/c/d", "a"} {
		check(t, os.MkdirAll(filepath.Join(b.home, dir), 0o755))
	}
	check(t, os.WriteFile(filepath.Join(b.home, "b/file"), nil, 0o644))
	check(t, os.WriteFile(filepath.Join(b.home, "bad\xff"), nil, 0o644))
	check(t, os.Symlink("b", filepath.Join(b.home, "link")))
	list := func(path string, depth uint32) string {
		a, err := b.file.ListDir(t.Context(), connect.NewRequest(&envdpb.ListDirRequest{Path: path, Depth: depth}))
		check(t, err)
		var names []string
		for _, e := range a.Msg.GetEntries() {
			names = append(names, strings.TrimPrefix(e.GetPath(), b.home+"/"))
		}
		return strings.Join(names, " ")
	}
	for _, c := range []struct {
		path  string
		depth uint32
		want  string
	}{
		{"", 0, "a b bad\uFFFD link"},
		{".", 1, "a b bad\uFFFD link"},
		{".", 2, "a b b/c b/file bad\uFFFD link"},
		{"~", 9, "a b b/c b/c/d b/file bad\uFFFD link"},
		{"link", 1, "link/c link/file"},
		{"a", 1, ""},
	} {
		if got := list(c.path, c.depth); got != c.want {
			t.Errorf("%q, depth %d: %q, want %q", c.path, c.depth, got, c.want)
		}
	}
	for path, code := range map[string]connect.Code{"none": connect.CodeNotFound, "b/file": connect.CodeInvalidArgument} {
		_, err := b.file.ListDir(t.Context(), connect.NewRequest(&envdpb.ListDirRequest{Path: path}))
		if e := connectError(t, err); e.Code() != code {
			t.Errorf("%s: %v", path, e)
		}
	}
}

func TestRemove(t *testing.T) {
	b := newBox(t)
	check(t, os.MkdirAll(filepath.Join(b.home, "d/e/f"), 0o755))
	remove := func(path string) error {
		_, err := b.file.Remove(t.Context(), connect.NewRequest(&envdpb.RemoveRequest{Path: path}))
		return err
	}
	for range 2 { // absent is success
		check(t, remove("d"))
	}
	wantCode(t, remove("/"), connect.CodeInvalidArgument, "invalid_input")
	if _, err := b.stat("d"); err == nil {
		t.Error("it is still there")
	}
}

// watching opens a stream of events and returns what waits for one of them.
func watching(t *testing.T, b *box, m *envdpb.WatchDirRequest) func(string, envdpb.EventType) *envdpb.FilesystemEvent {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	s, err := b.file.WatchDir(ctx, connect.NewRequest(m))
	check(t, err)
	t.Cleanup(func() { cancel(); s.Close() })
	if !s.Receive() || s.Msg().GetStart() == nil {
		t.Fatalf("no start event: %v", s.Err())
	}
	return func(name string, kind envdpb.EventType) *envdpb.FilesystemEvent {
		t.Helper()
		for s.Receive() {
			if e := s.Msg().GetFilesystem(); e.GetName() == name && e.GetType() == kind {
				return e
			}
		}
		t.Fatalf("no %v of %s: %v", kind, name, s.Err())
		return nil
	}
}

func TestWatchDir(t *testing.T) {
	b := newBox(t)
	next := watching(t, b, &envdpb.WatchDirRequest{Path: ".", Recursive: true, IncludeEntry: true})
	check(t, os.MkdirAll(filepath.Join(b.home, "sub/deep"), 0o755))
	next("sub/deep", envdpb.EventType_EVENT_TYPE_CREATE)
	file := filepath.Join(b.home, "sub/deep/f")
	check(t, os.WriteFile(file, []byte("x"), 0o644))
	if e := next("sub/deep/f", envdpb.EventType_EVENT_TYPE_CREATE); e.GetEntry().GetPath() != file {
		t.Errorf("%v", e)
	}
	next("sub/deep/f", envdpb.EventType_EVENT_TYPE_WRITE)
	check(t, os.Chmod(file, 0o600))
	next("sub/deep/f", envdpb.EventType_EVENT_TYPE_CHMOD)
	check(t, os.Rename(file, file+"2"))
	if e := next("sub/deep/f", envdpb.EventType_EVENT_TYPE_RENAME); e.Entry != nil {
		t.Errorf("%v", e)
	}
	check(t, os.Remove(file+"2"))
	next("sub/deep/f2", envdpb.EventType_EVENT_TYPE_REMOVE)
}

// Whoever was told of a directory misses nothing that happens in it after,
// however deep a tree came at once, and whatever it was called before.
func TestWhatWasToldIsWatched(t *testing.T) {
	b := newBox(t)
	next := watching(t, b, &envdpb.WatchDirRequest{Path: ".", Recursive: true})
	at := func(path string) string { return filepath.Join(b.home, path) }
	write := func(path string) {
		check(t, os.WriteFile(at(path), []byte("x"), 0o644))
		next(path, envdpb.EventType_EVENT_TYPE_WRITE)
	}
	for i := range 100 {
		tree := fmt.Sprintf("tree%d", i)
		deepest := tree + strings.Repeat("/a", i%4)
		check(t, os.MkdirAll(at(deepest), 0o755))
		next(deepest, envdpb.EventType_EVENT_TYPE_CREATE)
		write(deepest + "/f")
		moved := tree + "-moved"
		check(t, os.Rename(at(tree), at(moved)))
		deepest = moved + strings.Repeat("/a", i%4)
		next(deepest, envdpb.EventType_EVENT_TYPE_CREATE)
		write(deepest + "/g")
		check(t, os.RemoveAll(at(moved)))
		next(moved, envdpb.EventType_EVENT_TYPE_REMOVE)
	}
}

func TestWatchers(t *testing.T) {
	b := newBox(t)
	a, err := b.file.CreateWatcher(t.Context(), connect.NewRequest(&envdpb.CreateWatcherRequest{Path: "."}))
	check(t, err)
	id := a.Msg.GetWatcherId()
	check(t, os.WriteFile(filepath.Join(b.home, "f"), []byte("x"), 0o644))
	get := func() ([]*envdpb.FilesystemEvent, error) {
		a, err := b.file.GetWatcherEvents(t.Context(), connect.NewRequest(&envdpb.GetWatcherEventsRequest{WatcherId: id}))
		if err != nil {
			return nil, err
		}
		return a.Msg.GetEvents(), nil
	}
	var events []*envdpb.FilesystemEvent
	eventually(t, "the events came", func() bool {
		more, err := get()
		check(t, err)
		events = append(events, more...)
		return len(events) >= 2
	})
	if events[0].GetName() != "f" || events[0].GetType() != envdpb.EventType_EVENT_TYPE_CREATE {
		t.Errorf("%v", events)
	}
	_, err = b.file.RemoveWatcher(t.Context(), connect.NewRequest(&envdpb.RemoveWatcherRequest{WatcherId: id}))
	check(t, err)
	_, err = get()
	wantCode(t, err, connect.CodeNotFound, "not_found")
	_, err = b.file.CreateWatcher(t.Context(), connect.NewRequest(&envdpb.CreateWatcherRequest{Path: "none"}))
	wantCode(t, err, connect.CodeNotFound, "file_not_found")
}

func TestWatchersAreBounded(t *testing.T) {
	b := newBox(t)
	var last error
	for range mostWatchers + 1 {
		_, last = b.file.CreateWatcher(t.Context(), connect.NewRequest(&envdpb.CreateWatcherRequest{Path: "."}))
	}
	if e := connectError(t, last); e.Code() != connect.CodeResourceExhausted {
		t.Errorf("got %v", e)
	}
}
