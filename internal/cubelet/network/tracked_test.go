package network

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// The kernel's table is read for all who wait at once, and never twice at a
// time.
func TestOneLookForAllWhoWait(t *testing.T) {
	begun, goOn := make(chan struct{}, 1), make(chan struct{})
	var looks [][]netip.Addr // one at a time, or the race detector tells
	wrong := errors.New("wrong")
	tr := newTracked(func(ips []netip.Addr) error {
		looks = append(looks, ips)
		if len(looks) == 1 {
			begun <- struct{}{}
			<-goOn
			return nil
		}
		return wrong
	})
	ip := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}) }
	var all sync.WaitGroup
	all.Go(func() {
		if err := tr.forget(t.Context(), ip(0)); err != nil {
			t.Error(err)
		}
	})
	<-begun
	late, leave := context.WithCancel(t.Context())
	leave()
	if err := tr.forget(late, ip(1)); !errors.Is(err, context.Canceled) {
		t.Errorf("one that waits no more: %v", err)
	}
	for i := 2; i < 20; i++ {
		all.Go(func() {
			if err := tr.forget(t.Context(), ip(i)); !errors.Is(err, wrong) {
				t.Errorf("%d: %v", i, err)
			}
		})
	}
	waiting := func() int {
		tr.mu.Lock()
		defer tr.mu.Unlock()
		return len(tr.waiting)
	}
	for late := time.Now().Add(time.Minute); waiting() < 19 && time.Now().Before(late); {
		<-time.After(time.Millisecond)
	}
	close(goOn)
	all.Wait()
	if len(looks) != 2 || len(looks[1]) != 19 || !slices.Contains(looks[1], ip(1)) {
		t.Errorf("%d looks: %v", len(looks), looks)
	}
}

func TestAKernelThatTracksNothing(t *testing.T) {
	for _, err := range []error{unix.ENOENT, unix.EOPNOTSUPP, unix.EPROTONOSUPPORT, unix.EAFNOSUPPORT} {
		if !untracked(fmt.Errorf("dump: %w", err)) {
			t.Errorf("%v is an error", err)
		}
	}
	if untracked(nil) || untracked(unix.EPERM) || untracked(unix.EAGAIN) {
		t.Error("any error passes")
	}
}
