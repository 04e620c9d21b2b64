package main

import (
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
)

// terminal says the size of its terminal, and again whenever it changes. It
// ends when the terminal hangs up.
func terminal() error {
	changed := make(chan os.Signal, 1)
	signal.Notify(changed, syscall.SIGWINCH)
	for {
		size, err := unix.IoctlGetWinsize(0, unix.TIOCGWINSZ)
		if err != nil {
			return err
		}
		fmt.Println(size.Col, size.Row)
		<-changed
	}
}
