package probe

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Holder returns the process that listens on a TCP port of this machine, and
// its name. pid is 0 when none does, or when it cannot be told.
func Holder(port uint16) (pid int, name string) {
	sockets := map[string]bool{}
	for _, table := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		listening(table, port, sockets)
	}
	if len(sockets) == 0 {
		return 0, ""
	}
	links, _ := filepath.Glob("/proc/[0-9]*/fd/*") // only a bad pattern fails
	for _, l := range links {
		to, err := os.Readlink(l)
		if err != nil || !sockets[to] {
			continue
		}
		owner := strings.Split(l, "/")[2]
		pid, err := strconv.Atoi(owner)
		if err != nil {
			continue
		}
		comm, err := os.ReadFile("/proc/" + owner + "/comm")
		if err != nil {
			continue
		}
		return pid, string(bytes.TrimSpace(comm))
	}
	return 0, ""
}

// listening adds the sockets of a table of the kernel's that listen on port, as
// the links of descriptors name them.
func listening(table string, port uint16, into map[string]bool) {
	const state, inode, listen = 3, 9, "0A"
	b, err := os.ReadFile(table)
	if err != nil {
		return // without IPv6 there is no such table
	}
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		if len(f) > inode && f[state] == listen && strings.HasSuffix(f[1], fmt.Sprintf(":%04X", port)) {
			into["socket:["+f[inode]+"]"] = true
		}
	}
}
