package main

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/paddock-dev/paddock/internal/cubeapi"
)

// snapshotNoun is the snapshots that there are; `sandbox snapshot` takes one.
func (a *app) snapshotNoun() *cobra.Command {
	c := &cobra.Command{Use: "snapshot", Short: "Look at and delete snapshots of sandboxes"}
	var of string
	list := &cobra.Command{Use: "list", Aliases: []string{"ls"}, Short: "List snapshots", Args: args(0, 0), RunE: func(c *cobra.Command, _ []string) error {
		return a.with(func(api *cubeapi.Client) error {
			list, err := api.Snapshots(c.Context(), of)
			if err != nil {
				return err
			}
			return a.show(list, func(w io.Writer) {
				fmt.Fprintln(w, "SNAPSHOT_ID\tSTATUS\tNAME\tSANDBOX_ID\tTEMPLATE_ID\tHOST\tMEMORY\tMIB\tCREATED_AT\tERROR")
				for _, s := range list {
					fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%t\t%d\t%s\t%s\n", s.SnapshotID, s.Status, s.Name, s.SandboxID, s.TemplateID, s.HostID, s.Memory, s.SizeBytes>>20, s.CreatedAt, s.Error)
				}
			})
		})
	}}
	list.Flags().StringVar(&of, "sandbox", "", "of this sandbox")
	info := &cobra.Command{Use: "info SNAPSHOT", Short: "Show one snapshot", Args: args(1, 1), RunE: func(c *cobra.Command, given []string) error {
		return a.with(func(api *cubeapi.Client) error {
			s, err := api.GetSnapshot(c.Context(), given[0])
			if err != nil {
				return err
			}
			return a.show(s, func(w io.Writer) {
				fmt.Fprintf(w, "snapshot_id:\t%s\nname:\t%s\nstatus:\t%s\nsandbox_id:\t%s\ntemplate_id:\t%s\nhost:\t%s\ndriver:\t%s\nmemory:\t%t\nsize:\t%d MiB\ncreated_at:\t%s\n", s.SnapshotID, s.Name, s.Status, s.SandboxID, s.TemplateID, s.HostID, s.Driver, s.Memory, s.SizeBytes>>20, s.CreatedAt)
				if s.Error != "" {
					fmt.Fprintf(w, "error:\t%s\n", s.Error)
				}
			})
		})
	}}
	remove := &cobra.Command{Use: "delete SNAPSHOT...", Aliases: []string{"rm"}, Short: "Delete snapshots; sandboxes made of them do not need them", Args: args(1, -1), RunE: func(c *cobra.Command, given []string) error {
		return a.with(func(api *cubeapi.Client) error {
			return each(given, func(id string) error {
				err := api.DeleteSnapshot(c.Context(), id)
				if err == nil {
					fmt.Fprintln(a.stderr, "snapshot deleted:", id)
				}
				return err
			})
		})
	}}
	c.AddCommand(list, info, remove)
	return c
}
