package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/host"
	"github.com/paddock-dev/paddock/internal/sandbox"
)

func (a *app) hostDrainCommand() *cobra.Command {
	var timeout time.Duration
	var force, wait bool
	c := &cobra.Command{
		Use: "drain HOST...", Short: "Have hosts become empty, for maintenance",
		Long: "Have hosts become empty: nothing new comes to them, and their sandboxes are left to end by themselves. With --force,\n" +
			"those that are left after --timeout are ended by the master, also when this command has ended.\n" +
			"`paddock host info` shows how far it is; `paddock host uncordon` calls it off.",
		Args: args(1, -1), RunE: func(c *cobra.Command, given []string) error {
			if timeout < 0 || timeout%time.Second != 0 {
				return fault.New(fault.InvalidInput, "--timeout %s: must be whole seconds, such as 10m", timeout)
			}
			return a.with(func(api *cubeapi.Client) error {
				err := each(given, func(id string) error {
					d, err := api.DrainHost(c.Context(), id, cubeapi.HostDrainRequest{DeadlineSeconds: int64(timeout / time.Second), Force: force})
					if err == nil {
						fmt.Fprintf(a.stderr, "host %s: %s\n", id, drainWords(d))
					}
					return err
				})
				if err != nil || !wait {
					return err
				}
				return each(given, func(id string) error { return a.awaitDrain(c.Context(), api, id) })
			})
		},
	}
	c.Flags().DurationVar(&timeout, "timeout", 0, "how long sandboxes may take to end by themselves; 0: any time, with --force none")
	c.Flags().BoolVar(&force, "force", false, "end what is left after --timeout")
	c.Flags().BoolVar(&wait, "wait", false, "return when the hosts are empty, or when it is sure that they will not be")
	return c
}

// drainLook is the pause between two looks at a drain.
const drainLook = time.Second

func (a *app) awaitDrain(ctx context.Context, api *cubeapi.Client, id string) error {
	for {
		d, err := api.Drain(ctx, id)
		switch {
		case err != nil:
			return err
		case d.State == string(host.Drained):
			fmt.Fprintln(a.stderr, "host drained:", id)
			return nil
		case d.State == string(host.Overdue):
			return fault.New(fault.StateConflict, "host %s has %d sandboxes left, and nobody may end them: give them more time, or use --force", id, d.Left)
		case d.State == string(host.NoDrain):
			return fault.New(fault.StateConflict, "the drain of host %s was called off", id)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(drainLook):
		}
	}
}

func (a *app) hostLabelCommand() *cobra.Command {
	return &cobra.Command{
		Use: "label HOST KEY=VALUE... KEY-...", Short: "Give a host labels, or take them away",
		Long: "Give a host labels, for the selectors of sandboxes, or take them away (KEY-). They stand over those of\ncubelet.labels, and stay when the host registers anew.",
		Args: args(2, -1), RunE: func(c *cobra.Command, given []string) error {
			r := cubeapi.HostLabelsRequest{Set: map[string]string{}}
			for _, word := range given[1:] {
				key, value, set := strings.Cut(word, "=")
				switch {
				case set:
					r.Set[key] = value
				case strings.HasSuffix(word, "-"):
					r.Remove = append(r.Remove, strings.TrimSuffix(word, "-"))
				default:
					return fault.New(fault.InvalidInput, "label %q: write key=value to set it, or key- to take it away", word)
				}
			}
			return a.with(func(api *cubeapi.Client) error {
				h, err := api.LabelHost(c.Context(), given[0], r)
				if err != nil {
					return err
				}
				return a.show(h, func(w io.Writer) { fmt.Fprintf(w, "labels:\t%s\n", labelWords(h.Labels)) })
			})
		},
	}
}

// quotaFlags are what a user says of a quota: a flag that is not given leaves
// its part as it is.
type quotaFlags struct {
	cpu, memory, disk  string
	sandboxes, creates int64
	reset              bool
	expected           int64
}

func (a *app) hostQuotaCommand() *cobra.Command {
	var q quotaFlags
	c := &cobra.Command{
		Use: "quota HOST", Short: "Show or change what a host lets sandboxes have",
		Long: "Show or change what a host lets sandboxes have. What is not said stays as it is; --reset first leaves all to the host.\n" +
			"The host follows it with its next report. Sandboxes that run stay, also when they have more than the quota.",
		Args: args(1, 1), RunE: func(c *cobra.Command, given []string) error {
			return a.with(func(api *cubeapi.Client) error {
				h, err := api.Host(c.Context(), given[0])
				if err != nil {
					return err
				}
				changed := false
				for _, name := range []string{"cpu", "memory", "disk", "sandboxes", "creates", "reset"} {
					changed = changed || c.Flags().Changed(name)
				}
				if changed {
					r, err := q.request(c, h.Quota)
					if err != nil {
						return err
					}
					if h, err = api.SetQuota(c.Context(), given[0], r); err != nil {
						return err
					}
				}
				state := h.Quota
				if state == nil {
					state = &cubeapi.HostQuotaState{}
				}
				return a.show(state, func(w io.Writer) {
					fmt.Fprintf(w, "quota:\t%s\nallocatable:\t%dm CPU, %d MiB memory, %d MiB disk, %d sandboxes\n", quotaWords(state), h.Allocatable.MilliCPU, h.Allocatable.MemBytes>>20, h.Allocatable.DiskBytes>>20, h.Allocatable.Slots)
				})
			})
		},
	}
	f := c.Flags()
	f.StringVar(&q.cpu, "cpu", "", "cores or thousandths, such as 16 or 1500m")
	f.StringVar(&q.memory, "memory", "", "such as 64Gi")
	f.StringVar(&q.disk, "disk", "", "such as 500Gi")
	f.Int64Var(&q.sandboxes, "sandboxes", 0, "sandboxes at once")
	f.Int64Var(&q.creates, "creates", 0, "creates at once; 0: any number")
	f.BoolVar(&q.reset, "reset", false, "leave to the host what no other flag says")
	f.Int64Var(&q.expected, "expected-revision", 0, "refuse if the quota is at another revision (default: the one that is there when the command begins)")
	return c
}

// request lays what was said over the quota as it is.
func (q *quotaFlags) request(c *cobra.Command, now *cubeapi.HostQuotaState) (cubeapi.HostQuotaRequest, error) {
	var was cubeapi.HostQuota
	if now != nil {
		was = now.Desired
	}
	r := cubeapi.HostQuotaRequest{ExpectedRevision: was.Revision}
	if !q.reset {
		r.MilliCPU, r.MemBytes, r.DiskBytes, r.Slots, r.CreateConcurrentNum = was.MilliCPU, was.MemBytes, was.DiskBytes, was.Slots, was.CreateLimit
	}
	said := c.Flags().Changed
	if said("expected-revision") {
		r.ExpectedRevision = q.expected
	}
	if said("sandboxes") {
		r.Slots = &q.sandboxes
	}
	if said("creates") {
		r.CreateConcurrentNum = &q.creates
	}
	for _, f := range []struct {
		name, text string
		to         **int64
		read       func(string) (int64, error)
	}{
		{"cpu", q.cpu, &r.MilliCPU, sandbox.MilliCPU},
		{"memory", q.memory, &r.MemBytes, func(s string) (int64, error) { return sandbox.Bytes(s, "Mi") }},
		{"disk", q.disk, &r.DiskBytes, func(s string) (int64, error) { return sandbox.Bytes(s, "Mi") }},
	} {
		if !said(f.name) {
			continue
		}
		n, err := f.read(f.text)
		if err != nil {
			return r, fmt.Errorf("--%s: %w", f.name, err)
		}
		*f.to = &n
	}
	return r, nil
}
