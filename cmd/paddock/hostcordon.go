package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/paddock-dev/paddock/internal/cubeapi"
)

// cordonCommand is `host cordon`, or `host uncordon`, which ends it.
func (a *app) cordonCommand(cordoned bool) *cobra.Command {
	c := &cobra.Command{
		Use: "cordon HOST...", Short: "Keep new sandboxes and templates away from hosts",
		Long: "Keep new sandboxes and templates away from hosts, for maintenance. What is there stays and can be used.\nIt lasts until `paddock host uncordon`, also when the cubelet starts again.",
		Args: args(1, -1),
	}
	if !cordoned {
		c.Use, c.Short, c.Long = "uncordon HOST...", "Let hosts have new sandboxes and templates again", ""
	}
	c.RunE = func(c *cobra.Command, given []string) error {
		return a.with(func(api *cubeapi.Client) error {
			return each(given, func(id string) error {
				_, err := api.CordonHost(c.Context(), id, cordoned)
				if err == nil {
					fmt.Fprintf(a.stderr, "host %sed: %s\n", c.Name(), id)
				}
				return err
			})
		})
	}
	return c
}
