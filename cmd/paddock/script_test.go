package main

import (
	"encoding/json"
	"errors"
	"os/exec"
	"strconv"
	"testing"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/rogpeppe/go-internal/testscript"
)

// In scripts, and for tests that start processes, this test program is paddock
// too.
func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"paddock": main})
}

// TestAlone runs the scripts that need no running system.
func TestAlone(t *testing.T) { scripts(t, "testdata/alone", nil) }

// scripts runs those of a directory with more in their environment. Besides
// testscript's own commands they have:
//
//	exits CODE PROGRAM ARG...    runs it and wants this exit status
//	is json|yaml stdout|stderr   wants one document of that form
//	until PROGRAM ARG...         runs it again until it succeeds
func scripts(t *testing.T, dir string, env map[string]string) {
	testscript.Run(t, testscript.Params{
		Dir: dir, RequireExplicitExec: true, RequireUniqueNames: true,
		Setup: func(e *testscript.Env) error {
			e.Setenv("PADDOCK_DATA_DIR", e.WorkDir+"/data") // never that of this machine
			for k, v := range env {
				e.Setenv(k, v)
			}
			self, err := exec.LookPath("paddock")
			e.Setenv("PADDOCK", self) // for scripts that change PATH
			return err
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"exits": exits, "is": is, "until": until},
	})
}

func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits CODE PROGRAM ARG...")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	got, exit := 0, (*exec.ExitError)(nil)
	if err := ts.Exec(args[1], args[2:]...); errors.As(err, &exit) {
		got = exit.ExitCode()
	} else {
		ts.Check(err)
	}
	if got != want {
		ts.Fatalf("exit status %d, want %d", got, want)
	}
}

// until leaves the streams of the last run to be looked at.
func until(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 1 {
		ts.Fatalf("usage: until PROGRAM ARG...")
	}
	const longest = 30 * time.Second
	deadline := time.After(longest)
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for ts.Exec(args[0], args[1:]...) != nil {
		select {
		case <-deadline:
			ts.Fatalf("it failed for %s", longest)
		case <-tick.C:
		}
	}
}

func is(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: is json|yaml FILE")
	}
	text, into := []byte(ts.ReadFile(args[1])), any(nil)
	read := yaml.Unmarshal
	if args[0] == "json" {
		read = json.Unmarshal
	}
	ts.Check(read(text, &into))
	if into == nil {
		ts.Fatalf("%s has no %s", args[1], args[0])
	}
}
