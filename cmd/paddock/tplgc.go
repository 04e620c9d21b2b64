package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/paddock-dev/paddock/internal/cubeapi"
)

func (a *app) gcCommand() *cobra.Command {
	var r cubeapi.GCRequest
	c := &cobra.Command{
		Use: "gc", Short: "Remove artifacts that nothing has needed for long", Args: args(0, 0),
		Long: "Remove from hosts and store the artifacts that no template and no job has needed for master.artifact_gc_after.\n" +
			"The master does so by itself; this does it now, and with --dry-run says what would go.",
		RunE: func(c *cobra.Command, _ []string) error {
			return a.with(func(api *cubeapi.Client) error {
				answer, err := api.GC(c.Context(), r)
				if err != nil {
					return err
				}
				return a.show(answer, func(w io.Writer) {
					fmt.Fprintln(w, "ARTIFACT_ID\tSTATUS\tBYTES\tUNUSED_SINCE\tHOSTS")
					for _, one := range answer.Artifacts {
						fmt.Fprintf(w, "%s\t%s\t%d\t%s\t%s\n", one.ArtifactID, one.Status, one.SizeBytes, one.UnusedSince, words(one.Hosts))
					}
					fmt.Fprintf(w, "\ntotal:\t%d artifacts, %d bytes, %d rows\n", len(answer.Artifacts), answer.TotalBytes, answer.OrphanRows)
				})
			})
		},
	}
	c.Flags().BoolVar(&r.DryRun, "dry-run", false, "only print what would be removed")
	return c
}

func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

func words(list []string) string { return dash(strings.Join(list, ",")) }
