package main

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/paddock-dev/paddock/internal/cubeapi"
)

func (a *app) jobCancelCommand() *cobra.Command {
	return &cobra.Command{Use: "cancel JOB", Short: "End a job that has not ended; nothing of it is left", Args: args(1, 1), RunE: func(c *cobra.Command, given []string) error {
		return a.with(func(api *cubeapi.Client) error {
			j, err := api.CancelJob(c.Context(), given[0])
			if err != nil {
				return err
			}
			fmt.Fprintln(a.stderr, "job cancelled:", j.JobID)
			if a.output == "table" {
				return nil
			}
			return a.show(j, func(w io.Writer) { printJob(w, j) })
		})
	}}
}
