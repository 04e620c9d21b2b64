package main

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/sandbox"
)

// lifeCommands are what becomes of a sandbox after its create.
func (a *app) lifeCommands() []*cobra.Command {
	return []*cobra.Command{
		a.pauseCommand(), a.resumeCommand(), a.timeoutCommand(), a.refreshCommand(), a.updateCommand(),
		a.snapshotCommand(), a.rollbackCommand(), a.cloneCommand(), a.commitCommand(),
		a.logsCommand(), a.metricsCommand(),
	}
}

// memoryFlag says whether the memory is kept; unset, the server decides.
func memoryFlag(c *cobra.Command) func() *bool {
	var memory bool
	c.Flags().BoolVar(&memory, "memory", true, "keep the memory, too, so that programs go on where they were; unset: where the runtime can")
	return func() *bool {
		if !c.Flags().Changed("memory") {
			return nil
		}
		return &memory
	}
}

func (a *app) pauseCommand() *cobra.Command {
	var memory func() *bool
	c := &cobra.Command{Use: "pause SANDBOX...", Short: "Keep sandboxes on disk and free their CPU and memory", Args: args(1, -1), RunE: func(c *cobra.Command, given []string) error {
		return a.with(func(api *cubeapi.Client) error {
			return each(given, func(id string) error {
				s, err := api.Pause(c.Context(), cubeapi.PauseRequest{SandboxID: id, Memory: memory()})
				if err == nil {
					fmt.Fprintf(a.stderr, "sandbox paused: %s, %d MiB kept\n", id, s.KeptBytes>>20)
				}
				return err
			})
		})
	}}
	memory = memoryFlag(c)
	return c
}

func (a *app) resumeCommand() *cobra.Command {
	var timeout time.Duration
	c := &cobra.Command{Use: "resume SANDBOX...", Short: "Bring paused sandboxes back", Args: args(1, -1), RunE: func(c *cobra.Command, given []string) error {
		return a.with(func(api *cubeapi.Client) error {
			return each(given, func(id string) error {
				r := cubeapi.ResumeRequest{SandboxID: id}
				if c.Flags().Changed("timeout") {
					n := cubeapi.Seconds(timeout)
					r.Timeout = &n
				}
				s, err := api.Resume(c.Context(), r)
				if err == nil {
					fmt.Fprintf(a.stderr, "sandbox resumed: %s on %s\n", id, s.HostID)
				}
				return err
			})
		})
	}}
	c.Flags().DurationVar(&timeout, "timeout", 0, "how long nobody may use it from now on, such as 15m; -1s: for ever; unset: as before")
	return c
}

func (a *app) timeoutCommand() *cobra.Command {
	var onTimeout string
	var autoResume bool
	c := &cobra.Command{
		Use: "timeout SANDBOX DURATION", Short: "Say how long nobody may use a sandbox", Args: args(2, 2),
		Long: "Say how long nobody may use a sandbox, such as 15m: each use begins it anew. never ends it, 0 is over at once.",
		RunE: func(c *cobra.Command, given []string) error {
			r := cubeapi.TimeoutRequest{SandboxID: given[0], OnTimeout: onTimeout, Timeout: -1}
			if given[1] != "never" {
				d, err := time.ParseDuration(given[1])
				if err != nil && given[1] != "0" || d < 0 {
					return fault.New(fault.InvalidInput, "duration %q: write it as 90s, 15m or 2h, or never", given[1])
				}
				r.Timeout = cubeapi.Seconds(d)
			}
			if c.Flags().Changed("auto-resume") {
				r.AutoResume = &autoResume
			}
			return a.with(func(api *cubeapi.Client) error {
				s, err := api.SetTimeout(c.Context(), r)
				if err != nil {
					return err
				}
				return a.show(s, func(w io.Writer) { fmt.Fprintln(w, endOf(*s)) })
			})
		},
	}
	c.Flags().StringVar(&onTimeout, "on-timeout", "", "what becomes of it then: kill or pause; unset: as before")
	c.Flags().BoolVar(&autoResume, "auto-resume", false, "traffic wakes it when it is paused; unset: as before")
	return c
}

// endOf says when a sandbox ends by itself.
func endOf(s cubeapi.Sandbox) string {
	if s.EndAt == "" {
		return "never"
	}
	return s.EndAt
}

func (a *app) refreshCommand() *cobra.Command {
	var d time.Duration
	c := &cobra.Command{Use: "refresh SANDBOX", Short: "Count as a use of a sandbox", Args: args(1, 1), RunE: func(c *cobra.Command, given []string) error {
		return a.with(func(api *cubeapi.Client) error {
			s, err := api.Refresh(c.Context(), cubeapi.RefreshRequest{SandboxID: given[0], Duration: cubeapi.Seconds(d)})
			if err != nil {
				return err
			}
			return a.show(s, func(w io.Writer) { fmt.Fprintln(w, endOf(*s)) })
		})
	}}
	c.Flags().DurationVar(&d, "for", 0, "it does not end before so long from now, 1h at most; unset: its timeout")
	return c
}

func (a *app) updateCommand() *cobra.Command {
	var network networkFlags
	var ports []int32
	var labels map[string]string
	c := &cobra.Command{
		Use: "update SANDBOX", Short: "Change what a sandbox may reach, its ports, or its labels", Args: args(1, 1),
		Long: "Change what a sandbox may reach, its ports, or its labels. What is given takes the place of all that was said of it before.",
		RunE: func(c *cobra.Command, given []string) error {
			r := cubeapi.SandboxUpdateRequest{SandboxID: given[0], Network: network.config(c)}
			if c.Flags().Changed("port") {
				r.Ports = &ports
			}
			if c.Flags().Changed("label") {
				r.Labels = &labels
			}
			if r.Network == nil && r.Ports == nil && r.Labels == nil {
				return fault.New(fault.InvalidInput, "nothing to change: name a flag")
			}
			return a.with(func(api *cubeapi.Client) error {
				s, err := api.Update(c.Context(), r)
				if err != nil {
					return err
				}
				return a.show(s, func(w io.Writer) { printSandbox(w, *s) })
			})
		},
	}
	c.Flags().Int32SliceVar(&ports, "port", nil, "port that others may reach")
	c.Flags().StringToStringVar(&labels, "label", nil, "label NAME=VALUE")
	network.add(c)
	return c
}

func (a *app) snapshotCommand() *cobra.Command {
	var memory func() *bool
	r := cubeapi.SnapshotRequest{}
	c := &cobra.Command{Use: "snapshot SANDBOX", Short: "Keep the state of a sandbox, which goes on", Args: args(1, 1), RunE: func(c *cobra.Command, given []string) error {
		r.SandboxID, r.Memory = given[0], memory()
		return a.with(func(api *cubeapi.Client) error {
			s, err := api.Snapshot(c.Context(), r)
			if err != nil {
				return err
			}
			return a.show(s, func(w io.Writer) {
				fmt.Fprintln(w, s.SnapshotID)
				fmt.Fprintf(a.stderr, "kept on %s, %d MiB\n", s.HostID, s.SizeBytes>>20)
			})
		})
	}}
	c.Flags().StringVar(&r.Name, "name", "", "a name for people")
	memory = memoryFlag(c)
	return c
}

func (a *app) rollbackCommand() *cobra.Command {
	return &cobra.Command{Use: "rollback SANDBOX SNAPSHOT", Short: "Give a sandbox the state of one of its snapshots", Args: args(2, 2), RunE: func(c *cobra.Command, given []string) error {
		return a.with(func(api *cubeapi.Client) error {
			if _, err := api.Rollback(c.Context(), cubeapi.RollbackRequest{SandboxID: given[0], SnapshotID: given[1]}); err != nil {
				return err
			}
			fmt.Fprintln(a.stderr, "sandbox rolled back:", given[0])
			return nil
		})
	}}
}

func (a *app) cloneCommand() *cobra.Command {
	var memory func() *bool
	var count int
	c := &cobra.Command{Use: "clone SANDBOX", Short: "Make sandboxes that begin as another is", Args: args(1, 1), RunE: func(c *cobra.Command, given []string) error {
		return a.with(func(api *cubeapi.Client) error {
			answer, err := api.Clone(c.Context(), cubeapi.CloneRequest{SandboxID: given[0], Count: count, Memory: memory()})
			if err != nil {
				return err
			}
			return a.showBatch(answer)
		})
	}}
	c.Flags().IntVar(&count, "count", 1, "how many")
	memory = memoryFlag(c)
	return c
}

func (a *app) commitCommand() *cobra.Command {
	var r cubeapi.CommitRequest
	var background bool
	c := &cobra.Command{Use: "commit SANDBOX|SNAPSHOT", Short: "Make a template of what a sandbox or snapshot has on disk", Args: args(1, 1), RunE: func(c *cobra.Command, given []string) error {
		if strings.HasPrefix(given[0], sandbox.SnapshotPrefix) {
			r.SnapshotID = given[0]
		} else {
			r.SandboxID = given[0]
		}
		return a.with(func(api *cubeapi.Client) error {
			j, err := api.Commit(c.Context(), r)
			if err != nil {
				return err
			}
			if background {
				return a.show(j, func(w io.Writer) { printJob(w, j) })
			}
			return a.watch(c.Context(), api, j.JobID)
		})
	}}
	c.Flags().StringVar(&r.Alias, "alias", "", "stable name of the template")
	c.Flags().BoolVar(&background, "no-watch", false, "return once the job is there")
	return c
}

func (a *app) logsCommand() *cobra.Command {
	var tail int
	var follow bool
	c := &cobra.Command{Use: "logs SANDBOX", Short: "Print what a sandbox's first program wrote", Args: args(1, 1), RunE: func(c *cobra.Command, given []string) error {
		return a.with(func(api *cubeapi.Client) error { return api.Logs(c.Context(), given[0], tail, follow, a.stdout) })
	}}
	c.Flags().IntVar(&tail, "tail", 0, "lines from the end to begin with; 0: all that is kept")
	c.Flags().BoolVarP(&follow, "follow", "f", false, "go on until the sandbox ends")
	return c
}

func (a *app) metricsCommand() *cobra.Command {
	return &cobra.Command{Use: "metrics [SANDBOX...]", Aliases: []string{"stats", "top"}, Short: "Show what sandboxes use", Args: args(0, -1), RunE: func(c *cobra.Command, given []string) error {
		return a.with(func(api *cubeapi.Client) error {
			list, err := api.Usage(c.Context(), given...)
			if err != nil {
				return err
			}
			return a.show(list, func(w io.Writer) {
				fmt.Fprintln(w, "SANDBOX_ID\tCPU_S\tMEM_MIB\tDISK_MIB\tRX_KIB\tTX_KIB\tPROCESSES\tOOM_KILLS")
				for _, u := range list {
					fmt.Fprintf(w, "%s\t%s\t%d/%d\t%d/%d\t%d\t%d\t%d\t%d\n", u.SandboxID, strconv.FormatFloat(float64(u.CPUUS)/1e6, 'f', 2, 64), u.MemBytes>>20, u.MemLimitBytes>>20, u.DiskBytes>>20, u.DiskLimitBytes>>20, u.RxBytes>>10, u.TxBytes>>10, u.Processes, u.OOMKills)
				}
			})
		})
	}}
}
