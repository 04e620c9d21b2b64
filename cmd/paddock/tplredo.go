package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/platform/id"
)

func (a *app) redoCommand() *cobra.Command {
	var r cubeapi.RedoRequest
	var detach, passwordIn bool
	c := &cobra.Command{
		Use: "redo TEMPLATE", Short: "Bring a template to hosts again, and build it again if its bytes are gone", Args: args(1, 1),
		RunE: func(c *cobra.Command, given []string) error {
			r.RequestID, r.TemplateID = id.New("cli-"), given[0]
			if passwordIn {
				b, err := io.ReadAll(io.LimitReader(a.stdin, 1<<16))
				if err != nil {
					return err
				}
				r.RegistryPassword = strings.TrimSpace(string(b))
			}
			return a.with(func(api *cubeapi.Client) error {
				answer, err := api.Redo(c.Context(), r)
				switch {
				case err != nil:
					return err
				case answer.Plan != nil:
					return a.show(answer.Plan, func(w io.Writer) { printRedoPlan(w, answer.Plan) })
				case !detach:
					return a.watch(c.Context(), api, answer.Job.JobID)
				}
				return a.show(answer.Job, func(w io.Writer) { printJob(w, answer.Job) })
			})
		},
	}
	f := c.Flags()
	f.StringSliceVar(&r.DistributionScope, "node", nil, "host to serve (default: all that the template is meant for)")
	f.BoolVar(&r.FailedOnly, "failed-only", false, "only hosts on which the template is not ready")
	f.BoolVar(&r.DryRun, "dry-run", false, "show what would be done, and do nothing")
	f.StringVar(&r.RegistryUsername, "registry-username", "", "user of the registry, if the image must be pulled again")
	f.BoolVar(&passwordIn, "registry-password-stdin", false, "read the password of the registry from standard input")
	f.BoolVar(&detach, "detach", false, "return as soon as the job is accepted")
	return c
}

func printRedoPlan(w io.Writer, p *cubeapi.RedoPlan) {
	does := "reuse the bytes: "
	if p.Rebuild {
		does = "build again: "
	}
	fmt.Fprintf(w, "template_id:\t%s\nstatus:\t%s\nredo_mode:\t%s\naction:\t%s%s\nartifact_id:\t%s\nartifact_bytes:\t%d\nbytes_to_move:\t%d\nsandboxes:\t%d go on\n", p.TemplateID, p.TemplateState, p.RedoMode, does, p.Why, p.ArtifactID, p.ArtifactBytes, p.BytesToMove, p.Sandboxes)
	if len(p.Templates) > 0 {
		fmt.Fprintf(w, "same bytes:\t%s\n", strings.Join(p.Templates, ", "))
	}
	fmt.Fprintln(w, "\nNODE_ID\tNODE_IP\tREPLICA\tHOLDS_BYTES")
	for _, t := range p.Targets {
		replica := t.Replica
		if replica == "" {
			replica = "-"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%t\n", t.NodeID, t.NodeIP, replica, t.Holds)
	}
}
