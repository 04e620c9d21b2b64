package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/platform/id"
)

// pollEvery is how often a job is asked for while somebody watches.
const pollEvery = 150 * time.Millisecond

func (a *app) templateCommand() *cobra.Command {
	c := &cobra.Command{Use: "tpl", Aliases: []string{"template"}, Short: "Make and manage templates"}
	alias := &cobra.Command{Use: "alias TEMPLATE [ALIAS]", Short: "Set, move or clear a template's alias", Args: args(1, 2), RunE: func(c *cobra.Command, given []string) error {
		return a.with(func(api *cubeapi.Client) error {
			t, err := api.SetAlias(c.Context(), given[0], strings.Join(given[1:], ""))
			if err != nil {
				return err
			}
			return a.show(t, func(w io.Writer) { printTemplate(w, t) })
		})
	}}
	c.AddCommand(a.fromImageCommand(), a.templateCreateCommand(), a.renderCommand(), a.jobCommand("status", "Show a job as it stands", false), a.jobCommand("watch", "Follow a job until it ends", true), a.templateListCommand(), a.templateInfoCommand(), a.receiptCommand(), a.redoCommand(), a.mergeCommand(), a.templateDeleteCommand(), a.gcCommand(), a.compatCommand(), alias, a.jobLogsCommand(), a.jobCancelCommand(), a.commitCommand(),
		a.buildStateCommand("build-status", "Show a build in the form of E2B clients", false), a.buildStateCommand("build-watch", "Follow a build until it ends, in the form of E2B clients", true))
	return c
}

func (a *app) with(do func(*cubeapi.Client) error) error {
	api, err := a.client()
	if err != nil {
		return err
	}
	return do(api)
}

func printTemplate(w io.Writer, t cubeapi.Template) {
	fmt.Fprintf(w, "template_id:\t%s\nalias:\t%s\nstatus:\t%s\nartifact_id:\t%s\nimage:\t%s\ncreated_at:\t%s\n", t.TemplateID, t.Alias, t.Status, t.ArtifactID, t.ImageInfo, t.CreatedAt)
	if t.LastError != "" {
		fmt.Fprintf(w, "error:\t%s\n", t.LastError)
	}
	for _, h := range t.PendingHosts {
		fmt.Fprintf(w, "waits for:\t%s\n", h.NodeID)
	}
	if len(t.Replicas) > 0 {
		fmt.Fprintln(w, "\nNODE_ID\tNODE_IP\tSTATUS\tPHASE\tERROR")
		for _, r := range t.Replicas {
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", r.NodeID, r.NodeIP, r.Status, r.Phase, r.ErrorMessage)
		}
	}
}

func (a *app) fromImageCommand() *cobra.Command {
	var r cubeapi.FromImageRequest
	var envs, command, commandArgs []string
	var res cubeapi.Quantity
	var detach, passwordIn, withCA bool
	var dns []string
	var network networkFlags
	var probe func() (*cubeapi.Probe, error)
	var envd string
	c := &cobra.Command{Use: "create-from-image", Short: "Make a template of a container image", Args: args(0, 0), RunE: func(c *cobra.Command, _ []string) error {
		if r.SourceImageRef == "" {
			return fault.New(fault.InvalidInput, "--image is missing")
		}
		if passwordIn {
			b, err := io.ReadAll(io.LimitReader(a.stdin, 1<<16))
			if err != nil {
				return err
			}
			r.RegistryPassword = strings.TrimSpace(string(b))
		}
		o := cubeapi.ContainerOverride{Command: command, Args: commandArgs}
		for _, kv := range envs {
			k, v, ok := strings.Cut(kv, "=")
			if !ok || k == "" {
				return fault.New(fault.InvalidInput, "--env %q: must be NAME=VALUE", kv)
			}
			o.Envs = append(o.Envs, cubeapi.KeyValue{Key: k, Value: v})
		}
		if res != (cubeapi.Quantity{}) {
			o.Resources = &res
		}
		var err error
		if o.Probe, err = probe(); err != nil {
			return err
		}
		if len(dns) > 0 {
			o.DNS = &cubeapi.DNSConfig{Servers: dns}
		}
		r.Network = network.config(c)
		if o.Resources != nil || o.DNS != nil || o.Probe != nil || len(o.Envs)+len(command)+len(commandArgs) > 0 {
			r.Overrides = &o
		}
		if c.Flags().Changed("with-cube-ca") {
			r.WithCubeCA = &withCA
		}
		if envd != "" {
			b, err := os.ReadFile(envd)
			if err != nil {
				return fault.Wrap(fault.InvalidInput, err, "--envd")
			}
			r.Envd = string(b)
		}
		r.RequestID = id.New("cli-")
		return a.with(func(api *cubeapi.Client) error {
			j, err := api.FromImage(c.Context(), r)
			if err != nil {
				return err
			}
			if !detach {
				return a.watch(c.Context(), api, j.JobID)
			}
			return a.show(j, func(w io.Writer) { printJob(w, j) })
		})
	}}
	f := c.Flags()
	f.StringVar(&r.SourceImageRef, "image", "", "image reference (required)")
	f.StringVar(&r.Alias, "alias", "", "stable name of the template")
	f.StringVar(&r.DisplayName, "name", "", "as --alias")
	f.StringVar(&r.WritableLayerSize, "writable-layer-size", "1Gi", "size of each sandbox's private layer")
	f.StringVar(&r.InstanceType, "instance-type", "", "kind of host (default cubebox)")
	f.StringVar(&r.NetworkType, "network-type", "", "kind of network: tap, the default, is the only one")
	f.StringVar(&r.Backend, "backend", "", "where hosts keep what sandboxes write: xfs, the default, is the only one")
	f.StringSliceVar(&dns, "dns", nil, "name server of each sandbox, which the network flags must let it reach")
	network.add(c)
	f.IntSliceVar(&r.ExposedPorts, "expose-port", nil, "port that sandboxes expose")
	f.StringSliceVar(&r.DistributionScope, "node", nil, "host to distribute to (default: all healthy ones)")
	f.StringArrayVar(&envs, "env", nil, "environment variable NAME=VALUE")
	f.StringArrayVar(&command, "cmd", nil, "program that every sandbox starts by itself")
	f.StringArrayVar(&commandArgs, "arg", nil, "argument of that program")
	f.StringVar(&res.CPU, "cpu", "", "CPU of each sandbox, such as 2000m or 2 (default 1)")
	f.StringVar(&res.Mem, "memory", "", "memory of each sandbox, such as 1Gi; a bare number counts in Mi (default 512Mi)")
	f.StringVar(&r.RegistryUsername, "registry-username", "", "user of the registry")
	f.StringVar(&r.RegistryPassword, "registry-password", "", "password of the registry; other users of this machine can see it: prefer --registry-password-stdin")
	f.BoolVar(&passwordIn, "registry-password-stdin", false, "read the password from standard input")
	f.BoolVar(&withCA, "with-cube-ca", true, "put the certificates of the egress proxy, if there are any, into the image")
	probe = probeFlags(f)
	f.StringVar(&envd, "envd", "", "program that is put in as the agent of sandboxes, in place of the usual one; it is not kept, so that a redo cannot build the image again")
	f.IntVar(&r.Priority, "priority", 0, "of the jobs that wait, the higher is built first: -100 to 100")
	f.BoolVar(&detach, "detach", false, "return as soon as the job is accepted")
	return c
}

func (a *app) jobCommand(use, short string, follow bool) *cobra.Command {
	var jobID string
	c := &cobra.Command{Use: use + " [JOB]", Short: short, Args: args(0, 1), RunE: func(c *cobra.Command, given []string) error {
		if len(given) == 1 && jobID == "" {
			jobID = given[0]
		}
		if jobID == "" {
			return fault.New(fault.InvalidInput, "--job-id is missing")
		}
		return a.with(func(api *cubeapi.Client) error {
			if follow {
				return a.watch(c.Context(), api, jobID)
			}
			j, err := api.Job(c.Context(), jobID)
			if err != nil {
				return err
			}
			return a.show(j, func(w io.Writer) { printJob(w, j) })
		})
	}}
	c.Flags().StringVar(&jobID, "job-id", "", "id of the job")
	return c
}

// jobFault is how a job failed. Its message may end with its code already.
func jobFault(j *cubeapi.Job) error {
	return fault.FromName(j.ErrorCode, 0, "job "+j.JobID+": "+strings.TrimSuffix(j.ErrorMessage, ": "+j.ErrorCode))
}

// watch follows a job until it ends. Ctrl-C stops the watching, not the job.
func (a *app) watch(ctx context.Context, api *cubeapi.Client, jobID string) error {
	line := progressLine{w: a.stderr, terminal: isTerminal(a.stderr)}
	away := outage{w: a.stderr}
	for {
		j, err := api.Job(ctx, jobID)
		if errors.Is(err, fault.PeerUnavailable) {
			line.end()
		}
		if away.wait(ctx, err) {
			continue
		}
		if ctx.Err() != nil {
			line.end()
			fmt.Fprintf(a.stderr, "The job goes on; follow it with: paddock tpl watch --job-id %s\n", jobID)
			return exitStatus(130)
		}
		if err != nil {
			line.end()
			return err
		}
		line.show(j)
		switch j.Status {
		case cubeapi.StatusReady:
			line.end()
			if j.ErrorMessage != "" {
				fmt.Fprintln(a.stderr, "Warning:", j.ErrorMessage)
			}
			return a.show(j, func(w io.Writer) { printJob(w, j) })
		case cubeapi.StatusFailed:
			line.end()
			if a.output != "table" {
				if err := a.show(j, nil); err != nil {
					return err
				}
			}
			return jobFault(j)
		}
		select {
		case <-ctx.Done():
		case <-time.After(pollEvery):
		}
	}
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// progressLine shows a job: one line that changes on a terminal, a line per
// phase elsewhere.
type progressLine struct {
	w        io.Writer
	terminal bool
	last     string
}

func (p *progressLine) show(j *cubeapi.Job) {
	text := fmt.Sprintf("%3d%% %-14s", j.Progress, strings.ToLower(j.Phase))
	pull := ""
	if j.PullTotalBytes > 0 {
		pull = fmt.Sprintf(" pulled %d/%d MiB, %d/%d layers", j.PullDoneBytes>>20, j.PullTotalBytes>>20, j.PullDoneLayers, j.PullTotalLayers)
	}
	if j.ExpectedNodeCount > 0 {
		pull = fmt.Sprintf(" hosts %d/%d ready, %d failed", j.ReadyNodeCount, j.ExpectedNodeCount, j.FailedNodeCount)
	}
	if j.QueuePosition > 0 {
		text = fmt.Sprintf("%3d%% waits for a builder", j.Progress)
		pull = fmt.Sprintf(", %d of %d in the queue", j.QueuePosition, j.QueueLength)
	}
	p.draw(j.Progress, text, text+pull)
}

const barWidth = 24

// draw shows text: beside a bar on a terminal, elsewhere as a line when key is
// another than before.
func (p *progressLine) draw(percent int, key, text string) {
	if p.terminal {
		done := percent * barWidth / 100
		fmt.Fprintf(p.w, "\r\x1b[K[%s%s] %s", strings.Repeat("=", done), strings.Repeat(" ", barWidth-done), text)
		p.last = key
		return
	}
	if key != p.last {
		fmt.Fprintln(p.w, text)
		p.last = key
	}
}

func (p *progressLine) end() {
	if p.terminal && p.last != "" {
		fmt.Fprintln(p.w)
	}
}

func printJob(w io.Writer, j *cubeapi.Job) {
	fmt.Fprintf(w, "job_id:\t%s\ntemplate_id:\t%s\nalias:\t%s\nstatus:\t%s\nphase:\t%s\nprogress:\t%d%%\n", j.JobID, j.TemplateID, j.Alias, j.Status, j.Phase, j.Progress)
	if j.QueuePosition > 0 {
		fmt.Fprintf(w, "queue:\t%d of %d\n", j.QueuePosition, j.QueueLength)
	}
	if j.RedoMode != "" {
		fmt.Fprintf(w, "redo_mode:\t%s\nretry_of_job_id:\t%s\n", j.RedoMode, j.RetryOfJobID)
	}
	if j.ExpectedNodeCount > 0 {
		fmt.Fprintf(w, "distribution:\t%d/%d ready, %d failed\n", j.ReadyNodeCount, j.ExpectedNodeCount, j.FailedNodeCount)
	}
	if j.ArtifactID != "" {
		fmt.Fprintf(w, "artifact_id:\t%s\n", j.ArtifactID)
	}
	if j.ErrorMessage != "" {
		fmt.Fprintf(w, "error:\t%s\n", j.ErrorMessage)
	}
	for _, p := range phaseSeconds(j) {
		fmt.Fprintf(w, "%s:\t%.2f s\n", strings.ToLower(p.name), p.seconds)
	}
}

type phaseTime struct {
	name    string
	seconds float64
}

// phaseSeconds returns how long each phase took, in order: until the next
// began.
func phaseSeconds(j *cubeapi.Job) []phaseTime {
	names := make([]string, 0, len(j.PhaseStartedMS))
	for name := range j.PhaseStartedMS {
		names = append(names, name)
	}
	slices.SortFunc(names, func(x, y string) int { return int(j.PhaseStartedMS[x] - j.PhaseStartedMS[y]) })
	var list []phaseTime
	for i := 0; i+1 < len(names); i++ {
		list = append(list, phaseTime{names[i], float64(j.PhaseStartedMS[names[i+1]]-j.PhaseStartedMS[names[i]]) / 1000})
	}
	return list
}
