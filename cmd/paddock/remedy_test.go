package main

import (
	"io"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/paddock-dev/paddock/internal/fault"
)

// A remedy that names a command or a flag must name one that exists.
func TestRemediesNameWhatExists(t *testing.T) {
	root := (&app{stdout: io.Discard, stderr: io.Discard}).root()
	all := []*cobra.Command{root}
	for i := 0; i < len(all); i++ {
		all = append(all, all[i].Commands()...)
	}
	quoted, flag := regexp.MustCompile("`paddock ([^`]*)`"), regexp.MustCompile(`--[a-z][a-z-]+`)
	for _, c := range fault.All() {
		for _, name := range flag.FindAllString(c.Remedy, -1) {
			if !slices.ContainsFunc(all, func(c *cobra.Command) bool { return c.Flag(name[2:]) != nil }) {
				t.Errorf("%s: no command takes %s", c.Name, name)
			}
		}
		for _, m := range quoted.FindAllStringSubmatch(c.Remedy, -1) {
			found, rest, err := root.Find(strings.Fields(m[1]))
			if err != nil || found == root || found.HasSubCommands() || len(rest) > 0 && !strings.HasPrefix(rest[0], "-") {
				t.Errorf("%s: there is no `paddock %s`", c.Name, m[1])
			}
		}
	}
	// A password on the command line is seen by others.
	if !strings.Contains(fault.ImageDenied.Remedy, "--registry-password-stdin") {
		t.Errorf("image_denied: %s", fault.ImageDenied.Remedy)
	}
}
