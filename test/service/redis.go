package service

import (
	"context"
	"fmt"
	"io"
	"net"
	"strconv"
	"testing"
)

// Redis returns the address of a fresh Redis that keeps nothing on disk.
func Redis(tb testing.TB) (addr string) {
	tb.Helper()
	server, err := program("redis-server")
	if err != nil {
		tb.Fatal(err)
	}
	command := func(dir string, port int) ([]string, []string, error) {
		return nil, []string{server, "--bind", "127.0.0.1", "--port", strconv.Itoa(port), "--dir", dir, "--save", "", "--appendonly", "no"}, nil
	}
	return run(tb, "redis", command, func(ctx context.Context, _ string, port int) error {
		return pong(ctx, port)
	})
}

func pong(ctx context.Context, port int) error {
	c, err := (&net.Dialer{}).DialContext(ctx, "tcp", address(port))
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }() // nothing was written that could be lost
	if deadline, ok := ctx.Deadline(); ok {
		if err := c.SetDeadline(deadline); err != nil {
			return err
		}
	}
	if _, err := c.Write([]byte("PING\r\n")); err != nil {
		return err
	}
	var answer [7]byte
	if _, err := io.ReadFull(c, answer[:]); err != nil {
		return err
	}
	if string(answer[:]) != "+PONG\r\n" {
		return fmt.Errorf("redis answered %q", answer[:])
	}
	return nil
}

// run launches a server for one test and returns its address.
func run(tb testing.TB, name string, command func(dir string, port int) (env, args []string, err error), ready func(ctx context.Context, dir string, port int) error) string {
	tb.Helper()
	p, port, err := launch(name, command, ready)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := p.stop(); err != nil {
			tb.Error(err)
		}
	})
	return address(port)
}

func address(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }
