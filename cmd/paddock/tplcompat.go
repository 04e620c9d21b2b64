package main

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/paddock-dev/paddock/internal/cubeapi"
)

func (a *app) compatCommand() *cobra.Command {
	var adopt string
	c := &cobra.Command{
		Use: "compat", Short: "Show which templates have an older guest inside than builds put in today", Args: args(0, 0),
		Long: "Show which templates have an older guest inside than builds put in today: OK, STALE, UNKNOWN (nobody noted it) or\n" +
			"MISSING (a host lacks the template). With --adopt, today's guest is taken for that of a template whose own nobody noted.",
		RunE: func(c *cobra.Command, _ []string) error {
			return a.with(func(api *cubeapi.Client) error {
				if adopt != "" {
					n, err := api.CompatDo(c.Context(), cubeapi.CompatRequest{Action: cubeapi.CompatAdopt, TemplateID: adopt})
					if err == nil {
						fmt.Fprintf(a.stderr, "replicas changed: %d\n", n)
					}
					return err
				}
				report, err := api.Compat(c.Context())
				if err != nil {
					return err
				}
				return a.show(report, func(w io.Writer) { printCompat(w, report) })
			})
		},
	}
	c.Flags().StringVar(&adopt, "adopt", "", "id or alias of a template to take today's guest for")
	return c
}

func printCompat(w io.Writer, report cubeapi.CompatReport) {
	fmt.Fprintln(w, "TEMPLATE_ID\tOVERALL\tNODE_ID\tSTATUS\tGUEST\tGUEST_OF_TODAY\tAGENT")
	short := func(s string) string { return dash(s[:min(len(s), 12)]) }
	for _, t := range report.Templates {
		for _, n := range t.Nodes {
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", t.TemplateID, t.Overall, n.NodeID, n.CompatStatus, short(n.BoundGuestVersion), short(n.CurrentGuestVersion), dash(n.CurrentAgentVersion))
		}
	}
	s := report.Summary
	fmt.Fprintf(w, "\nstale:\t%d templates, %d replicas on %d hosts; missing: %d; unknown: %d\n", s.StaleTemplates, s.StaleReplicas, s.AffectedNodes, s.MissingReplicas, s.UnknownReplicas)
}
