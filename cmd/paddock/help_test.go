package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// every returns all commands that a user sees, a parent before its own.
func every(c *cobra.Command) []*cobra.Command {
	list := []*cobra.Command{c}
	for _, sub := range c.Commands() {
		if sub.IsAvailableCommand() {
			list = append(list, every(sub)...)
		}
	}
	return list
}

func tree() *cobra.Command {
	root := (&app{stdout: io.Discard, stderr: io.Discard}).root()
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	return root
}

// help is what `paddock words... --help` prints.
func help(t *testing.T, c *cobra.Command) string {
	t.Helper()
	var out, errs bytes.Buffer
	words := append(strings.Fields(c.CommandPath())[1:], "--help")
	if code := run(context.Background(), words, strings.NewReader(""), &out, &errs); code != 0 || errs.Len() > 0 {
		t.Errorf("%v: exit status %d, %s", words, code, errs.String())
	}
	return out.String()
}

func TestEveryCommandExplainsItself(t *testing.T) {
	for _, c := range every(tree()) {
		path, text := c.CommandPath(), help(t, c)
		if !strings.Contains(text, "Usage:\n  "+path) && !strings.Contains(text, "Usage:\n  paddock [command]") {
			t.Errorf("%s: no usage in\n%s", path, text)
		}
		if c.Short == "" || strings.HasSuffix(c.Short, ".") || !strings.Contains(text, strings.TrimSpace(first(c.Long, c.Short))) {
			t.Errorf("%s: %q says too little, or ends with a dot", path, c.Short)
		}
	}
}

// TestReference holds docs/cli.md to what the commands say of themselves.
func TestReference(t *testing.T) {
	const path = "../../docs/cli.md"
	var b bytes.Buffer
	b.WriteString("# The command line\n\nPrinted from the code; do not edit. `UPDATE=1 go test ./cmd/paddock -run TestReference` writes it anew.\n\n" +
		"Data goes to standard output, talk and failures to standard error. A failure has a code, whose class is the exit\n" +
		"status: see [faults.md](faults.md). `sandbox exec` exits as its command does.\n")
	for _, c := range every(tree()) {
		if strings.Contains(c.CommandPath(), " completion ") || c.Name() == "help" {
			continue // of the library
		}
		fmt.Fprintf(&b, "\n## %s\n\n```text\n%s```\n", c.CommandPath(), help(t, c))
	}
	if os.Getenv("UPDATE") != "" {
		check(t, os.WriteFile(path, b.Bytes(), 0o644))
	}
	now, err := os.ReadFile(path)
	check(t, err)
	if !bytes.Equal(now, b.Bytes()) {
		t.Errorf("%s does not show the commands as they are: run UPDATE=1 go test ./cmd/paddock", path)
	}
}
