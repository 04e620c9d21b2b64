package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/sandbox"
)

func (a *app) sandboxCommand() *cobra.Command {
	c := &cobra.Command{Use: "sandbox", Aliases: []string{"sbx"}, Short: "Make and use sandboxes"}
	var q cubeapi.SandboxQuery
	list := &cobra.Command{Use: "list", Aliases: []string{"ls"}, Short: "List sandboxes", Args: args(0, 0), RunE: func(c *cobra.Command, _ []string) error {
		return a.with(func(api *cubeapi.Client) error {
			list, err := a.listSandboxes(c.Context(), api, q)
			if err != nil {
				return err
			}
			return a.show(list, func(w io.Writer) {
				fmt.Fprintln(w, "SANDBOX_ID\tSTATUS\tTEMPLATE_ID\tHOST\tIP\tCREATED_AT\tREASON")
				for _, s := range list {
					fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", s.SandboxID, s.Status, s.TemplateID, s.HostID, s.SandboxIP, s.CreatedAt, s.Reason)
				}
			})
		})
	}}
	list.Flags().BoolVar(&q.All, "all", false, "also those that ended within a day")
	list.Flags().StringSliceVar(&q.States, "state", nil, "in one of these states, such as RUNNING or PAUSED")
	list.Flags().StringVar(&q.HostID, "node", "", "on this host")
	list.Flags().StringVar(&q.TemplateID, "template", "", "of this template, by id")
	list.Flags().StringToStringVar(&q.Labels, "label", nil, "with label NAME=VALUE")
	info := &cobra.Command{Use: "info SANDBOX", Short: "Show one sandbox", Args: args(1, 1), RunE: func(c *cobra.Command, given []string) error {
		return a.with(func(api *cubeapi.Client) error {
			s, err := api.Sandbox(c.Context(), given[0])
			if err != nil {
				return err
			}
			return a.show(s, func(w io.Writer) { printSandbox(w, *s) })
		})
	}}
	remove := &cobra.Command{Use: "delete SANDBOX...", Aliases: []string{"kill", "rm"}, Short: "End sandboxes", Args: args(1, -1), RunE: func(c *cobra.Command, given []string) error {
		return a.with(func(api *cubeapi.Client) error {
			return each(given, func(id string) error {
				err := api.DeleteSandbox(c.Context(), id)
				if err == nil {
					fmt.Fprintln(a.stderr, "sandbox deleted:", id)
				}
				return err
			})
		})
	}}
	c.AddCommand(a.createCommand(), list, info, a.execCommand(), a.copyCommand(), remove)
	c.AddCommand(a.lifeCommands()...)
	return c
}

// listSandboxes returns all pages. Hosts that did not answer are named: what is
// shown of theirs is what was last known.
func (a *app) listSandboxes(ctx context.Context, api *cubeapi.Client, q cubeapi.SandboxQuery) ([]cubeapi.Sandbox, error) {
	all := []cubeapi.Sandbox{}
	for {
		page, err := api.SandboxesBy(ctx, q)
		if err != nil {
			return nil, err
		}
		if all = append(all, page.Data...); page.Next == "" {
			if len(page.Partial) > 0 {
				fmt.Fprintln(a.stderr, "hosts that do not answer:", strings.Join(page.Partial, ", "))
			}
			return all, nil
		}
		q.Cursor = page.Next
	}
}

// each does all, also after a failure, and joins what failed.
func each(list []string, do func(string) error) error {
	var errs []error
	for _, one := range list {
		errs = append(errs, do(one))
	}
	return errors.Join(errs...)
}

func printSandbox(w io.Writer, s cubeapi.Sandbox) {
	fmt.Fprintf(w, "sandbox_id:\t%s\nstatus:\t%s\ntemplate_id:\t%s\nhost:\t%s\nip:\t%s\ncpu:\t%dm\nmemory:\t%d MiB\ndisk:\t%d MiB\ncreated_at:\t%s\n", s.SandboxID, s.Status, s.TemplateID, s.HostID, s.SandboxIP, s.MilliCPU, s.MemBytes>>20, s.DiskBytes>>20, s.CreatedAt)
	fmt.Fprintf(w, "driver:\t%s\nends_at:\t%s\n", s.Driver, endOf(s))
	if s.Timeout > 0 {
		fmt.Fprintf(w, "timeout:\t%s, then %s\n", time.Duration(s.Timeout)*time.Second, s.OnTimeout)
	}
	if s.KeptBytes > 0 {
		fmt.Fprintf(w, "kept:\t%d MiB, memory: %t\n", s.KeptBytes>>20, s.Memory)
	}
	if s.Reason != "" {
		fmt.Fprintf(w, "reason:\t%s\n", s.Reason)
	}
}

func (a *app) createCommand() *cobra.Command {
	var r cubeapi.SandboxCreateRequest
	var res cubeapi.Quantity
	var envs, labels map[string]string
	var network networkFlags
	var several batchFlags
	var timeout time.Duration
	c := &cobra.Command{Use: "create TEMPLATE|SNAPSHOT", Short: "Make a sandbox of a template, by id or alias, or of a snapshot", Args: args(1, 1), RunE: func(c *cobra.Command, given []string) error {
		r.TemplateID, r.Envs, r.Labels, r.Network = given[0], envs, labels, network.config(c)
		if strings.HasPrefix(given[0], sandbox.SnapshotPrefix) {
			r.TemplateID, r.SnapshotID = "", given[0]
		}
		if timeout > 0 {
			n := cubeapi.Seconds(timeout)
			r.Timeout = &n
		}
		if res != (cubeapi.Quantity{}) {
			r.Containers = []cubeapi.Container{{Resources: &res}}
		}
		if c.Flags().Changed("count") {
			return a.createSeveral(c, r, several)
		}
		return a.with(func(api *cubeapi.Client) error {
			answer, err := api.CreateSandbox(c.Context(), r)
			if err != nil {
				return err
			}
			return a.show(answer, func(w io.Writer) {
				fmt.Fprintln(w, answer.SandboxID)
				fmt.Fprintf(a.stderr, "created on %s in %s ms\n", answer.HostID, answer.ExtInfo["cube-e2e"])
			})
		})
	}}
	f := c.Flags()
	f.StringToStringVar(&envs, "env", nil, "environment variable NAME=VALUE")
	f.StringToStringVar(&labels, "label", nil, "label NAME=VALUE")
	f.StringVar(&res.CPU, "cpu", "", "CPU, such as 500m, unless the template says")
	f.StringVar(&res.Mem, "memory", "", "memory, such as 1Gi, unless the template says")
	f.StringSliceVar(&r.Scope, "node", nil, "host that may be chosen")
	f.IntVar(&several.count, "count", 1, "how many, in one step")
	f.BoolVar(&several.all, "all-or-nothing", false, "with --count: none, unless all of them come to be")
	f.DurationVar(&timeout, "timeout", 0, "how long nobody may use it, such as 15m; unset: for ever")
	f.StringVar(&r.OnTimeout, "on-timeout", "", "what becomes of it then: kill (the default) or pause")
	f.BoolVar(&r.AutoResume, "auto-resume", false, "traffic wakes it when it is paused")
	f.StringVar(&r.Driver, "driver", "", "the runtime: runsc, oci or microvm, unless the template or the host says")
	f.BoolVar(&r.Secure, "secure", false, "its guest asks for a token, which -o json shows")
	f.StringVar(&r.RequestID, "request-id", "", "with the same id again, the same sandboxes are answered")
	network.add(c)
	return c
}

// batchFlags say how many sandboxes are made at once.
type batchFlags struct {
	count int
	all   bool
}

// createSeveral makes a batch.
func (a *app) createSeveral(c *cobra.Command, r cubeapi.SandboxCreateRequest, several batchFlags) error {
	q := cubeapi.SandboxBatchRequest{SandboxCreateRequest: r, Count: several.count, Mode: cubeapi.BatchBestEffort}
	if several.all {
		q.Mode = cubeapi.BatchAll
	}
	return a.with(func(api *cubeapi.Client) error {
		answer, err := api.CreateSandboxes(c.Context(), q)
		if err != nil {
			return err
		}
		return a.showBatch(answer)
	})
}

// showBatch prints the ids of what was made, and tells of what was not.
func (a *app) showBatch(answer cubeapi.SandboxBatchAnswer) error {
	err := a.show(answer, func(w io.Writer) {
		for _, s := range answer.Data {
			if s.Error == nil {
				fmt.Fprintln(w, s.SandboxID)
			}
		}
	})
	var first *fault.Detail
	for _, s := range answer.Data {
		if s.Error != nil && first == nil {
			first = s.Error
		}
	}
	if err != nil || first == nil {
		return err
	}
	return fmt.Errorf("%d of %d were not made: %w", answer.Failed, len(answer.Data), fault.Parse(*first, 0))
}

// copyCommand moves a file or a directory in or out, by which side names a
// sandbox.
func (a *app) copyCommand() *cobra.Command {
	return &cobra.Command{
		Use: "cp SOURCE TARGET", Short: "Copy a file or a directory: one side is SANDBOX:/path, the other a path, or - for the standard streams", Args: args(2, 2),
		Long: "Copy a file or a directory: one side is SANDBOX:/path, the other a path, or - for the standard streams.\n" +
			"A directory's contents are put into the target, which is made if it is not there; what else is in it stays.",
		RunE: func(c *cobra.Command, given []string) error {
			into, target, in := remotePath(given[1])
			from, source, out := remotePath(given[0])
			if in == out {
				return fault.New(fault.InvalidInput, "of %q and %q exactly one must be SANDBOX:/path", given[0], given[1])
			}
			return a.with(func(api *cubeapi.Client) error {
				if in {
					if info, err := os.Stat(given[0]); given[0] != "-" && err == nil && info.IsDir() {
						return a.uploadTree(c.Context(), api, given[0], into, target)
					}
					return a.upload(c.Context(), api, given[0], into, target)
				}
				if given[1] == "-" {
					return api.ReadFile(c.Context(), from, source, a.stdout)
				}
				if info, err := os.Stat(given[1]); err == nil && info.IsDir() {
					err := downloadTree(c.Context(), api, from, source, given[1])
					if errors.Is(err, fault.InvalidInput) { // the source is a file
						err = fault.New(fault.InvalidInput, "target %q is a directory, and %s is none: name a file in it", given[1], given[0])
					}
					return err
				}
				err := download(given[1], func(w io.Writer) error { return api.ReadFile(c.Context(), from, source, w) })
				if errors.Is(err, fault.FileIsDirectory) {
					return downloadTree(c.Context(), api, from, source, given[1])
				}
				return err
			})
		},
	}
}

func remotePath(s string) (id, path string, ok bool) {
	id, path, ok = strings.Cut(s, ":")
	return id, path, ok && strings.HasPrefix(path, "/") && !strings.Contains(id, "/")
}
