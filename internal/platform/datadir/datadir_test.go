package datadir_test

import (
	"bufio"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/platform/config"
	"github.com/paddock-dev/paddock/internal/platform/datadir"
)

// With a directory in its environment the test program is the other process:
// it locks there, says so, and waits until its input ends.
func TestMain(m *testing.M) {
	if path := os.Getenv("LOCK_DIR"); path != "" {
		d, err := datadir.Open(path)
		if err == nil {
			_, err = d.Lock("master")
		}
		if err != nil {
			os.Exit(1)
		}
		_, _ = os.Stdout.WriteString("locked\n")
		_, _ = os.Stdin.Read(make([]byte, 1))
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func open(t *testing.T, path string) *datadir.Dir {
	t.Helper()
	d, err := datadir.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func mode(t *testing.T, path string) os.FileMode {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info.Mode().Perm()
}

func TestOpenMakesItForTheOwnerOnly(t *testing.T) {
	for name, prepare := range map[string]func(path string) error{
		"new":        func(string) error { return nil },
		"empty":      func(p string) error { return os.Mkdir(p, 0o755) },
		"ours, open": func(p string) error { return os.MkdirAll(filepath.Join(p, "secrets"), 0o755) },
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "data")
			if err := prepare(path); err != nil {
				t.Fatal(err)
			}
			open(t, path)
			for _, p := range []string{path, filepath.Join(path, "secrets")} {
				if m := mode(t, p); m != 0o700 {
					t.Errorf("%s has mode %o", p, m)
				}
			}
		})
	}
}

func TestOpenRefuses(t *testing.T) {
	full := filepath.Join(t.TempDir(), "full")
	if err := os.MkdirAll(filepath.Join(full, "somebody"), 0o755); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{full, file, filepath.Join(file, "below"), "/proc/paddock"} {
		for name, err := range map[string]error{"look": datadir.Look(path), "open": second(datadir.Open(path))} {
			if !errors.Is(err, fault.DataDir) || !strings.Contains(err.Error(), path) {
				t.Errorf("%s %s: %v, want data_dir_unusable", name, path, err)
			}
		}
	}
	if m := mode(t, full); m != 0o755 {
		t.Errorf("a stranger's directory was changed to %o", m)
	}
}

func second(_ *datadir.Dir, err error) error { return err }

func TestLookChangesNothing(t *testing.T) {
	root := t.TempDir()
	empty := filepath.Join(root, "empty")
	if err := os.Mkdir(empty, 0o755); err != nil {
		t.Fatal(err)
	}
	open(t, filepath.Join(root, "ours"))
	for _, path := range []string{empty, filepath.Join(root, "ours"), filepath.Join(root, "not/there/yet")} {
		if err := datadir.Look(path); err != nil {
			t.Errorf("%s: %v", path, err)
		}
	}
	if m := mode(t, empty); m != 0o755 {
		t.Errorf("the mode became %o", m)
	}
	left, err := os.ReadDir(empty)
	if _, gone := os.Stat(filepath.Join(root, "not")); err != nil || len(left) > 0 || gone == nil {
		t.Errorf("made: %v, %v", left, err)
	}
	if got := datadir.Existing(filepath.Join(root, "not/there/yet")); got != root {
		t.Errorf("what is there of it: %s", got)
	}
}

func TestOpenSweepsWhatAKillLeft(t *testing.T) {
	path := t.TempDir()
	open(t, path)
	old, young := filepath.Join(path, "secrets/.new-1"), filepath.Join(path, ".probe-2")
	for _, p := range []string{old, young} {
		if err := os.WriteFile(p, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	before := time.Now().Add(-time.Hour)
	if err := os.Chtimes(old, before, before); err != nil {
		t.Fatal(err)
	}
	open(t, path)
	if _, err := os.Stat(old); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("left: %v", err)
	}
	if _, err := os.Stat(young); err != nil {
		t.Errorf("another's file is gone: %v", err)
	}
}

func TestLockKeepsOthersOut(t *testing.T) {
	path := t.TempDir()
	c := exec.Command(os.Args[0])
	c.Env = append(os.Environ(), "LOCK_DIR="+path)
	in, err := c.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	if line, _ := bufio.NewReader(out).ReadString('\n'); line != "locked\n" {
		t.Fatalf("the other said %q", line)
	}
	d := open(t, path)
	if _, err := d.Lock("master"); !errors.Is(err, fault.DataDirLocked) || !strings.Contains(err.Error(), "process "+strconv.Itoa(c.Process.Pid)) {
		t.Errorf("while another has it: %v", err)
	}
	if pid := datadir.Holder(path, "master"); pid != c.Process.Pid {
		t.Errorf("process %d has it, want %d", pid, c.Process.Pid)
	}
	if pid := datadir.Holder(path, "cubelet"); pid != 0 {
		t.Errorf("process %d has what nobody has", pid)
	}
	release, err := d.Lock("cubelet")
	if err != nil {
		t.Errorf("another role: %v", err)
	} else if err := release(); err != nil {
		t.Error(err)
	}
	// A killed process leaves no lock.
	if err := c.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = c.Wait() // it was killed
	_ = in.Close()
	if pid := datadir.Holder(path, "master"); pid != 0 {
		t.Errorf("the dead process %d has it", pid)
	}
	release, err = d.Lock("master")
	if err != nil {
		t.Fatalf("after the other was killed: %v", err)
	}
	if _, err := d.Lock("master"); !errors.Is(err, fault.DataDirLocked) {
		t.Errorf("twice in one process: %v", err)
	}
	if err := release(); err != nil {
		t.Fatal(err)
	}
	release, err = d.Lock("master")
	if err != nil {
		t.Errorf("after release: %v", err)
	} else if err := release(); err != nil {
		t.Error(err)
	}
}

func TestSecretsAreMadeOnce(t *testing.T) {
	path := t.TempDir()
	var group sync.WaitGroup
	got := make([]config.Auth, 16)
	for i := range got {
		group.Go(func() {
			d, err := datadir.Open(path)
			if err == nil {
				got[i], err = d.Secrets(config.Auth{})
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	for _, a := range got {
		if a != got[0] {
			t.Fatal("two callers have different secrets")
		}
	}
	if !regexp.MustCompile(`^e2b_[0-9a-f]{40}$`).MatchString(got[0].APIKey.Reveal()) {
		t.Error("the API key is not of E2B's form")
	}
	if len(got[0].CallbackToken) != 64 || len(got[0].HostToken) != 64 || got[0].CallbackToken == got[0].HostToken {
		t.Error("tokens are not two of 64 digits")
	}
	c := config.Default()
	c.Auth = got[0]
	if err := c.Validate(); err != nil && strings.Contains(err.Error(), "auth.") {
		t.Errorf("the configuration refuses them: %v", err)
	}
	files, _ := filepath.Glob(filepath.Join(path, "secrets", "*"))
	if len(files) != 3 {
		t.Errorf("files %v, want 3 and nothing left over", files)
	}
	for _, f := range files {
		if m := mode(t, f); m != 0o600 {
			t.Errorf("%s has mode %o", f, m)
		}
	}
}

func TestSecretsThatAreSetStay(t *testing.T) {
	d := open(t, t.TempDir())
	a, err := d.Secrets(config.Auth{APIKey: "given"})
	if err != nil || a.APIKey != "given" || a.HostToken == "" {
		t.Errorf("%v: %q", err, a.APIKey.Reveal())
	}
	if _, err := os.Stat(filepath.Join(d.Path, "secrets/api-key")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a given key was written down: %v", err)
	}
	token := filepath.Join(d.Path, "secrets/host-token")
	if err := os.WriteFile(token, []byte("\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Secrets(config.Auth{}); !errors.Is(err, fault.DataDir) {
		t.Errorf("an empty secret: %v", err)
	}
}

func TestClientSettings(t *testing.T) {
	d := open(t, t.TempDir())
	if _, err := datadir.ReadClient(d.Path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("before: %v", err)
	}
	for _, want := range []datadir.Client{{"http://a:1", "k1"}, {"http://b:2", "k2"}} {
		if err := d.WriteClient(want); err != nil {
			t.Fatal(err)
		}
		got, err := datadir.ReadClient(d.Path)
		if err != nil || got != want {
			t.Errorf("%v: %+v, want %+v", err, got, want)
		}
	}
	path := filepath.Join(d.Path, "cli.json")
	if m := mode(t, path); m != 0o600 {
		t.Errorf("mode %o", m)
	}
	if err := os.WriteFile(path, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := datadir.ReadClient(d.Path); !errors.Is(err, fault.DataDir) {
		t.Errorf("broken: %v", err)
	}
}
