package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/paddock-dev/paddock/internal/cubeapi"
)

func (a *app) hostRemoveCommand() *cobra.Command {
	var force bool
	c := &cobra.Command{
		Use: "remove HOST...", Aliases: []string{"rm"}, Short: "Take hosts out of the books",
		Long: "Take hosts out of the books that are cordoned and empty (`paddock host drain`). With --force a host may be neither, but\n" +
			"it must not report any more: it will not return, its sandboxes are lost, and it holds no template. Stop its cubelet first.\n" +
			"A cubelet that still runs, or returns, registers by itself, without cordon, labels and quota.",
		Args: args(1, -1), RunE: func(c *cobra.Command, given []string) error {
			return a.with(func(api *cubeapi.Client) error {
				return each(given, func(id string) error {
					err := api.RemoveHost(c.Context(), id, force)
					if err == nil {
						fmt.Fprintln(a.stderr, "host removed:", id)
					}
					return err
				})
			})
		},
	}
	c.Flags().BoolVar(&force, "force", false, "the host will not return: its sandboxes are lost")
	return c
}
