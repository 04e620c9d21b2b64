package main

import (
	"errors"
	"os"
	"strconv"
	"syscall"
	"time"
)

// change makes one of each kind of change to the image of the suite.
func change() error {
	return errors.Join(
		os.Remove("/etc/group"),
		os.RemoveAll("/root/sub"),
		os.Mkdir("/root/sub", 0o711),
		os.WriteFile("/root/sub/new", []byte("x"), 0o640),
		os.Symlink("new", "/root/sub/link"),
		os.Link("/root/sub/new", "/root/sub/hard"),
		os.Chmod("/etc/passwd", 0o600),
		os.Chown("/etc/passwd", 1000, 1000),
		syscall.Mkfifo("/root/pipe", 0o600),
	)
}

// count counts for ever, in its memory, and writes how far it has come.
func count(path string) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	for n := 1; ; n++ {
		if _, err := f.WriteAt([]byte(strconv.Itoa(n)), 0); err != nil {
			return err
		}
		time.Sleep(5 * time.Millisecond)
	}
}
