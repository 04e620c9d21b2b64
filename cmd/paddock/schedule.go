package main

import (
	"fmt"
	"io"
	"maps"
	"math"
	"strings"

	"github.com/spf13/cobra"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/host"
)

func (a *app) scheduleCommand() *cobra.Command {
	var w wishFlags
	var q cubeapi.ScheduleQuery
	var dryRun bool
	c := &cobra.Command{
		Use: "schedule --dry-run [TEMPLATE]", Short: "Say where a sandbox would go, and why nowhere else", Args: args(0, 1),
		Long: "With --dry-run, say where a sandbox of a template would go now: how many hosts each plugin drops, how the others score, and what the\n" +
			"nearest host lacks if none fits. Nothing is made, charged or kept. The exit status is that of a create: 0 if a host fits.",
		RunE: func(c *cobra.Command, given []string) error {
			if !dryRun {
				return &fault.Error{Code: fault.InvalidInput, Message: "--dry-run is missing", Remedy: "`paddock schedule --dry-run TEMPLATE` makes nothing; `paddock sandbox create TEMPLATE` makes a sandbox"}
			}
			request, err := a.wish(given, w)
			if err != nil {
				return err
			}
			return a.with(func(api *cubeapi.Client) error {
				answer, err := api.Schedule(c.Context(), request, q)
				if err != nil {
					return err
				}
				a.warn(answer.Warnings)
				if err := a.show(answer, func(w io.Writer) { printSchedule(w, answer) }); err != nil {
					return err
				}
				fmt.Fprintf(a.stderr, "decided in %d us, %d us in all; nothing was made\n", answer.Select, answer.All)
				if !answer.Fits {
					return exitStatus(fault.Of(fault.Parse(fault.Detail{Code: answer.Decision.Code}, 0)).Class.Exit)
				}
				return nil
			})
		},
	}
	f := c.Flags()
	f.BoolVar(&dryRun, "dry-run", false, "only say it")
	w.add(c)
	f.IntVar(&q.Limit, "limit", 10, "hosts that are shown of those that fit, and of those that do not")
	f.StringSliceVar(&q.Hosts, "host", nil, "show this host, wherever it stands")
	f.StringVar(&q.Seed, "seed", "", "breaks ties; the same seed breaks them alike (default: by chance)")
	c.AddCommand(a.scheduleShowCommand(), a.scheduleTraceCommand(), a.scheduleFleetCommand(), a.scheduleConfigCommand())
	return c
}

// wishFlags say what a sandbox would be, as `sandbox create` does.
type wishFlags struct {
	file, kind          string
	res                 cubeapi.Quantity
	labels, annotations map[string]string
	scope               []string
}

func (w *wishFlags) add(c *cobra.Command) {
	f := c.Flags()
	f.StringVarP(&w.file, "file", "f", "", "create request in YAML or JSON, - for standard input; the other flags are laid over it")
	f.StringVar(&w.res.CPU, "cpu", "", "CPU, such as 500m, unless the template says")
	f.StringVar(&w.res.Mem, "memory", "", "memory, such as 1Gi, unless the template says")
	f.StringToStringVar(&w.labels, "label", nil, "label NAME=VALUE")
	f.StringToStringVar(&w.annotations, "annotation", nil, "annotation NAME=VALUE")
	f.StringVar(&w.kind, "instance-type", "", "of the host, unless it is the template's")
	f.StringSliceVar(&w.scope, "node", nil, "host or zone that may be chosen")
}

// wish is the request that the command line makes up.
func (a *app) wish(given []string, w wishFlags) (map[string]any, error) {
	request := map[string]any{}
	if w.file != "" {
		var err error
		if request, err = a.requestFile(w.file); err != nil {
			return nil, err
		}
	} else if len(given) == 0 {
		return nil, fault.New(fault.InvalidInput, "name a template, or a request with --file")
	}
	if len(given) > 0 {
		request["template_id"] = given[0]
	}
	if w.kind != "" {
		request["instance_type"] = w.kind
	}
	if len(w.scope) > 0 {
		request["distribution_scope"] = w.scope
	}
	for field, flag := range map[string]map[string]string{"labels": w.labels, "annotations": w.annotations} {
		if len(flag) == 0 {
			continue
		}
		all := map[string]any{}
		if have, ok := request[field].(map[string]any); ok {
			maps.Copy(all, have)
		}
		for k, v := range flag {
			all[k] = v
		}
		request[field] = all
	}
	if w.res != (cubeapi.Quantity{}) {
		if _, ok := request["containers"]; ok {
			return nil, fault.New(fault.InvalidInput, "--cpu and --memory: the request of --file has containers, which say it")
		}
		request["containers"] = []cubeapi.Container{{Resources: &w.res}}
	}
	return request, nil
}

// printSchedule prints a dry run for people.
func printSchedule(w io.Writer, a cubeapi.ScheduleAnswer) {
	d := a.Decision
	if a.Fits {
		fmt.Fprintf(w, "fits:\tyes, on %s (%s)\n", d.HostID, a.HostIP)
	} else {
		fmt.Fprintf(w, "fits:\tno: %s\n", d.Code)
	}
	printDecision(w, d)
	if len(a.BreakersOpen) > 0 {
		fmt.Fprintf(w, "kept away:\t%s, by their breakers\n", strings.Join(a.BreakersOpen, ", "))
	}
	if len(a.Hosts) > 0 {
		fmt.Fprint(w, "\nSCORE\t\tHOST\n")
		for _, h := range a.Hosts {
			note := map[string]string{d.HostID: "chosen", d.RunnerUp: "runner-up"}[h.HostID]
			fmt.Fprintf(w, "%.2f\t%s\t%s\t%s\n", h.Score, bar(h.Score), h.HostID, note)
		}
		more(w, d.Fit-len(a.Hosts))
	}
	if len(a.Parts) > 0 {
		fmt.Fprintf(w, "\nSCORE OF\tWEIGHT\t%s\t%s\n", d.HostID, d.RunnerUp)
		for i, p := range a.Parts {
			second := ""
			if i < len(a.RunnerUpParts) {
				second = fmt.Sprintf("%.2f", a.RunnerUpParts[i].Score)
			}
			fmt.Fprintf(w, "%s\t%.0f%%\t%.2f\t%s\n", p.Plugin, 100*p.Weight, p.Score, second)
		}
	}
	if len(a.Out) > 0 {
		fmt.Fprint(w, "\nOUT\tBY\tBECAUSE\n")
		for _, o := range a.Out {
			fmt.Fprintf(w, "%s\t%s\t%s\n", o.HostID, o.Plugin, o.Reason)
		}
		more(w, d.Considered-d.Fit-len(a.Out))
	}
	if d.Nearest != nil {
		fmt.Fprintf(w, "\nnearest:\tit %s\n", d.Nearest.Text)
	}
}

func more(w io.Writer, n int) {
	if n > 0 {
		fmt.Fprintf(w, "and %d more\n", n)
	}
}

// printDecision prints what is the same of a decision that was made and of one
// that would be: what was asked for, and how few hosts were left by each plugin.
func printDecision(w io.Writer, d cubeapi.Decision) {
	r := d.Request
	fmt.Fprintf(w, "asked for:\t%s, of template %s\n", amounts(r.Resources), dash(r.TemplateID))
	where := []string{}
	if r.InstanceType != "" {
		where = append(where, "hosts that serve "+r.InstanceType)
	}
	if r.Direct != "" {
		where = append(where, "host "+r.Direct+" and no other")
	}
	if len(r.Scope) > 0 {
		where = append(where, "in "+strings.Join(r.Scope, ", "))
	}
	if len(r.Excluded) > 0 {
		where = append(where, "not "+strings.Join(r.Excluded, ", ")+" again")
	}
	if len(where) > 0 {
		fmt.Fprintf(w, "where:\t%s\n", strings.Join(where, "; "))
	}
	printAffinity(w, r.Affinity)
	how := "profile " + d.Profile + ", seed " + r.Seed
	if len(d.Relaxed) > 0 {
		how += ", without " + strings.Join(d.Relaxed, ", ") + " so that a host was fit"
	}
	if d.Blind {
		how += ", on last known values: too many hosts fell silent at once"
	}
	fmt.Fprintf(w, "how:\t%s\n", how)
	if len(d.Clipped) > 0 {
		fmt.Fprintf(w, "not kept:\t%s, which was too long\n", strings.Join(d.Clipped, ", "))
	}
	fmt.Fprintf(w, "\n\tHOSTS\tLEFT\nconsidered\t\t%d\n", d.Considered)
	left := d.Considered
	for _, o := range d.Dropped {
		left -= o.Hosts
		fmt.Fprintf(w, "%s\t-%d\t%d\n", o.Plugin, o.Hosts, left)
	}
	fmt.Fprintf(w, "fit\t\t%d\n", d.Fit)
}

func printAffinity(w io.Writer, a *cubeapi.AffinityTerms) {
	if a == nil {
		return
	}
	term := func(list []cubeapi.Requirement) string {
		var all []string
		for _, r := range list {
			all = append(all, strings.TrimSpace(r.Key+" "+r.Operator+" "+strings.Join(r.Values, "|")))
		}
		return strings.Join(all, " and ")
	}
	for i, t := range a.Terms {
		fmt.Fprintf(w, "%s\t%s\n", map[bool]string{true: "needs:", false: "or:"}[i == 0], term(t))
	}
	for _, p := range a.Preferred {
		fmt.Fprintf(w, "prefers:\t%s (weight %d)\n", term(p.Term), p.Weight)
	}
	for _, s := range a.Spread {
		fmt.Fprintf(w, "spreads:\tover %s, skew at most %d\n", s.Key, s.MaxSkew)
	}
}

func amounts(r host.Resources) string {
	return fmt.Sprintf("%dm CPU, %d MiB memory, %d MiB disk", r.MilliCPU, r.MemBytes>>20, r.DiskBytes>>20)
}

// bar draws a score of 0 to 100.
func bar(score float64) string {
	n := int(math.Round(min(100, max(0, score)) / 5))
	return strings.Repeat("#", n) + strings.Repeat(".", 20-n)
}

func (a *app) scheduleShowCommand() *cobra.Command {
	return &cobra.Command{
		Use: "show SANDBOX", Short: "Say why a sandbox is where it is, or nowhere", Args: args(1, 1),
		Long: "Print each decision that was taken for a sandbox, the first attempt first. They are kept as long as the sandbox is listed.",
		RunE: func(c *cobra.Command, given []string) error {
			return a.with(func(api *cubeapi.Client) error {
				list, err := api.Decisions(c.Context(), given[0])
				if err != nil {
					return err
				}
				return a.show(list, func(w io.Writer) {
					for i, d := range list {
						if i > 0 {
							fmt.Fprintln(w)
						}
						printKept(w, d)
					}
				})
			})
		},
	}
}

func printKept(w io.Writer, d cubeapi.Decision) {
	fmt.Fprintf(w, "attempt:\t%d, at %s\n", d.Attempt, d.At)
	if d.After != "" {
		fmt.Fprintf(w, "after:\t%s\n", d.After)
	}
	if d.Kind == cubeapi.DecisionPlaced {
		fmt.Fprintf(w, "placed on:\t%s, score %.2f\n", d.HostID, d.Score)
		if d.RunnerUp != "" {
			fmt.Fprintf(w, "runner-up:\t%s, score %.2f\n", d.RunnerUp, d.RunnerUpScore)
		}
	} else {
		fmt.Fprintf(w, "refused:\t%s\n", d.Reason)
	}
	printDecision(w, d)
}

func (a *app) scheduleTraceCommand() *cobra.Command {
	var since string
	var limit int
	c := &cobra.Command{
		Use: "trace", Short: "Print the creates that are remembered, for `paddock sim --trace`", Args: args(0, 0),
		Long: "Print a line of JSON for each create that is remembered, in the order in which they came, whatever --output says.",
		RunE: func(c *cobra.Command, _ []string) error {
			return a.with(func(api *cubeapi.Client) error { return api.ScheduleTrace(c.Context(), since, limit, a.stdout) })
		},
	}
	c.Flags().StringVar(&since, "since", "", "only from this time on, such as 2026-01-02T15:04:05Z")
	c.Flags().IntVar(&limit, "limit", 0, "lines at most (default: 100000)")
	return c
}

func (a *app) scheduleFleetCommand() *cobra.Command {
	return &cobra.Command{
		Use: "fleet", Short: "Print the hosts, for `paddock sim --fleet`", Args: args(0, 0),
		Long: "Print a line of JSON for each host, without its sandboxes, whatever --output says.",
		RunE: func(c *cobra.Command, _ []string) error {
			return a.with(func(api *cubeapi.Client) error { return api.ScheduleFleet(c.Context(), a.stdout) })
		},
	}
}
