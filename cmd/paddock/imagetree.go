package main

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/rootfs/ext4"
)

const (
	maxFollowed = 40   // symlinks on the way to a file, as in Linux
	maxNames    = 4096 // names on that way
)

// walkTo finds what path leads to as a process inside would: symlinks are
// followed, and ".." of the root is the root. It returns the path without them.
func walkTo(im *ext4.Image, path string) (string, ext4.Stat, error) {
	var at []string
	var s ext4.Stat
	followed, steps := 0, 0
	for rest := path; rest != ""; {
		var one string
		one, rest, _ = strings.Cut(rest, "/")
		if steps++; steps > maxNames {
			return "", s, fault.New(fault.InvalidInput, "%.200q: over %d names lead to it", path, maxNames)
		}
		switch one {
		case "", ".":
			continue
		case "..":
			at = at[:max(len(at)-1, 0)]
			continue
		}
		next := strings.Join(append(at, one), "/")
		var err error
		if s, err = im.Lookup(next); err != nil {
			return "", s, notInside(err, path)
		}
		if s.Mode&unix.S_IFMT != unix.S_IFLNK {
			at = append(at, one)
			continue
		}
		if followed++; followed > maxFollowed {
			return "", s, fault.New(fault.InvalidInput, "%.200q: over %d symlinks lead to it", path, maxFollowed)
		}
		target, err := im.Target(s)
		if err != nil {
			return "", s, err
		}
		if strings.HasPrefix(target, "/") {
			at = at[:0]
		}
		rest = target + "/" + rest
	}
	real := strings.Join(at, "/")
	s, err := im.Lookup(real)
	return real, s, err
}

func notInside(err error, path string) error {
	if !errors.Is(err, fault.FileNotFound) {
		return err
	}
	return &fault.Error{
		Code: fault.FileNotFound, Message: fmt.Sprintf("%.200q", path), Cause: errors.New("the image has no such entry"),
		Remedy: "list what it has with `paddock image inspect FILE --tree`",
	}
}

// catFile writes a file's content to standard output.
func (a *app) catFile(ctx context.Context, im *ext4.Image, path string) error {
	_, s, err := walkTo(im, path)
	switch {
	case err != nil:
		return err
	case s.IsDir():
		return fault.New(fault.FileIsDirectory, "%.200q", path)
	case !s.IsRegular():
		return fault.New(fault.InvalidInput, "%.200q: it is a %s, which has no content", path, kindWord(s.Mode))
	}
	c, err := im.Contents(s)
	if err != nil {
		return err
	}
	_, err = io.Copy(a.stdout, untilDone{ctx, c.Reader()})
	return err
}

// untilDone reads until ctx ends: a sparse file can be long.
type untilDone struct {
	ctx context.Context
	r   io.Reader
}

func (u untilDone) Read(p []byte) (int, error) {
	if err := u.ctx.Err(); err != nil {
		return 0, err
	}
	return u.r.Read(p)
}

// treeEntry is one line of a listing.
type treeEntry struct {
	Path    string            `json:"path"` // from the root of the image
	Bytes   string            `json:"path_base64,omitempty"`
	Mode    string            `json:"mode"`
	Type    string            `json:"type"`
	Inode   uint32            `json:"inode"`
	Links   uint32            `json:"links"`
	UID     uint32            `json:"uid"`
	GID     uint32            `json:"gid"`
	Size    int64             `json:"size"`
	Stored  int64             `json:"stored_bytes"`
	ModTime time.Time         `json:"mtime"`
	Target  string            `json:"target,omitempty"`
	Major   uint32            `json:"major,omitempty"`
	Minor   uint32            `json:"minor,omitempty"`
	Xattrs  map[string]string `json:"xattrs,omitempty"` // values in base64

	bits uint32
}

// listTree lists the entries at and below path, each directory before what it
// holds.
func (a *app) listTree(ctx context.Context, im *ext4.Image, path string) error {
	top, _, err := walkTo(im, path)
	if err != nil {
		return err
	}
	var all []treeEntry
	err = im.Walk(ctx, func(at string, s ext4.Stat) error {
		if at != top && top != "" && !strings.HasPrefix(at, top+"/") {
			return nil
		}
		e, err := entryOf(im, at, s)
		if err == nil && a.output == "table" { // not kept: there may be millions
			_, err = fmt.Fprintln(a.stdout, e.line())
			return err
		}
		all = append(all, e)
		return err
	})
	if err != nil || a.output == "table" {
		return err
	}
	return a.show(all, nil)
}

func entryOf(im *ext4.Image, path string, s ext4.Stat) (treeEntry, error) {
	e := treeEntry{
		Path: "/" + path, Mode: fmt.Sprintf("%04o", s.Mode&0o7777), Type: kindWord(s.Mode), Inode: s.Inode, Links: s.Links, UID: s.UID, GID: s.GID,
		Size: s.Size, Stored: s.Blocks * 512, ModTime: s.Mtime.UTC(), Major: s.Major, Minor: s.Minor, bits: s.Mode,
	}
	if !utf8.ValidString(path) {
		e.Bytes = base64.StdEncoding.EncodeToString([]byte(e.Path))
	}
	var err error
	if s.Mode&unix.S_IFMT == unix.S_IFLNK {
		if e.Target, err = im.Target(s); err != nil {
			return e, err
		}
	}
	list, err := im.Xattrs(s)
	if err != nil {
		return e, err
	}
	for _, x := range list {
		if e.Xattrs == nil {
			e.Xattrs = map[string]string{}
		}
		e.Xattrs[x.Name] = base64.StdEncoding.EncodeToString(x.Value)
	}
	return e, nil
}

// line is the entry as ls -l would show it, with a plus for extended
// attributes. What a terminal might obey is quoted.
func (e treeEntry) line() string {
	size := strconv.FormatInt(e.Size, 10)
	if e.Type == "character device" || e.Type == "block device" {
		size = fmt.Sprintf("%d,%d", e.Major, e.Minor)
	}
	mark := ' '
	if len(e.Xattrs) > 0 {
		mark = '+'
	}
	text := fmt.Sprintf("%s%c %3d %5d %5d %11s %s %s", modeWord(e.bits), mark, e.Links, e.UID, e.GID, size, e.ModTime.Format("2006-01-02T15:04:05.000000000Z"), shown(e.Path))
	if e.Type == "symlink" {
		text += " -> " + shown(e.Target)
	}
	return text
}

// shown returns a name from an image as it is safe to print.
func shown(s string) string {
	if q := strconv.Quote(s); q[1:len(q)-1] != s {
		return q
	}
	return s
}

func kindWord(mode uint32) string {
	switch mode & unix.S_IFMT {
	case unix.S_IFREG:
		return "file"
	case unix.S_IFDIR:
		return "directory"
	case unix.S_IFLNK:
		return "symlink"
	case unix.S_IFCHR:
		return "character device"
	case unix.S_IFBLK:
		return "block device"
	case unix.S_IFIFO:
		return "FIFO"
	}
	return "socket"
}

// modeWord is the first column of ls -l.
func modeWord(mode uint32) string {
	kinds := map[uint32]byte{unix.S_IFREG: '-', unix.S_IFDIR: 'd', unix.S_IFLNK: 'l', unix.S_IFCHR: 'c', unix.S_IFBLK: 'b', unix.S_IFIFO: 'p', unix.S_IFSOCK: 's'}
	text := []byte(fs.FileMode(mode & 0o777).String()) // -rwxr-xr-x
	text[0] = kinds[mode&unix.S_IFMT]
	for _, special := range []struct {
		bit  uint32
		at   int
		char byte
	}{{unix.S_ISUID, 3, 's'}, {unix.S_ISGID, 6, 's'}, {unix.S_ISVTX, 9, 't'}} {
		if mode&special.bit == 0 {
			continue
		}
		if text[special.at] == '-' { // set without the right to execute
			special.char -= 'a' - 'A'
		}
		text[special.at] = special.char
	}
	return string(text)
}
