package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/rootfs"
)

// finding is one thing that doctor looked at.
type finding struct {
	Check  string `json:"check"`
	OK     bool   `json:"ok"`
	Detail string `json:"detail"`
	Remedy string `json:"remedy,omitempty"`
}

func (a *app) doctorCommand() *cobra.Command {
	return &cobra.Command{Use: "doctor", Short: "Check whether this machine can run Paddock", Args: args(0, 0), RunE: func(*cobra.Command, []string) error {
		cfg, err := a.load()
		if err != nil {
			return err
		}
		list := []finding{look("root", os.Geteuid() == 0, fmt.Sprintf("uid %d", os.Geteuid()), "the cubelet mounts and makes namespaces: run it as root")}
		for _, tool := range append(rootfs.Tools(), "nft") {
			path, err := exec.LookPath(tool)
			list = append(list, look(tool, err == nil, path, "apt-get install e2fsprogs nftables, or `make setup`"))
		}
		for name, path := range map[string]string{"runsc": cfg.Cubelet.Runsc, "guest": cfg.TemplateCenter.GuestBinary, "loop devices": "/dev/loop-control", "network namespaces": "/proc/self/ns/net"} {
			_, err := os.Stat(path)
			list = append(list, look(name, err == nil, path, "`make build` makes runsc and paddock-guest; the kernel needs loop devices and network namespaces"))
		}
		groups, err := filepath.Glob("/sys/fs/cgroup/*memory*")
		list = append(list, look("cgroups", err == nil && len(groups) > 0, "/sys/fs/cgroup", "mount cgroup v2, or the v1 controllers memory, cpu and pids"))
		bad := 0
		for _, f := range list {
			if !f.OK {
				bad++
			}
		}
		err = a.show(list, func(w io.Writer) {
			for _, f := range list {
				word := "ok"
				if !f.OK {
					word = "MISSING"
				}
				fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", word, f.Check, f.Detail, f.Remedy)
			}
		})
		if err == nil && bad > 0 {
			err = fault.New(fault.ToolMissing, "%d of %d checks failed", bad, len(list))
		}
		return err
	}}
}

func look(check string, ok bool, detail, remedy string) finding {
	f := finding{Check: check, OK: ok, Detail: detail}
	if !ok {
		f.Remedy = remedy
	}
	return f
}
