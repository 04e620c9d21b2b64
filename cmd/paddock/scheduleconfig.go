package main

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/platform/config"
	"github.com/paddock-dev/paddock/internal/scheduler"
)

func (a *app) scheduleConfigCommand() *cobra.Command {
	var file string
	c := &cobra.Command{
		Use: "config", Short: "Print the scheduler's rules that hold, or check a file of rules", Args: args(0, 0),
		Long: "Print the rules by which the master places sandboxes, whole, as a file of rules would say them; beside them, on\n" +
			"stderr, since when they hold and why a newer file is not taken.\n" +
			"With --check no master is asked: every fault of the file is listed with its line, and the exit status is then not 0.\n" +
			"Of a good file the rules are printed whole, with what it leaves out.",
		RunE: func(c *cobra.Command, _ []string) error {
			if c.Flags().Changed("check") {
				return a.checkRules(file)
			}
			return a.with(func(api *cubeapi.Client) error {
				s, err := api.SchedulerConfig(c.Context())
				if err != nil {
					return err
				}
				return a.showRules(s)
			})
		},
	}
	c.Flags().StringVar(&file, "check", "", "file of rules to check; - is the standard input")
	return c
}

func (a *app) showRules(s *cubeapi.SchedulerConfig) error {
	if a.output == "json" {
		return a.show(s, nil)
	}
	from := "the defaults hold"
	if s.Path != "" {
		from = fmt.Sprintf("%s, hash %s", s.Path, s.Hash)
	}
	fmt.Fprintf(a.stderr, "Rules: %s, since %s\n", from, s.Since)
	if !s.Good {
		fmt.Fprintf(a.stderr, "The file as it stands is not taken since %s: %s\n", s.ErrorAt, s.Error)
	}
	a.warn(s.Warnings)
	_, err := io.WriteString(a.stdout, s.Rules)
	return err
}

// readRules reads a file of rules that flag names, and says what it is warned of.
func (a *app) readRules(flag, file string) (*scheduler.Rules, []string, error) {
	var text []byte
	var err error
	if file == "-" {
		text, err = config.ReadRules(a.stdin)
	} else {
		text, err = config.ReadRulesFile(file)
	}
	if err != nil {
		return nil, nil, fault.Wrap(fault.InvalidInput, err, "%s %s", flag, file)
	}
	rules, warnings, err := scheduler.ParseRules(text)
	a.warn(warnings)
	if err != nil {
		return nil, nil, fault.Wrap(fault.BadConfig, err, "%s", file)
	}
	return rules, warnings, nil
}

func (a *app) checkRules(file string) error {
	rules, warnings, err := a.readRules("--check", file)
	if err != nil {
		return err
	}
	whole, err := rules.YAML()
	if err != nil {
		return err
	}
	if a.output == "json" {
		return a.show(map[string]any{"rules": string(whole), "warnings": warnings}, nil)
	}
	_, err = a.stdout.Write(whole)
	return err
}
