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

	"golang.org/x/sys/unix"

	"github.com/paddock-dev/paddock/internal/guest"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	log := slog.New(slog.NewJSONHandler(os.Stderr, nil))
	if err := run(ctx, os.Args[1:], log); err != nil && !errors.Is(err, flag.ErrHelp) {
		log.Error("paddock-guest ends", slog.String("error", err.Error()))
		stop()
		os.Exit(1)
	}
}

// run serves until ctx ends. What follows -- in args is started beside the API.
func run(ctx context.Context, args []string, log *slog.Logger) error {
	flags := flag.NewFlagSet("paddock-guest", flag.ContinueOnError)
	port := flags.Int("port", guest.Port, "port of the API")
	user := flags.String("user", "", "who runs what names no user; name, uid, or either with :group (default root)")
	workdir := flags.String("workdir", "", "where processes start (default the user's home)")
	ownClock := flags.Bool("own-clock", false, "the machine's clock is this sandbox's alone: set it when /init tells the time")
	version := flags.Bool("version", false, "print the envd version that this guest speaks, and exit")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *version {
		_, err := fmt.Println(guest.Version)
		return err
	}
	// What this process holds in memory is for no process of the sandbox, not
	// even for those of its user.
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("hide the guest's memory: %w", err)
	}
	deps := guest.Deps{Log: log, DefaultUser: *user, DefaultWorkdir: *workdir, Environ: guest.Environ(), Init: os.Getpid() == 1, Output: os.Stdout}
	if *ownClock {
		deps.SetClock = setClock
	}
	g, err := guest.New(deps)
	if err != nil {
		return err
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", fmt.Sprintf(":%d", *port))
	if err != nil {
		return err
	}
	server := &http.Server{
		Handler: g.Handler(), ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 10 * time.Minute,
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelWarn), Protocols: new(http.Protocols),
	}
	server.Protocols.SetHTTP1(true)
	server.Protocols.SetUnencryptedHTTP2(true)
	running, stop := context.WithCancel(ctx)
	defer stop()
	served := make(chan error, 1)
	go func() {
		served <- server.Serve(listener)
		stop() // a guest that cannot serve is of no use
	}()
	if command := flags.Args(); len(command) > 0 {
		g.StartCommand(command)
	}
	log.Info("paddock-guest serves", slog.Int("port", *port))
	err = g.Run(running) // streams end with their processes
	closed := server.Close()
	if failed := <-served; !errors.Is(failed, http.ErrServerClosed) {
		err = errors.Join(err, failed)
	}
	return errors.Join(err, closed)
}

func setClock(now time.Time) error {
	at := unix.NsecToTimespec(now.UnixNano())
	return unix.ClockSettime(unix.CLOCK_REALTIME, &at)
}
