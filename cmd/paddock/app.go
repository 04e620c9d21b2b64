package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"

	"github.com/goccy/go-yaml"
	"github.com/spf13/cobra"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/platform/config"
	"github.com/paddock-dev/paddock/internal/platform/datadir"
)

// app is what the commands share: streams and common flags. Data goes to
// stdout, talk to stderr.
type app struct {
	stdin          io.Reader
	stdout, stderr io.Writer

	configFile, dataDir string
	address, apiKey     string
	output              string
	wide                bool // a table of all columns
}

// wide marks a command that has a wider table, which -o wide asks for.
const wide = "wide"

func (a *app) root() *cobra.Command {
	c := &cobra.Command{
		Use: "paddock", Short: "A self-hosted platform that gives AI agents a place to work",
		Version: version, SilenceErrors: true, SilenceUsage: true,
		PersistentPreRunE: func(c *cobra.Command, _ []string) error {
			if v := os.Getenv("PADDOCK_OUTPUT"); v != "" && !c.Flags().Changed("output") {
				a.output = v
			}
			if a.output == "wide" && c.Annotations[wide] != "" {
				a.wide, a.output = true, "table"
			}
			if a.output != "table" && a.output != "json" && a.output != "yaml" {
				return fault.New(fault.InvalidInput, "--output %q: must be table, json or yaml", a.output)
			}
			return nil
		},
	}
	f := c.PersistentFlags()
	f.StringVar(&a.configFile, "config", "", "configuration file (default: the one that PADDOCK_CONFIG names, if any)")
	f.StringVar(&a.dataDir, "data-dir", "", "data directory (default: PADDOCK_DATA_DIR, else /var/lib/paddock)")
	f.StringVar(&a.address, "address", "", "URL of the master (default: PADDOCK_ADDRESS, else what \"paddock up\" left in the data directory)")
	f.StringVar(&a.apiKey, "api-key", "", "API key (default: PADDOCK_API_KEY, else as for --address)")
	f.StringVarP(&a.output, "output", "o", "table", "table, json or yaml; PADDOCK_OUTPUT names another default")
	_ = c.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{"table", "json", "yaml"}, cobra.ShellCompDirectiveNoFileComp)) // the flag is there
	c.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return fault.Wrap(fault.InvalidInput, err, "command line") })
	c.AddCommand(a.roleCommands()...)
	c.AddCommand(a.templateCommand(), a.sandboxCommand(), a.snapshotNoun(), a.hostCommand(), a.scheduleCommand(), a.simCommand(), a.imageCommand(), a.auditCommand(), a.configCommand(), a.doctorCommand())
	c.InitDefaultCompletionCmd()
	codeRefusals(c)
	return c
}

// codeRefusals makes what the library refuses by itself a failure with a code:
// words that are no command, and arguments of its own commands.
func codeRefusals(c *cobra.Command) {
	if c.HasSubCommands() && c.RunE == nil {
		c.Args, c.SuggestionsMinimumDistance = cobra.ArbitraryArgs, 2
		c.RunE = func(c *cobra.Command, given []string) error {
			if len(given) == 0 {
				return c.Help()
			}
			remedy := "`" + c.CommandPath() + " --help` lists what there is"
			if near := c.SuggestionsFor(given[0]); len(near) > 0 {
				remedy = "is it " + strings.Join(near, ", ") + "? " + remedy
			}
			return &fault.Error{Code: fault.InvalidInput, Message: fmt.Sprintf("%s has no command %q", c.CommandPath(), given[0]), Remedy: remedy}
		}
	} else if c.Parent() != nil && c.Parent().Name() == "completion" {
		c.Args = args(0, 0)
	}
	for _, sub := range c.Commands() {
		codeRefusals(sub)
	}
}

// args refuses a wrong number of arguments with a code.
func args(low, high int) cobra.PositionalArgs {
	return func(c *cobra.Command, given []string) error {
		if len(given) < low || high >= 0 && len(given) > high {
			return fault.New(fault.InvalidInput, "%s: %d arguments; usage: %s", c.CommandPath(), len(given), c.UseLine())
		}
		return nil
	}
}

// load reads the configuration, with what the command line says over it. The
// Loaded is there also when it has faults, to be shown.
func (a *app) load() (*config.Loaded, error) {
	return config.Read(config.LoadOptions{File: a.configFile, Environ: os.Environ(), Override: func(c *config.Config) {
		if a.dataDir != "" {
			if abs, err := filepath.Abs(a.dataDir); err == nil {
				c.DataDir = abs
			}
		}
	}})
}

// client returns a client of the master: from flags, environment, or what
// `paddock up` left.
func (a *app) client() (*cubeapi.Client, error) {
	address, key := first(a.address, os.Getenv("PADDOCK_ADDRESS")), first(a.apiKey, os.Getenv("PADDOCK_API_KEY"))
	if address == "" || key == "" {
		dir := first(a.dataDir, os.Getenv("PADDOCK_DATA_DIR"), config.Default().DataDir)
		left, err := datadir.ReadClient(dir)
		if err != nil && address == "" {
			return nil, &fault.Error{Code: fault.PeerUnavailable, Message: "no master is known", Cause: err, Remedy: "run `paddock up`, or pass --address and --api-key"}
		}
		address, key = first(address, left.Address), first(key, left.APIKey)
	}
	return cubeapi.NewClient(address, key), nil
}

func first(words ...string) string {
	for _, w := range words {
		if w != "" {
			return w
		}
	}
	return ""
}

// show prints v as asked; table prints it for people.
func (a *app) show(v any, table func(w io.Writer)) error {
	switch a.output {
	case "json":
		e := json.NewEncoder(a.stdout)
		e.SetIndent("", "  ")
		return e.Encode(v)
	case "yaml":
		// By way of JSON, so that both have the same names.
		b, err := json.Marshal(v)
		if err == nil {
			b, err = yaml.JSONToYAML(b)
		}
		if err != nil {
			return err
		}
		_, err = a.stdout.Write(b)
		return err
	}
	w := tabwriter.NewWriter(a.stdout, 0, 4, 2, ' ', 0)
	table(w)
	return w.Flush()
}

// showError tells what failed, why, and what to do.
func (a *app) showError(err error) {
	d := fault.DetailOf(err)
	if fault.Of(err) == fault.Bug && !errors.Is(err, fault.Bug) {
		d = fault.Detail{Code: "failed", Message: err.Error()}
	}
	if a.output == "json" {
		e := json.NewEncoder(a.stderr)
		e.SetIndent("", "  ")
		_ = e.Encode(map[string]fault.Detail{"error": d}) // stderr is all there is
		return
	}
	// The message has its cause at its end already.
	fmt.Fprintf(a.stderr, "Error: %s\n", strings.TrimSuffix(d.Message, ": "+d.Cause))
	if d.Cause != "" {
		fmt.Fprintf(a.stderr, "Cause: %s\n", strings.ReplaceAll(d.Cause, "\n", "\n       "))
	}
	if d.Remedy != "" {
		fmt.Fprintf(a.stderr, "Remedy: %s\n", d.Remedy)
	}
}
