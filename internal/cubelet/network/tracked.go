package network

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// tracked is what the kernel knows of connections. Each look reads all of the
// machine's, so one goes at a time, and for everybody who waits at its begin.
type tracked struct {
	turn chan struct{} // holds one token
	end  func([]netip.Addr) error

	mu      sync.Mutex
	waiting []*leaver
}

// leaver is an address whose connections must end.
type leaver struct {
	ip   netip.Addr
	done bool // only with the turn
	err  error
}

func newTracked(end func([]netip.Addr) error) *tracked {
	t := &tracked{turn: make(chan struct{}, 1), end: end}
	t.turn <- struct{}{}
	return t
}

// forget ends the connections that began at ip, as far as the kernel tracks
// them.
func (t *tracked) forget(ctx context.Context, ip netip.Addr) error {
	mine := &leaver{ip: ip}
	t.mu.Lock()
	t.waiting = append(t.waiting, mine)
	t.mu.Unlock()
	select {
	case <-t.turn:
	case <-ctx.Done():
		return fmt.Errorf("connections of %s: %w", ip, ctx.Err()) // who has the turn next ends them all the same
	}
	defer func() { t.turn <- struct{}{} }()
	if mine.done {
		return mine.err
	}
	t.mu.Lock()
	all := t.waiting
	t.waiting = nil
	t.mu.Unlock()
	ips := make([]netip.Addr, len(all))
	for i, l := range all {
		ips[i] = l.ip
	}
	err := t.end(ips)
	if err != nil {
		err = fmt.Errorf("connections of %d sandboxes, of %s too: %w", len(ips), ip, err)
	}
	for _, l := range all {
		l.done, l.err = true, err
	}
	return err
}

const (
	answerTime = 5 * time.Second // for one answer of the kernel
	looks      = 3               // at a table that changes meanwhile
)

// endConnections ends those that began at one of ips.
func endConnections(ips []netip.Addr) error {
	filters := make([]netlink.CustomConntrackFilter, len(ips))
	for i, ip := range ips {
		from := &netlink.ConntrackFilter{}
		if err := from.AddIP(netlink.ConntrackOrigSrcIP, ip.AsSlice()); err != nil {
			return err
		}
		filters[i] = from
	}
	h, err := netlink.NewHandle(unix.NETLINK_NETFILTER)
	if untracked(err) {
		return nil
	}
	if err != nil {
		return err
	}
	defer h.Close()
	if err := h.SetSocketTimeout(answerTime); err != nil {
		return err
	}
	for range looks {
		if _, err = h.ConntrackDeleteFilters(netlink.ConntrackTable, unix.AF_INET, filters...); !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	if untracked(err) {
		return nil
	}
	return err
}

// untracked reports whether err says that this kernel tracks no connections.
func untracked(err error) bool {
	for _, e := range []error{unix.ENOENT, unix.EOPNOTSUPP, unix.EPROTONOSUPPORT, unix.EAFNOSUPPORT} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}
