package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/paddock-dev/paddock/internal/cubeapi"
)

func (a *app) hostRemoveCommand() *cobra.Command {
	return &cobra.Command{
		Use: "remove HOST...", Aliases: []string{"rm"}, Short: "Forget hosts that will not return",
		Long: "Forget hosts that will not return. Their sandboxes are lost, and they hold no template any more.\nA host that still reports is refused: stop its cubelet first. One that returns registers by itself, with nothing.",
		Args: args(1, -1), RunE: func(c *cobra.Command, given []string) error {
			return a.with(func(api *cubeapi.Client) error {
				return each(given, func(id string) error {
					err := api.RemoveHost(c.Context(), id)
					if err == nil {
						fmt.Fprintln(a.stderr, "host removed:", id)
					}
					return err
				})
			})
		},
	}
}
