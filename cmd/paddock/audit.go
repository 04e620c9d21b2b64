package main

import (
	"fmt"
	"io"
	"slices"

	"github.com/spf13/cobra"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/fault"
)

func (a *app) auditCommand() *cobra.Command {
	var subject string
	var limit int
	c := &cobra.Command{Use: "audit", Short: "Show who changed what, newest first", Args: args(0, 0), RunE: func(c *cobra.Command, _ []string) error {
		if limit < 1 {
			return fault.New(fault.InvalidInput, "--limit %d: must be at least 1", limit)
		}
		return a.with(func(api *cubeapi.Client) error {
			all := []cubeapi.AuditEntry{}
			for cursor := ""; len(all) < limit; {
				page, next, err := api.Audit(c.Context(), subject, min(limit-len(all), 1000), cursor)
				if err != nil {
					return err
				}
				all = append(all, page...)
				if cursor = next; next == "" {
					break
				}
			}
			return a.show(all, func(w io.Writer) {
				fmt.Fprintln(w, "AT\tACTOR\tACTION\tSUBJECT\tDETAIL")
				for _, e := range all {
					fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", e.At, e.Actor, e.Action, e.Subject, words(pairs(e.Detail)))
				}
			})
		})
	}}
	c.Flags().StringVar(&subject, "subject", "", "only of this template, artifact or host, by its id")
	c.Flags().IntVar(&limit, "limit", 100, "entries to show")
	return c
}

func pairs(detail map[string]string) []string {
	var list []string
	for k, v := range detail {
		list = append(list, k+"="+v)
	}
	slices.Sort(list)
	return list
}
