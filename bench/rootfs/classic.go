package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"
)

// size is what the classic way must know before it begins: how large a file
// system to make. It is found beforehand and not counted.
type size struct{ bytes, entries int64 }

// classic is the way of public builders: unpack to a directory, make a file
// system of it, and shrink that. It returns how long each step took.
func classic(ctx context.Context, p picture, dir string, s size) ([]step, error) {
	bundle, image := filepath.Join(dir, "bundle"), filepath.Join(dir, "classic.ext4")
	// No journal and no reserve, as ours; as many inodes as are needed.
	room := (s.bytes+s.entries*4096)*11/10 + 64<<20
	commands := [][]string{
		{"umoci", "unpack", "--image", p.layout + ":" + p.name, bundle},
		{"mkfs.ext4", "-q", "-F", "-b", "4096", "-O", "^has_journal", "-m", "0", "-N", strconv.FormatInt(s.entries+1024, 10), "-d", filepath.Join(bundle, "rootfs"), image, strconv.FormatInt(room>>10, 10) + "k"},
		{"e2fsck", "-fy", image},
		{"resize2fs", "-M", image},
		{"e2fsck", "-fn", image},
	}
	var steps []step
	for _, c := range commands {
		u, err := tool(ctx, c...)
		if err != nil {
			return nil, err
		}
		steps = append(steps, step{c[0], u})
	}
	return steps, nil
}

// step is one program of the classic way.
type step struct {
	name string
	used
}

// used is what a process took: by the clock, and of all processors.
type used struct{ took, cpu time.Duration }

func total(steps []step) (u used) {
	for _, s := range steps {
		u.took += s.took
		u.cpu += s.cpu
	}
	return u
}

// ran runs a program and says what it used.
func ran(c *exec.Cmd) (used, error) {
	began := time.Now()
	err := c.Run()
	u := used{took: time.Since(began)}
	if c.ProcessState != nil {
		u.cpu = c.ProcessState.UserTime() + c.ProcessState.SystemTime()
	}
	return u, err
}

// tool runs a program that says nothing when it works. e2fsck's status 1 means
// that it corrected something.
func tool(ctx context.Context, words ...string) (used, error) {
	c := exec.CommandContext(ctx, words[0], words[1:]...)
	var out bytes.Buffer
	c.Stdout, c.Stderr = &out, &out
	u, err := ran(c)
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() == 1 && words[0] == "e2fsck" && words[1] == "-fy" {
		return u, nil
	}
	if err != nil {
		return u, fmt.Errorf("%s: %w: %s", words[0], err, out.Bytes())
	}
	return u, nil
}

// measureTree unpacks once and says what the file system must hold.
func measureTree(ctx context.Context, p picture, dir string) (s size, err error) {
	bundle := filepath.Join(dir, "bundle")
	if _, err := tool(ctx, "umoci", "unpack", "--image", p.layout+":"+p.name, bundle); err != nil {
		return s, err
	}
	err = filepath.WalkDir(filepath.Join(bundle, "rootfs"), func(_ string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		s.entries++
		if d.Type().IsRegular() {
			i, err := d.Info()
			if err != nil {
				return err
			}
			s.bytes += i.Size()
		}
		return nil
	})
	return s, errors.Join(err, os.RemoveAll(bundle))
}
