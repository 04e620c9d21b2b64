package main

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/paddock-dev/paddock/internal/fault"
)

func saying(text string) func(io.Writer) error {
	return func(w io.Writer) error { _, err := io.WriteString(w, text); return err }
}

func named(t *testing.T, dir string) string {
	t.Helper()
	list, err := os.ReadDir(dir)
	must(t, err)
	var names []string
	for _, e := range list {
		names = append(names, e.Name())
	}
	return strings.Join(names, " ")
}

// TestDownloadTouchesOnlyItsTarget: what lies beside it stays, a link goes on
// leading where it led, and a file keeps its mode.
func TestDownloadTouchesOnlyItsTarget(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	must(t, os.WriteFile(at("f.part"), []byte("mine"), 0o600))
	must(t, os.WriteFile(at("real"), []byte("old"), 0o640))
	must(t, os.Chmod(at("real"), 0o640))
	must(t, os.Symlink("real", at("link")))
	must(t, download(at("f"), saying("new")))
	must(t, download(at("link"), saying("newer")))
	for name, want := range map[string]string{"f": "new", "f.part": "mine", "real": "newer"} {
		if b, err := os.ReadFile(at(name)); err != nil || string(b) != want {
			t.Errorf("%s holds %q, %v", name, b, err)
		}
	}
	if to, err := os.Readlink(at("link")); err != nil || to != "real" {
		t.Errorf("the link leads to %q, %v", to, err)
	}
	if info, err := os.Stat(at("real")); err != nil || info.Mode().Perm() != 0o640 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	if got := named(t, dir); got != "f f.part link real" {
		t.Errorf("the directory has %s", got)
	}
}

// TestDownloadRefusesADirectory with a code, and leaves nothing.
func TestDownloadRefusesADirectory(t *testing.T) {
	dir := t.TempDir()
	for _, target := range []string{dir, dir + "/", filepath.Join(dir, "not", "there"), ""} {
		err := download(target, saying("x"))
		if !errors.Is(err, fault.InvalidInput) {
			t.Errorf("%q: %v", target, err)
		}
	}
	if got := named(t, dir) + named(t, filepath.Dir(dir)); strings.Contains(got, "part") || strings.Contains(got, ".paddock") {
		t.Errorf("left behind: %s", got)
	}
}

// TestDownloadIntoAPipe writes to it as it is: a device or a pipe must not be
// replaced by a file.
func TestDownloadIntoAPipe(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "pipe")
	must(t, unix.Mkfifo(pipe, 0o600))
	r, err := os.OpenFile(pipe, os.O_RDWR, 0) // both ends, so that nobody waits
	must(t, err)
	defer r.Close()
	must(t, download(pipe, saying("through")))
	if info, err := os.Lstat(pipe); err != nil || info.Mode().Type() != os.ModeNamedPipe {
		t.Fatalf("it is %v now, %v", info.Mode(), err)
	}
	b := make([]byte, len("through"))
	if _, err := io.ReadFull(r, b); err != nil || string(b) != "through" {
		t.Errorf("%q came, %v", b, err)
	}
}

// TestCopyBlamesTheLocalSide: a file of this machine that cannot be read or
// written is not the master's fault.
func TestCopyBlamesTheLocalSide(t *testing.T) {
	master := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		_, _ = io.WriteString(w, "{}")
	}))
	defer master.Close()
	cp := func(from, to string) []string {
		return []string{"--address", master.URL, "--api-key", "k", "sandbox", "cp", from, to}
	}
	id := "i" + strings.Repeat("0", 24)
	refused(t, fault.InvalidInput, cp("/proc/self/mem", id+":/x")...) // its first page is not there
	full := filepath.Join(t.TempDir(), "full")                        // not the machine's own: it once was replaced by a file
	must(t, unix.Mknod(full, unix.S_IFCHR|0o600, int(unix.Mkdev(1, 7))))
	refused(t, fault.DiskFull, cp(id+":/x", full)...)
}
