package main

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/paddock-dev/paddock/internal/platform/config"
)

func (a *app) configCommand() *cobra.Command {
	c := &cobra.Command{Use: "config", Short: "Look at the configuration"}
	c.AddCommand(&cobra.Command{
		Use: "show", Short: "Print every setting, who gave its value, and what is wrong with it", Args: args(0, 0),
		Long: "Print every setting and who gave its value: the default, a line of the file, a variable of the environment, the\n" +
			"command line, or derived from others. Secrets are hidden. With -o yaml the output is a configuration file.\n" +
			"Every fault is listed, and the exit status is then not 0.",
		RunE: func(*cobra.Command, []string) error {
			l, err := a.load()
			for _, n := range l.Notices {
				fmt.Fprintln(a.stderr, "Notice:", n)
			}
			return errors.Join(err, a.showConfig(l))
		},
	})
	return c
}

func (a *app) showConfig(l *config.Loaded) error {
	if a.output == "yaml" {
		b, err := l.YAML()
		if err != nil {
			return err
		}
		_, err = a.stdout.Write(b)
		return err
	}
	all := l.Settings()
	return a.show(all, func(w io.Writer) {
		fmt.Fprintln(w, "KEY\tVALUE\tSOURCE")
		for _, s := range all {
			value := fmt.Sprint(s.Value)
			if list, ok := s.Value.([]string); ok {
				value = strings.Join(list, ",")
			}
			if value == "" {
				value = "-"
			}
			fmt.Fprintf(w, "%s\t%s\t%s\n", s.Key, value, s.Source)
		}
	})
}
