package rootfs_test

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

const debugfsSample = 8 // entries of an image that debugfs is asked about

var debugfsKinds = map[string]uint32{"regular": 0o100000, "directory": 0o040000, "symlink": 0o120000, "FIFO": 0o010000, "character special": 0o020000, "block special": 0o060000}

var (
	debugfsHead   = regexp.MustCompile(`Inode: (\d+) +Type: (.+?) +Mode: +(\d+) `)
	debugfsOwner  = regexp.MustCompile(`User: *(-?\d+) +Group: *(-?\d+) .*Size: (\d+)`)
	debugfsMtime  = regexp.MustCompile(`(?m)^ mtime: 0x([0-9a-f]{8}):([0-9a-f]{8}) `)
	debugfsTarget = regexp.MustCompile(`(?s)Fast link dest: "(.*)"\n`)
	debugfsDevice = regexp.MustCompile(`Device major/minor number: 0*(\d+):0*(\d+) `)
)

// debugfsAgainst asks debugfs about some entries of an image.
func debugfsAgainst(ctx context.Context, work, image string, want tree, nodes map[string]inode) ([]difference, error) {
	dir, err := os.MkdirTemp(work, "debugfs-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	paths := slices.Sorted(maps.Keys(nodes))
	var sample []string
	for i := range debugfsSample {
		sample = append(sample, paths[i*len(paths)/debugfsSample])
	}
	sample = slices.Compact(sample)
	var script bytes.Buffer
	for i, path := range sample {
		fmt.Fprintf(&script, "stat <%s>\n", nodes[path].group)
		if s := nodes[path].view["sum"]; s != "" || nodes[path].view["target"] != "" {
			fmt.Fprintf(&script, "dump <%s> %s\n", nodes[path].group, filepath.Join(dir, fmt.Sprint(i)))
		}
	}
	commands := filepath.Join(dir, "commands")
	if err := os.WriteFile(commands, script.Bytes(), 0o600); err != nil {
		return nil, err
	}
	out, err := run(ctx, "debugfs", "-f", commands, image)
	if err != nil {
		return nil, err
	}
	parts := strings.Split(out, "debugfs: stat ")[1:]
	if len(parts) != len(sample) {
		return nil, fmt.Errorf("debugfs was asked %d times and answered %d: %s", len(sample), len(parts), out)
	}
	var bad []difference
	for i, path := range sample {
		got, err := debugfsView(parts[i], filepath.Join(dir, fmt.Sprint(i)))
		if err != nil {
			return bad, err
		}
		w := maps.Clone(want[path])
		delete(w, "linked")
		for word := range w {
			if name, ok := strings.CutPrefix(word, "xattr "); ok {
				w[word] = fmt.Sprint(strings.Contains(parts[i], "\n  "+debugfsText(name)+" ("))
				got[word] = "true"
			}
		}
		bad = append(bad, differences("debugfs", tree{path: w}, tree{path: got}, noExcuse)...)
	}
	return bad, nil
}

// debugfsText is how debugfs prints an attribute's name: bytes that are no
// ASCII in octal, or all of them in hexadecimal when these are many.
func debugfsText(s string) string {
	prints := func(c byte) bool { return c >= ' ' && c < 127 }
	printable := 0
	for _, c := range []byte(s) {
		if prints(c) {
			printable++
		}
	}
	if printable <= len(s)*7/8 {
		return fmt.Sprintf("% x ", s)
	}
	var b strings.Builder
	for _, c := range []byte(s) {
		if prints(c) {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "\\%03o", c)
		}
	}
	return b.String()
}

// debugfsView reads what the command stat printed; dumped is the contents.
func debugfsView(text, dumped string) (view, error) {
	head, owner, mtime := debugfsHead.FindStringSubmatch(text), debugfsOwner.FindStringSubmatch(text), debugfsMtime.FindStringSubmatch(text)
	if head == nil || owner == nil || mtime == nil {
		return nil, fmt.Errorf("debugfs printed what this test does not read: %s", text)
	}
	mode, err := strconv.ParseUint(head[3], 8, 32)
	if err != nil {
		return nil, err
	}
	v := view{
		"mode":  modeWord(uint32(mode) | debugfsKinds[head[2]]),
		"owner": debugfsID(owner[1]) + ":" + debugfsID(owner[2]),
		"mtime": debugfsTime(mtime[1], mtime[2]),
	}
	switch head[2] {
	case "regular":
		f, err := os.Open(dumped)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		v["size"] = owner[3]
		v["sum"], err = sumOf(f)
		return v, err
	case "symlink":
		if fast := debugfsTarget.FindStringSubmatch(text); fast != nil {
			v["target"] = fast[1] // it lies in the inode: there are no contents
			return v, nil
		}
		target, err := os.ReadFile(dumped)
		v["target"] = string(target)
		return v, err
	case "character special", "block special":
		var major, minor int
		if _, err := fmt.Sscanf(strings.Join(debugfsDevice.FindStringSubmatch(text)[1:], " "), "%d %d", &major, &minor); err != nil {
			return nil, fmt.Errorf("debugfs printed no device: %s", text)
		}
		v["device"] = fmt.Sprintf("%d:%d", major, minor)
	}
	return v, nil
}

// debugfsID reads an id, which debugfs prints with a sign.
func debugfsID(s string) string {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		return s
	}
	return fmt.Sprint(uint32(n))
}

// debugfsTime reads the two words of a time: seconds with a sign, and two more
// of their bits below the nanoseconds.
func debugfsTime(seconds, extra string) string {
	word := func(s string) uint32 {
		n, err := strconv.ParseUint(s, 16, 32)
		if err != nil {
			panic(err) // the expression matched hexadecimal digits
		}
		return uint32(n)
	}
	x := word(extra)
	return stamp(int64(int32(word(seconds)))+int64(x&3)<<32, int64(x>>2))
}
