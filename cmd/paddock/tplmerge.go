package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/platform/id"
)

func (a *app) mergeCommand() *cobra.Command {
	var r cubeapi.MigrateRequest
	var detach bool
	c := &cobra.Command{
		Use: "merge TEMPLATE", Short: "Move a template's bytes to the artifact store of the configuration", Args: args(1, 1),
		RunE: func(c *cobra.Command, given []string) error {
			r.RequestID, r.TemplateID = id.New("cli-"), given[0]
			return a.with(func(api *cubeapi.Client) error {
				answer, err := api.Migrate(c.Context(), r)
				switch {
				case err != nil:
					return err
				case answer.Plan != nil:
					return a.show(answer.Plan, func(w io.Writer) { printMigratePlan(w, answer.Plan) })
				case !detach:
					return a.watch(c.Context(), api, answer.Job.JobID)
				}
				return a.show(answer.Job, func(w io.Writer) { printJob(w, answer.Job) })
			})
		},
	}
	f := c.Flags()
	f.BoolVar(&r.DryRun, "dry-run", false, "show what would be moved, and move nothing")
	f.BoolVar(&detach, "detach", false, "return as soon as the job is accepted")
	return c
}

func printMigratePlan(w io.Writer, p *cubeapi.MigratePlan) {
	fmt.Fprintf(w, "template_id:\t%s\nartifact_id:\t%s\nfrom:\t%s\nto:\t%s\nbytes_to_move:\t%d\n", p.TemplateID, p.ArtifactID, p.From, p.To, p.BytesToMove)
	if len(p.Templates) > 0 {
		fmt.Fprintf(w, "same bytes:\t%s\n", strings.Join(p.Templates, ", "))
	}
}
