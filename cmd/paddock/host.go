package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/goccy/go-yaml"
	"github.com/spf13/cobra"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/rootfs"
)

func (a *app) hostCommand() *cobra.Command {
	c := &cobra.Command{Use: "host", Short: "Look at the hosts"}
	table := func(w io.Writer, all []cubeapi.Host) {
		fmt.Fprintln(w, "NODE_ID\tIP\tTYPE\tHEALTH\tCPU\tMEMORY_MIB\tSANDBOXES\tTEMPLATES\tREASON")
		for _, h := range all {
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%d/%dm\t%d/%d\t%d\t%d\t%s\n", h.NodeID, h.HostIP, h.InstanceType, h.Health, h.Allocated.MilliCPU, h.Allocatable.MilliCPU,
				h.Allocated.MemBytes>>20, h.Allocatable.MemBytes>>20, h.Sandboxes, len(h.Artifacts), h.Reason)
		}
	}
	list := &cobra.Command{Use: "list", Aliases: []string{"ls"}, Short: "List hosts, and why each is in or out", Args: args(0, 0), RunE: func(c *cobra.Command, _ []string) error {
		return a.with(func(api *cubeapi.Client) error {
			all, err := api.Hosts(c.Context())
			if err != nil {
				return err
			}
			return a.show(all, func(w io.Writer) { table(w, all) })
		})
	}}
	info := &cobra.Command{Use: "info HOST", Short: "Show one host", Args: args(1, 1), RunE: func(c *cobra.Command, given []string) error {
		return a.with(func(api *cubeapi.Client) error {
			h, err := api.Host(c.Context(), given[0])
			if err != nil {
				return err
			}
			return a.show(h, func(w io.Writer) { table(w, []cubeapi.Host{*h}) })
		})
	}}
	c.AddCommand(list, info, a.hostRemoveCommand())
	return c
}

func (a *app) configCommand() *cobra.Command {
	c := &cobra.Command{Use: "config", Short: "Look at the configuration"}
	c.AddCommand(&cobra.Command{Use: "show", Short: "Print the configuration in force, secrets hidden", Args: args(0, 0), RunE: func(*cobra.Command, []string) error {
		cfg, notices, err := a.load(nil)
		if err != nil {
			return err
		}
		for _, n := range notices {
			fmt.Fprintln(a.stderr, "Notice:", n)
		}
		b, err := yaml.Marshal(cfg)
		if err != nil {
			return err
		}
		_, err = a.stdout.Write(b)
		return err
	}})
	return c
}

// finding is one thing that doctor looked at.
type finding struct {
	Check  string `json:"check"`
	OK     bool   `json:"ok"`
	Detail string `json:"detail"`
	Remedy string `json:"remedy,omitempty"`
}

func (a *app) doctorCommand() *cobra.Command {
	return &cobra.Command{Use: "doctor", Short: "Check whether this machine can run Paddock", Args: args(0, 0), RunE: func(*cobra.Command, []string) error {
		cfg, _, err := a.load(nil)
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
