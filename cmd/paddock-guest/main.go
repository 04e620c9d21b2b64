// Command paddock-guest is the agent inside every sandbox: its first process,
// and the server of its API.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/paddock-dev/paddock/internal/guest"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "paddock-guest:", err)
		os.Exit(1)
	}
}

// run serves until ctx ends. What follows -- in args is started beside the API.
func run(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("paddock-guest", flag.ContinueOnError)
	port := flags.Int("port", guest.Port, "port of the API")
	if err := flags.Parse(args); err != nil {
		return err
	}
	log := slog.New(slog.NewJSONHandler(os.Stderr, nil))
	g := guest.New(log)
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", fmt.Sprintf(":%d", *port))
	if err != nil {
		return err
	}
	if command := flags.Args(); len(command) > 0 {
		if err := g.StartCommand(command); err != nil {
			// The API stays: it is how somebody finds out.
			log.Error("start command failed", slog.String("error", err.Error()))
		}
	}
	server := &http.Server{Handler: g.Handler(), ReadHeaderTimeout: 10 * time.Second, Protocols: new(http.Protocols)}
	server.Protocols.SetHTTP1(true)
	server.Protocols.SetUnencryptedHTTP2(true)
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(listener) }()
	reaped := make(chan error, 1)
	go func() { reaped <- g.Run(ctx) }()
	select {
	case err = <-failed:
	case err = <-reaped:
	}
	if closed := server.Close(); err == nil || errors.Is(err, http.ErrServerClosed) {
		err = closed
	}
	return err
}
