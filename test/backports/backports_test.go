package backports

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

func TestE2fsprogs(t *testing.T) {
	dir := E2fsprogs(t)
	for _, name := range programs {
		out, err := exec.Command(filepath.Join(dir, name), "-V").CombinedOutput()
		if err != nil || !strings.Contains(string(out), "1.4") {
			t.Errorf("%s -V: %v: %s", name, err, out)
		}
	}
	if again := E2fsprogs(t); again != dir {
		t.Errorf("%s, then %s", dir, again)
	}
}

// Many ask at once and one fills; one that failed is tried again.
func TestCached(t *testing.T) {
	t.Setenv("PADDOCK_TEST_CACHE", t.TempDir())
	broken := errors.New("the line is cut")
	_, err := cached(t.Context(), "x", func(_ context.Context, dir string) error {
		if err := os.WriteFile(filepath.Join(dir, "half"), nil, 0o644); err != nil {
			return err
		}
		return broken
	})
	if !errors.Is(err, broken) {
		t.Fatal(err)
	}
	fills := 0
	var wg sync.WaitGroup
	for range 5 {
		wg.Go(func() {
			dir, err := cached(t.Context(), "x", func(_ context.Context, dir string) error {
				fills++ // the lock guards it
				return os.WriteFile(filepath.Join(dir, "whole"), nil, 0o644)
			})
			if err != nil {
				t.Error(err)
				return
			}
			if list, err := os.ReadDir(dir); err != nil || len(list) != 1 || list[0].Name() != "whole" {
				t.Errorf("%v, %v", list, err)
			}
		})
	}
	wg.Wait()
	if fills != 1 {
		t.Errorf("filled %d times", fills)
	}
}

// A mirror that does not answer fails, and says so; nothing is left.
func TestNoMirror(t *testing.T) {
	cache := t.TempDir()
	t.Setenv("PADDOCK_TEST_CACHE", cache)
	t.Setenv("http_proxy", "http://127.0.0.1:1")
	t.Setenv("https_proxy", "http://127.0.0.1:1")
	_, err := cached(t.Context(), "e2fsprogs", fetchE2fsprogs)
	if err == nil || !strings.Contains(err.Error(), "apt-get") {
		t.Fatalf("got %v", err)
	}
	if list, err := os.ReadDir(cache); err != nil || len(list) != 1 {
		t.Errorf("left: %v, %v", list, err)
	}
}
