package main

import (
	"encoding/json"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/fault"
)

func (a *app) templateListCommand() *cobra.Command {
	var q cubeapi.TemplateQuery
	c := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List templates, newest first; -o wide shows more", Args: args(0, 0), Annotations: map[string]string{wide: "true"},
		RunE: func(c *cobra.Command, _ []string) error {
			return a.with(func(api *cubeapi.Client) error {
				q.Limit = 1000 // of a page; all pages are shown
				all, err := api.TemplatesBy(c.Context(), q)
				if err != nil {
					return err
				}
				if all == nil {
					all = []cubeapi.Template{} // a list in JSON too
				}
				return a.show(all, func(w io.Writer) { a.printTemplates(w, all) })
			})
		},
	}
	f := c.Flags()
	f.StringVar(&q.Status, "status", "", "only those: READY, PARTIALLY_READY, CREATING, FAILED, DELETING; several with commas")
	f.StringVar(&q.InstanceType, "instance-type", "", "only those of this kind of host")
	f.StringVar(&q.AliasPrefix, "alias", "", "only those whose alias begins so")
	f.StringVar(&q.Image, "image", "", "only those whose image's name or digest has this in it")
	return c
}

func (a *app) printTemplates(w io.Writer, all []cubeapi.Template) {
	if !a.wide {
		fmt.Fprintln(w, "TEMPLATE_ID\tALIAS\tSTATUS\tCREATED_AT\tIMAGE_INFO")
		for _, t := range all {
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", t.TemplateID, t.Alias, t.Status, t.CreatedAt, t.ImageInfo)
		}
		return
	}
	fmt.Fprintln(w, "TEMPLATE_ID\tALIAS\tINSTANCE_TYPE\tVERSION\tSTATUS\tCREATED_AT\tARTIFACT_ID\tBACKEND\tJOB_ID\tIMAGE_INFO\tLAST_ERROR")
	for _, t := range all {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", t.TemplateID, t.Alias, t.InstanceType, t.Version, t.Status, t.CreatedAt, t.ArtifactID, t.Backend, t.JobID, t.ImageInfo, t.LastError)
	}
}

// oneOf returns what a command was given by flag or by argument; the flag wins.
func oneOf(c *cobra.Command, what, flag string, given []string) (string, error) {
	if flag != "" {
		return flag, nil
	}
	if len(given) > 0 && given[0] != "" {
		return given[0], nil
	}
	return "", fault.New(fault.InvalidInput, "%s: %s is missing; usage: %s", c.CommandPath(), what, c.UseLine())
}

func (a *app) templateInfoCommand() *cobra.Command {
	var request bool
	var id string
	c := &cobra.Command{Use: "info [TEMPLATE]", Short: "Show one template and where it is ready", Args: args(0, 1), RunE: func(c *cobra.Command, given []string) error {
		name, err := oneOf(c, "a template", id, given)
		if err != nil {
			return err
		}
		return a.with(func(api *cubeapi.Client) error {
			ask := api.Template
			if request {
				ask = api.TemplateWithRequest
			}
			t, err := ask(c.Context(), name)
			if err != nil {
				return err
			}
			return a.show(t, func(w io.Writer) {
				printTemplate(w, t)
				if request {
					printJSON(w, t.CreateRequest)
				}
			})
		})
	}}
	c.Flags().BoolVar(&request, "include-request", false, "show the request it was made with")
	c.Flags().StringVar(&id, "template-id", "", "id or alias, as the argument")
	return c
}

func printJSON(w io.Writer, v any) {
	fmt.Fprintln(w, "\nrequest:")
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	_ = e.Encode(v) // it came as JSON
}

func (a *app) templateDeleteCommand() *cobra.Command {
	var r cubeapi.TemplateDeleteRequest
	c := &cobra.Command{
		Use: "delete TEMPLATE...", Short: "Delete templates", Args: args(1, -1),
		Long: "Delete templates, by id or alias. All are tried. A template is out of use at once; hosts that are away are cleaned\n" +
			"when they are back, or when `paddock host remove` says that they will not be. One that sandboxes run from is refused.",
		RunE: func(c *cobra.Command, given []string) error {
			return a.with(func(api *cubeapi.Client) error {
				var plans []cubeapi.TemplateDeleteAnswer
				err := each(given, func(name string) error {
					one := r
					one.TemplateID = name
					answer, err := api.Delete(c.Context(), one)
					if err != nil {
						return err
					}
					plans = append(plans, answer)
					a.tellDeleted(name, answer)
					return nil
				})
				if r.DryRun && len(plans) > 0 {
					if failed := a.show(plans, func(w io.Writer) { printPlans(w, plans) }); failed != nil {
						return failed
					}
				}
				return err
			})
		},
	}
	f := c.Flags()
	f.BoolVar(&r.Force, "force", false, "end a job that works on the template; sandboxes that run from it are still not touched")
	f.BoolVar(&r.DryRun, "dry-run", false, "only print what would be done")
	f.BoolVar(&r.Sync, "sync", false, "wait up to a minute for the hosts")
	return c
}

func (a *app) tellDeleted(name string, answer cubeapi.TemplateDeleteAnswer) {
	switch answer.Outcome {
	case cubeapi.DeletePlanned:
	case cubeapi.DeletePending:
		fmt.Fprintf(a.stderr, "template %s is out of use; what is left to be cleaned:\n", name)
		for _, h := range answer.PendingHosts {
			fmt.Fprintf(a.stderr, "  %s %s\n", h.NodeID, h.Reason)
		}
	default:
		fmt.Fprintln(a.stderr, "template deleted:", name)
	}
}

func printPlans(w io.Writer, plans []cubeapi.TemplateDeleteAnswer) {
	fmt.Fprintln(w, "TEMPLATE_ID\tARTIFACT_ID\tFREED_BYTES\tHOSTS\tJOBS\tUSERS\tBLOCKED_BY")
	for _, p := range plans {
		fmt.Fprintf(w, "%s\t%s\t%d\t%s\t%s\t%s\t%s\n", p.TemplateID, dash(p.ArtifactID), p.FreedBytes, words(p.Hosts), words(p.Jobs), words(p.Users), dash(p.BlockedBy))
	}
}
