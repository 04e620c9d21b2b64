package main

import (
	"bytes"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestOneStopMayComeAsSeveralSignals: timeout(1) tells the program and its
// process group, and a terminal's Ctrl-C may come with a SIGTERM. That is one
// wish to stop, and it must not cut off the tidying.
func TestOneStopMayComeAsSeveralSignals(t *testing.T) {
	s, ref := registryWith(t, container(t, twoLayers...))
	asked, release := make(chan struct{}, 10), make(chan struct{})
	hang := func(_ http.ResponseWriter, r *http.Request) bool {
		if strings.Contains(r.URL.Path, "/blobs/") {
			asked <- struct{}{}
			<-release
		}
		return false
	}
	s.block.Store(&hang)
	defer close(release)
	dir := t.TempDir()
	c := exec.CommandContext(t.Context(), "paddock", "image", "build", "--image", ref, "--insecure-registry", s.host, "--out", filepath.Join(dir, "app.ext4"))
	var talk bytes.Buffer
	c.Stderr = &talk
	must(t, c.Start())
	<-asked
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = c.Wait() // how it ended is in its state
	}()
	for going := true; going; {
		select {
		case <-ended:
			going = false
		default:
			_ = c.Process.Signal(syscall.SIGTERM) // it may have ended just now
		}
	}
	if got := c.ProcessState.ExitCode(); got != 130 || len(files(t, dir)) > 0 {
		t.Errorf("%v, left behind %q: %s", c.ProcessState, files(t, dir), talk.String())
	}
}
