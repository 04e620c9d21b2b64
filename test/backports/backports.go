// Package backports brings programs that are newer than the installed ones to
// tests which compare with both.
//
// They come from the backports of the Debian that the tests run on, by its own
// apt and mirror, with its own keys, and stay in a cache. It must never change
// the system: apt's lists, state and cache lie in that directory too, and
// packages are unpacked, not installed. Nor may it skip a test: what cannot be
// had fails it.
package backports

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// fetchWithin is what apt gets for lists and packages, on a slow line.
const fetchWithin = 5 * time.Minute

// E2fsprogs returns a directory with e2fsck, debugfs and dumpe2fs of e2fsprogs
// 1.47.2 or newer. PADDOCK_TEST_CACHE names the cache; without it it is
// paddock-test in the user's own.
func E2fsprogs(tb testing.TB) (dir string) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), fetchWithin)
	defer cancel()
	dir, err := cached(ctx, "e2fsprogs", fetchE2fsprogs)
	if err != nil {
		tb.Fatalf("this test needs e2fsprogs 1.47.2 from Debian's backports: %v", err)
	}
	return dir
}

// cached returns the directory of that name in the cache. The first to ask
// fills it; all others, of other processes too, wait. What was filled in half
// is never seen.
func cached(ctx context.Context, name string, fill func(ctx context.Context, dir string) error) (string, error) {
	cache := os.Getenv("PADDOCK_TEST_CACHE")
	if cache == "" {
		user, err := os.UserCacheDir()
		if err != nil {
			return "", fmt.Errorf("no cache, set PADDOCK_TEST_CACHE: %w", err)
		}
		cache = filepath.Join(user, "paddock-test")
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return "", err
	}
	lock, err := os.Create(filepath.Join(cache, name+".lock"))
	if err != nil {
		return "", err
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return "", fmt.Errorf("lock %s: %w", lock.Name(), err)
	}
	dir := filepath.Join(cache, name)
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	part := dir + ".part" // of one that did not end; the lock is ours
	if err := os.RemoveAll(part); err != nil {
		return "", err
	}
	if err := os.Mkdir(part, 0o755); err != nil {
		return "", err
	}
	if err := fill(ctx, part); err != nil {
		return "", errors.Join(err, os.RemoveAll(part))
	}
	return dir, os.Rename(part, dir)
}

var programs = []string{"e2fsck", "debugfs", "dumpe2fs"}

// fetchE2fsprogs unpacks the packages below dir and writes a script for each
// program that runs it with its own libraries.
func fetchE2fsprogs(ctx context.Context, dir string) error {
	if err := fetch(ctx, dir, "e2fsprogs", "libext2fs2", "libss2", "libcom-err2"); err != nil {
		return err
	}
	found, libraries := map[string]string{}, []string{}
	root := filepath.Join(dir, "root")
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		inside := strings.TrimPrefix(path, root)
		found[d.Name()] = inside
		if strings.HasPrefix(d.Name(), "libext2fs.so") || strings.HasPrefix(d.Name(), "libss.so") {
			libraries = append(libraries, `$root`+filepath.Dir(inside))
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, name := range programs {
		if found[name] == "" {
			return fmt.Errorf("the packages hold no %s", name)
		}
		// The directory moves when it is complete.
		script := fmt.Sprintf("#!/bin/sh\nroot=$(dirname \"$0\")/root\nLD_LIBRARY_PATH=%s exec \"$root%s\" \"$@\"\n", strings.Join(libraries, ":"), found[name])
		if err := os.WriteFile(filepath.Join(dir, name), []byte(script), 0o755); err != nil {
			return err
		}
	}
	out, err := output(ctx, filepath.Join(dir, "e2fsck"), "-V")
	if err != nil {
		return err
	}
	var minor, patch int
	if _, err := fmt.Sscanf(out, "e2fsck 1.%d.%d", &minor, &patch); err != nil || minor < 47 || minor == 47 && patch < 2 {
		return fmt.Errorf("the backports hold an older one: %.100q", out)
	}
	return nil
}

// fetch downloads packages and unpacks them into dir/root.
func fetch(ctx context.Context, dir string, packages ...string) error {
	source, suite, err := backportsSource(ctx)
	if err != nil {
		return err
	}
	apt := filepath.Join(dir, "apt")
	for _, d := range []string{"lists/partial", "cache/archives/partial", "debs"} {
		if err := os.MkdirAll(filepath.Join(apt, d), 0o755); err != nil {
			return err
		}
	}
	for name, text := range map[string]string{"sources.list": source, "status": ""} {
		if err := os.WriteFile(filepath.Join(apt, name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	options := []string{
		"-q", "-o", "Dir::Etc::SourceList=" + apt + "/sources.list", "-o", "Dir::Etc::SourceParts=/dev/null", "-o", "Dir::State::Lists=" + apt + "/lists",
		"-o", "Dir::State::Status=" + apt + "/status", "-o", "Dir::Cache=" + apt + "/cache", "-o", "Acquire::Languages=none", "-o", "APT::Sandbox::User=root",
		"-o", "APT::Update::Error-Mode=any", "-t", suite,
	}
	if _, err := output(ctx, "apt-get", append(options, "update")...); err != nil {
		return err
	}
	// Downloads land in the working directory.
	download := append([]string{"-C", apt + "/debs", "apt-get"}, append(options, append([]string{"download"}, packages...)...)...)
	if _, err := output(ctx, "env", download...); err != nil {
		return err
	}
	debs, err := filepath.Glob(apt + "/debs/*.deb")
	if err != nil || len(debs) != len(packages) {
		return fmt.Errorf("apt brought %d of %d packages: %w", len(debs), len(packages), err)
	}
	for _, deb := range debs {
		if _, err := output(ctx, "dpkg-deb", "-x", deb, filepath.Join(dir, "root")); err != nil {
			return err
		}
	}
	return os.RemoveAll(apt)
}

// backportsSource returns the line for apt that leads to the backports of this
// Debian, on the mirror that the system itself uses, and their name.
func backportsSource(ctx context.Context) (line, suite string, err error) {
	out, err := output(ctx, "apt-get", "indextargets", "--format", "$(ORIGIN) $(COMPONENT) $(RELEASE) $(CODENAME) $(REPO_URI)", "Created-By: Packages")
	if err != nil {
		return "", "", err
	}
	for target := range strings.Lines(out) {
		f := strings.Fields(target)
		if len(f) != 5 || f[0] != "Debian" || f[1] != "main" || strings.Contains(f[2], "-") {
			continue
		}
		suite, key := f[3]+"-backports", ""
		const keyring = "/usr/share/keyrings/debian-archive-keyring.gpg"
		if _, err := os.Stat(keyring); err == nil {
			key = "[signed-by=" + keyring + "] "
		}
		return fmt.Sprintf("deb %s%s %s main\n", key, f[4], suite), suite, nil
	}
	return "", "", fmt.Errorf("apt has no source of Debian's main component, or no lists yet (apt-get update): %q", out)
}

// output runs a program and returns what it printed. Its error holds that too.
func output(ctx context.Context, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, out[max(0, len(out)-2000):])
	}
	return string(out), nil
}
