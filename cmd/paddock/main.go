// Command paddock is every role of the system, and its command line.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/paddock-dev/paddock/internal/fault"
)

// version is set by the build.
var version = "dev"

// sameWish is for how long further signals are the first one's echo.
const sameWish = time.Second

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// The first signal asks to stop. What comes right behind it is the same wish,
	// as timeout(1) sends it twice; later, with the handler gone, one kills.
	context.AfterFunc(ctx, func() { time.AfterFunc(sameWish, stop) })
	os.Exit(run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// exitStatus is a command's own status, to be passed on as it is.
type exitStatus int

func (e exitStatus) Error() string { return fmt.Sprintf("exit status %d", int(e)) }

// run is the whole program, so that a test can be it. It returns the exit
// status: that of the failure's class.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	a := &app{stdin: stdin, stdout: stdout, stderr: stderr}
	root := a.root()
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := root.ExecuteContext(ctx)
	var own exitStatus
	switch {
	case err == nil:
		return 0
	case errors.As(err, &own):
		return int(own)
	}
	a.showError(err)
	return fault.Of(err).Class.Exit
}
