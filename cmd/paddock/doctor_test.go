package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"

	"github.com/paddock-dev/paddock/internal/platform/datadir"
)

func TestRoomIsJudged(t *testing.T) {
	for _, c := range []struct {
		have int64
		err  error
		word string
	}{
		{5 << 30, nil, "ok"},
		{5<<30 - 1, nil, "note"},
		{1 << 30, nil, "note"},
		{1<<30 - 1, nil, "FAILED"},
		{0, nil, "FAILED"},
		{5 << 30, errors.New("unreadable"), "FAILED"},
	} {
		f := room("disk", "free", c.have, c.err, 1<<30, 5<<30, "make room")
		if f.word() != c.word || (f.Remedy == "") != f.OK || f.Detail == "" {
			t.Errorf("%d, %v: %+v, want %s", c.have, c.err, f, c.word)
		}
	}
}

// A port may be free, ours, or somebody's, who is then named.
func TestPorts(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	defer l.Close()
	dir, addr := t.TempDir(), l.Addr().String()
	f := port(t.Context(), dir, "master", addr)
	if f.OK || !strings.Contains(f.Detail, fmt.Sprintf("process %d", os.Getpid())) || !strings.Contains(f.Remedy, "master.listen") {
		t.Errorf("somebody's: %+v", f)
	}
	d, err := datadir.Open(dir)
	check(t, err)
	release, err := d.Lock("master")
	check(t, err)
	if f := port(t.Context(), dir, "master", addr); !f.OK || !strings.Contains(f.Detail, "paddock itself") {
		t.Errorf("ours: %+v", f)
	}
	if f := port(t.Context(), dir, "cubelet", addr); f.OK {
		t.Errorf("another role's: %+v", f)
	}
	check(t, release())
	check(t, l.Close())
	if f := port(t.Context(), dir, "master", addr); !f.OK || !strings.Contains(f.Detail, "free") {
		t.Errorf("free: %+v", f)
	}
	if f := port(t.Context(), dir, "master", "nonsense"); f.OK || f.Remedy == "" {
		t.Errorf("no address: %+v", f)
	}
}

func TestEveryFailureHasARemedy(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	a := &app{dataDir: "/proc/nothing", configFile: "/nonexistent.yaml"}
	list, failed := a.examine(t.Context()), 0
	for _, f := range list {
		if f.Detail == "" || f.OK != (f.Remedy == "") {
			t.Errorf("%+v", f)
		}
		if !f.OK && f.Needed {
			failed++
		}
	}
	if failed < 5 { // configuration, packet filter, runtime, guest, data directory
		t.Errorf("%d of %d failed: %+v", failed, len(list), list)
	}
}
