package config_test

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/paddock-dev/paddock/internal/platform/config"
)

func TestWhatIsNoFileOfRules(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	for _, err := range []error{
		syscall.Mkfifo(at("pipe"), 0o600), os.Symlink("/dev/zero", at("device")), os.Symlink(at("good"), at("link")),
		os.WriteFile(at("empty"), nil, 0o600), os.WriteFile(at("blank"), []byte(" \n\t\n"), 0o600),
		os.WriteFile(at("large"), []byte(strings.Repeat("#", 1<<20+1)), 0o600), os.WriteFile(at("good"), []byte("scheduler: {}\n"), 0o600),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for name, want := range map[string]string{
		".": "no regular file", "pipe": "no regular file", "device": "no regular file", "nothing": "no such file",
		"empty": "it is empty", "blank": "it is empty", "large": "more than 1048576 bytes",
	} {
		if _, err := config.ReadRulesFile(at(name)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", name, err, want)
		}
	}
	for _, name := range []string{"good", "link"} {
		if text, err := config.ReadRulesFile(at(name)); err != nil || string(text) != "scheduler: {}\n" {
			t.Errorf("%s: %q, %v", name, text, err)
		}
	}
}
