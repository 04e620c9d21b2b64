package main

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/paddock-dev/paddock/internal/cubeapi"
)

func (a *app) hostCommand() *cobra.Command {
	c := &cobra.Command{Use: "host", Short: "Look at the hosts, and say which may be used"}
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
	c.AddCommand(list, info, a.cordonCommand(true), a.cordonCommand(false), a.hostRemoveCommand())
	return c
}
