package network_test

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"strconv"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/paddock-dev/paddock/internal/cubelet/network"
)

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func pool(t *testing.T, tag, subnet string) *network.Pool {
	p := network.New(tag, netip.MustParsePrefix(subnet))
	t.Cleanup(func() { check(t, p.Sweep(nil)) })
	return p
}

func TestAddressesAreGivenOnce(t *testing.T) {
	p := pool(t, "f0a1", "10.228.0.0/29") // 8 addresses: the subnet's, the gateway, five, the last
	seen := map[string]bool{}
	for range 5 {
		n, err := p.Reserve("i")
		check(t, err)
		if seen[n.IP] || n.IP == "10.228.0.0" || n.IP == "10.228.0.1" || n.IP == "10.228.0.7" {
			t.Errorf("%s was given", n.IP)
		}
		seen[n.IP] = true
	}
	if n, err := p.Reserve("i"); err == nil {
		t.Errorf("a sixth address: %+v", n)
	}
	p.Release(network.Network{Slot: 3})
	if n, err := p.Reserve("i"); err != nil || n.IP != "10.228.0.3" {
		t.Errorf("%+v, %v", n, err)
	}
}

// Where the machine's routes lead elsewhere, no sandbox may be.
func TestRoutesOfTheMachineAreLeftAlone(t *testing.T) {
	lo, err := netlink.LinkByName("lo")
	check(t, err)
	_, lan, err := net.ParseCIDR("10.228.1.0/29")
	check(t, err)
	route := &netlink.Route{LinkIndex: lo.Attrs().Index, Dst: lan}
	check(t, netlink.RouteAdd(route))
	t.Cleanup(func() { check(t, netlink.RouteDel(route)) })
	p := pool(t, "f0a2", "10.228.1.0/28")
	for range 7 {
		n, err := p.Reserve("i")
		check(t, err)
		if ip := netip.MustParseAddr(n.IP); netip.MustParsePrefix(lan.String()).Contains(ip) {
			t.Errorf("%s is in the machine's network %s", ip, lan)
		}
	}
	if n, err := p.Reserve("i"); err == nil {
		t.Errorf("one more: %+v", n)
	}
}

// Two cubelets that chose the same address at the same moment: the second one
// learns of it before anything of its sandbox runs.
func TestAddressOfAnotherCubelet(t *testing.T) {
	a, b := pool(t, "f0a3", "10.228.2.0/24"), pool(t, "f0a4", "10.228.2.0/24")
	first, err := a.Reserve("i1")
	check(t, err)
	second, err := b.Reserve("i2")
	check(t, err)
	if first.IP != second.IP {
		t.Fatalf("%s and %s: the test needs them equal", first.IP, second.IP)
	}
	check(t, a.Create(first))
	if err := b.Create(second); !errors.Is(err, network.ErrTaken) {
		t.Errorf("the same address twice: %v", err)
	}
	check(t, b.Destroy(second))
	next, err := b.Reserve("i2")
	check(t, err)
	check(t, b.Create(next))
	// Sweeping one leaves the other's alone.
	check(t, b.Sweep(nil))
	if _, err := os.Stat(first.Path()); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(next.Path()); err == nil {
		t.Errorf("%s is left", next.Path())
	}
	check(t, a.Sweep([]network.Network{first}))
	if _, err := os.Stat(first.Path()); err != nil {
		t.Error(err)
	}
	check(t, a.Destroy(first))
	check(t, a.Destroy(first)) // again
}

// The first thread of a process does not end, so one that was sent into a
// sandbox's namespace would keep it for ever, and /proc/self would show it.
func TestThisProcessStaysWhereItIs(t *testing.T) {
	before, err := os.Readlink("/proc/self/ns/net")
	check(t, err)
	p := pool(t, "f0a9", "10.228.9.0/24")
	for i := range 20 {
		n, err := p.Reserve("stay" + strconv.Itoa(i))
		check(t, err)
		check(t, p.Create(n))
		check(t, p.Destroy(n))
	}
	after, err := os.Readlink("/proc/self/ns/net")
	check(t, err)
	if after != before {
		t.Errorf("the process is in %s, it was in %s", after, before)
	}
}
