package cubelet_test

import (
	"context"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/paddock-dev/paddock/internal/cubelet"
	"github.com/paddock-dev/paddock/internal/sandbox"
)

// A sandbox that answers a probe with 101 and keeps the connection holds nobody
// up: what follows is not read.
func TestAProbeReadsNothingAfterASwitch(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		b := make([]byte, 4096)
		if _, err := c.Read(b); err != nil { // what answers before it is asked is another fault
			return
		}
		_, _ = c.Write([]byte("HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n"))
		for {
			if _, err := c.Read(b); err != nil {
				return // the probe has gone
			}
		}
	}()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	err = cubelet.AnswerHTTP(ctx, l.Addr().String(), &sandbox.HTTPProbe{Path: "/"})
	if err == nil || !strings.Contains(err.Error(), "101") || ctx.Err() != nil {
		t.Errorf("got %v", err)
	}
	select {
	case <-closed:
	case <-ctx.Done():
		t.Error("the connection is still open")
	}
}
