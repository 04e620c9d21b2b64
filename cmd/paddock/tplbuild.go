package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/fault"
)

// buildStateCommand shows a job in the form of E2B clients, once or until it ends.
func (a *app) buildStateCommand(use, short string, follow bool) *cobra.Command {
	var id string
	var interval time.Duration
	c := &cobra.Command{Use: use + " [BUILD]", Short: short, Args: args(0, 1), RunE: func(c *cobra.Command, given []string) error {
		name, err := oneOf(c, "a build", id, given)
		if err != nil {
			return err
		}
		if follow && interval < pollEvery {
			return fault.New(fault.InvalidInput, "--interval %s: must be at least %s", interval, pollEvery)
		}
		return a.with(func(api *cubeapi.Client) error { return a.buildState(c.Context(), api, name, follow, interval) })
	}}
	c.Flags().StringVar(&id, "build-id", "", "id of the build, as the argument")
	if follow {
		c.Flags().DurationVar(&interval, "interval", 2*time.Second, "pause between two looks")
	}
	return c
}

func printBuild(w io.Writer, s cubeapi.BuildStatusAnswer) {
	fmt.Fprintf(w, "build_id:\t%s\ntemplate_id:\t%s\nattempt_no:\t%d\nstatus:\t%s\nprogress:\t%d%%\nmessage:\t%s\n", s.BuildID, s.TemplateID, s.AttemptNo, s.Status, s.Progress, s.Message)
}

// buildState shows a build, once or each time that it changed until it ends.
func (a *app) buildState(ctx context.Context, api *cubeapi.Client, name string, follow bool, interval time.Duration) error {
	away := outage{w: a.stderr}
	for last := ""; ; {
		s, err := api.BuildStatus(ctx, name)
		if follow && away.wait(ctx, err) {
			continue
		}
		if ctx.Err() != nil {
			fmt.Fprintf(a.stderr, "The build goes on; follow it with: paddock tpl build-watch --build-id %s\n", name)
			return exitStatus(130)
		}
		if err != nil {
			return err
		}
		ended := s.Status != "building"
		if now := fmt.Sprint(s.Status, s.Progress, s.Message); !follow || ended || now != last && a.output == "table" {
			last = now
			if err := a.show(s, func(w io.Writer) { printBuild(w, s) }); err != nil {
				return err
			}
		}
		switch {
		case follow && s.Status == "error":
			return fault.New(fault.BuildFailed, "build %s: %s", s.BuildID, s.Message)
		case !follow || ended:
			return nil
		}
		select {
		case <-ctx.Done():
		case <-time.After(interval):
		}
	}
}
