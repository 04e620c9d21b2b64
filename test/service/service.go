// Package service starts the real servers that tests need: MariaDB, Redis, a
// container registry and an S3 server.
//
// Each listens on 127.0.0.1 at a free port, keeps its files in a directory of
// its own, and is gone with both when the test ends, or when the test process
// ends in whatever way. It must never skip a test: a missing program fails it
// and names the command that installs it.
package service

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

const (
	readyWithin = 60 * time.Second // from the start to the first answer, on a loaded machine
	startTries  = 3                // a free port may be taken by another before the server binds it
)

// program returns the path of an installed program. Those that `make setup`
// builds itself lie in .tools/bin of the repository.
func program(name string) (string, error) {
	if path, err := exec.LookPath(name); err == nil {
		return path, nil
	}
	for _, dir := range append(toolDirs(), "/usr/sbin") {
		path := filepath.Join(dir, name)
		if info, err := os.Stat(path); err == nil && !info.IsDir() && info.Mode()&0o111 != 0 {
			return path, nil
		}
	}
	return "", fmt.Errorf("this test needs %s, which is not installed: run `make setup`", name)
}

// toolDirs returns .tools/bin of the repository that the test runs in.
func toolDirs() []string {
	dir, err := os.Getwd()
	if err != nil {
		return nil
	}
	for ; dir != filepath.Dir(dir); dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return []string{filepath.Join(dir, ".tools", "bin")}
		}
	}
	return nil
}

// freePort returns a port of 127.0.0.1 that nobody listened on a moment ago.
func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	return l.Addr().(*net.TCPAddr).Port, l.Close()
}
