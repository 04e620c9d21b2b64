package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/fault"
)

// logWait is how long one question for more lines may wait at the master.
const logWait = 20 * time.Second

func (a *app) jobLogsCommand() *cobra.Command {
	var follow bool
	c := &cobra.Command{Use: "logs JOB", Short: "Show what was said of a job", Args: args(1, 1), RunE: func(c *cobra.Command, given []string) error {
		return a.with(func(api *cubeapi.Client) error { return a.logs(c.Context(), api, given[0], follow) })
	}}
	c.Flags().BoolVarP(&follow, "follow", "f", false, "go on until the job ends")
	return c
}

// logs prints what is said of a job, one line each: text, or with -o json one
// JSON object a line. Ctrl-C stops the reading, not the job.
func (a *app) logs(ctx context.Context, api *cubeapi.Client, jobID string, follow bool) error {
	var wait time.Duration
	away := outage{w: a.stderr}
	for after := int64(0); ; {
		answer, err := api.JobLogs(ctx, jobID, after, wait)
		if follow && away.wait(ctx, err) {
			continue
		}
		if ctx.Err() != nil {
			fmt.Fprintf(a.stderr, "The job goes on; follow it with: paddock tpl logs -f %s\n", jobID)
			return exitStatus(130)
		}
		if err != nil {
			return err
		}
		for _, l := range answer.Lines {
			if err := a.printLine(l); err != nil {
				return err
			}
		}
		after = answer.Next
		switch {
		case answer.Ended, !follow && len(answer.Lines) == 0:
			if follow && answer.Status == cubeapi.StatusFailed {
				return a.failedJob(ctx, api, jobID)
			}
			return nil
		case follow:
			wait = logWait
		}
	}
}

func (a *app) printLine(l cubeapi.JobLogLine) error {
	if a.output == "table" {
		_, err := fmt.Fprintf(a.stdout, "%s %-14s %s\n", l.At, l.Source, l.Line)
		return err
	}
	return json.NewEncoder(a.stdout).Encode(l)
}

// failedJob is why a job failed.
func (a *app) failedJob(ctx context.Context, api *cubeapi.Client, jobID string) error {
	j, err := api.Job(ctx, jobID)
	if err != nil {
		return err
	}
	if j.Status != cubeapi.StatusFailed {
		return fault.New(fault.StateConflict, "job %s is %s now", jobID, j.Status)
	}
	return jobFault(j)
}

// masterAway is how long those who follow a job wait for a master that goes
// away under them, as it does when it is started again.
const masterAway = time.Minute

// outage is what somebody who follows a job knows of a master that went away.
type outage struct {
	w     io.Writer
	known bool      // the master answered once: its address is right
	since time.Time // zero while it answers
}

// wait takes the outcome of a question, and tells whether to ask again because
// the master went away; then it has waited.
func (o *outage) wait(ctx context.Context, err error) bool {
	if !errors.Is(err, fault.PeerUnavailable) {
		o.known, o.since = true, time.Time{}
		return false
	}
	switch {
	case !o.known || ctx.Err() != nil:
		return false
	case o.since.IsZero():
		o.since = time.Now()
		fmt.Fprintln(o.w, "The master went away; waiting for it")
	case time.Since(o.since) > masterAway:
		return false
	}
	select {
	case <-ctx.Done():
	case <-time.After(pollEvery):
	}
	return true
}
