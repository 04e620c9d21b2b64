package network_test

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"github.com/paddock-dev/paddock/internal/cubelet/network"
)

const (
	public   = "198.51.100.2" // of the world; all of its addresses lead to the same servers
	other    = "203.0.113.9"
	lan      = "10.77.0.2"
	lanToo   = "10.77.0.3"
	metadata = "169.254.169.254"
	uplink   = "198.51.100.1" // of the host
	control  = 8089
)

// land is a host in a network namespace of its own, and a world beyond it. The
// test's goroutine stays on a thread inside the host.
type land struct{ host, world netns.NsHandle }

func newLand(t *testing.T) land {
	t.Helper()
	runtime.LockOSThread()
	before, err := netns.Get()
	check(t, err)
	t.Cleanup(func() { check(t, netns.Set(before)); check(t, before.Close()); runtime.UnlockOSThread() })
	var l land
	l.world, err = netns.New()
	check(t, err)
	l.host, err = netns.New()
	check(t, err)
	t.Cleanup(func() { check(t, l.world.Close()); check(t, l.host.Close()) })
	check(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "up"}, PeerName: "down", PeerNamespace: netlink.NsFd(l.world)}))
	here, err := netlink.NewHandleAt(l.host)
	check(t, err)
	defer here.Close()
	there, err := netlink.NewHandleAt(l.world)
	check(t, err)
	defer there.Close()
	dress(t, here, "up", uplink+"/24")
	dress(t, there, "down", public+"/24", other+"/32", lan+"/32", lanToo+"/32", metadata+"/32")
	check(t, netlink.RouteAdd(&netlink.Route{Gw: net.ParseIP(public)}))
	for _, port := range []string{"7000", "8089"} {
		serve(t, l.world, port)
		serve(t, l.host, port)
	}
	return l
}

func dress(t *testing.T, h *netlink.Handle, link string, addresses ...string) {
	t.Helper()
	for _, name := range []string{"lo", link} {
		l, err := h.LinkByName(name)
		check(t, err)
		check(t, h.LinkSetUp(l))
	}
	l, err := h.LinkByName(link)
	check(t, err)
	for _, a := range addresses {
		addr, err := netlink.ParseAddr(a)
		check(t, err)
		check(t, h.AddrAdd(l, addr))
	}
}

// inside runs do on a thread of the namespace.
func inside(ns netns.NsHandle, do func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before, err := netns.Get()
	if err != nil {
		return err
	}
	if err := netns.Set(ns); err != nil {
		return err
	}
	return errors.Join(do(), netns.Set(before), before.Close())
}

// serve tells each caller its address.
func serve(t *testing.T, ns netns.NsHandle, port string) {
	t.Helper()
	var l net.Listener
	check(t, inside(ns, func() (err error) { l, err = net.Listen("tcp4", ":"+port); return err }))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(c, c.RemoteAddr().(*net.TCPAddr).IP.String()) //nolint:forcetypeassert // TCP
			_ = c.Close()
		}
	}()
	t.Cleanup(func() { _ = l.Close(); <-ended })
}

// ask returns how a sandbox is seen by whoever it calls; empty when it does not
// get through.
func ask(t *testing.T, n network.Network, addr string) (seen string) {
	t.Helper()
	ns, err := netns.GetFromPath(n.Path())
	check(t, err)
	defer ns.Close()
	err = inside(ns, func() error {
		c, err := net.DialTimeout("tcp4", addr, 10*time.Second)
		if err != nil {
			return err
		}
		defer c.Close()
		b, err := io.ReadAll(c)
		seen = string(b)
		return err
	})
	if err == nil && seen == "" {
		t.Errorf("%s said nothing", addr)
	}
	return seen
}

func rules(t *testing.T) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "nft", "list", "ruleset").CombinedOutput()
	check(t, err)
	return string(out)
}

func made(t *testing.T, p *network.Pool, id string, y network.Policy) network.Network {
	t.Helper()
	n, err := p.Reserve(id)
	check(t, err)
	check(t, p.Create(n))
	check(t, p.Permit(t.Context(), map[network.Network]network.Policy{n: y}))
	return n
}

func list(s ...string) (all []netip.Prefix) {
	for _, p := range s {
		all = append(all, netip.MustParsePrefix(p))
	}
	return all
}

func TestASandboxReachesWhatItsPolicySays(t *testing.T) {
	newLand(t)
	p := network.New("f0b1", netip.MustParsePrefix("10.228.3.0/24"), control)
	t.Cleanup(func() { check(t, p.Sweep(nil)) })
	check(t, p.Open(t.Context()))
	check(t, os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("0"), 0o644))
	neighbour := made(t, p, "neighbour", network.Policy{Internet: true})
	ns, err := netns.GetFromPath(neighbour.Path())
	check(t, err)
	defer ns.Close()
	serve(t, ns, "7000")
	all := []string{public, other, lan, lanToo, metadata, uplink, p.Gateway().String(), neighbour.IP}
	for name, c := range map[string]struct {
		policy network.Policy
		open   []string // of all, on port 7000
	}{
		"nothing":          {network.Policy{}, nil},
		"deny alone":       {network.Policy{Deny: list("203.0.113.0/24")}, nil},
		"internet":         {network.Policy{Internet: true}, []string{public, other}},
		"internet but one": {network.Policy{Internet: true, Deny: list("203.0.113.0/24")}, []string{public}},
		"allow wins":       {network.Policy{Internet: true, Deny: list("0.0.0.0/0"), Allow: list("203.0.113.9/32")}, []string{other}},
		"allow all":        {network.Policy{Allow: list("0.0.0.0/0"), Deny: list("203.0.113.0/24")}, []string{public, other}},
		"one address":      {network.Policy{Allow: list("203.0.113.9/32")}, []string{other}},
		"overlap":          {network.Policy{Allow: list("203.0.113.9/32", "203.0.113.0/24", "203.0.113.0/24", "203.0.112.0/24")}, []string{other}},
		"one of the LAN":   {network.Policy{Allow: list("10.77.0.2/32")}, []string{lan}},
		"all of the LAN":   {network.Policy{Allow: list("10.0.0.0/8")}, []string{lan, lanToo}},
		"wider than a LAN": {network.Policy{Allow: list("0.0.0.0/1", "128.0.0.0/1")}, []string{public, other}},
		"never":            {network.Policy{Internet: true, Allow: list("169.254.0.0/16", "198.51.100.1/32", "10.228.3.0/24", "127.0.0.0/8", "0.0.0.0/0")}, []string{public, other}},
	} {
		n := made(t, p, "it", c.policy) // no subtests: they would run on other threads
		for _, to := range all {
			want := ""
			if slices.Contains(c.open, to) {
				want = uplink // as the world sees it
			}
			if got := ask(t, n, to+":7000"); got != want {
				t.Errorf("%s: %s: seen as %q, want %q", name, to, got, want)
			}
		}
		check(t, p.Destroy(n))
	}
}

// The control plane's ports are shut in private networks, where it is, and
// nowhere else.
func TestNoPolicyOpensTheControlPlane(t *testing.T) {
	newLand(t)
	p := network.New("f0b2", netip.MustParsePrefix("10.228.4.0/24"), control)
	t.Cleanup(func() { check(t, p.Sweep(nil)) })
	check(t, p.Open(t.Context()))
	n := made(t, p, "it", network.Policy{Internet: true, Allow: list(lan + "/32")})
	for addr, open := range map[string]bool{lan + ":7000": true, lan + ":8089": false, public + ":8089": true, uplink + ":8089": false} {
		if got := ask(t, n, addr); (got != "") != open {
			t.Errorf("%s: seen as %q", addr, got)
		}
	}
	// What the sandbox may reach does not lead to it.
	ns, err := netns.GetFromPath(n.Path())
	check(t, err)
	defer ns.Close()
	serve(t, ns, "7000")
	c, err := net.DialTimeout("tcp4", n.IP+":7000", 10*time.Second)
	check(t, err)
	check(t, c.Close())
}

// Where the control plane is known, no policy opens it there either.
func TestNoPolicyOpensAPublicControlPlane(t *testing.T) {
	newLand(t)
	p := network.New("f0b6", netip.MustParsePrefix("10.228.8.0/24"), control)
	t.Cleanup(func() { check(t, p.Sweep(nil)) })
	there := netip.AddrPortFrom(netip.MustParseAddr(public), control)
	check(t, p.Open(t.Context(), there, there, netip.MustParseAddrPort("[2001:db8::1]:443")))
	n := made(t, p, "it", network.Policy{Internet: true, Allow: list(public + "/32")})
	for addr, open := range map[string]bool{public + ":8089": false, public + ":7000": true, other + ":8089": true} {
		if got := ask(t, n, addr); (got != "") != open {
			t.Errorf("%s: seen as %q", addr, got)
		}
	}
}

// A restarted cubelet lays its rules anew: nothing gets out until the policies
// of the sandboxes that run are permitted again, and afterwards nothing is left.
func TestRulesOfARestart(t *testing.T) {
	newLand(t)
	subnet := netip.MustParsePrefix("10.228.5.0/24")
	first := network.New("f0b3", subnet)
	t.Cleanup(func() { check(t, first.Sweep(nil)) })
	check(t, first.Open(t.Context()))
	empty := rules(t)
	open := network.Policy{Internet: true, Allow: list(lan + "/32"), Deny: list("192.0.2.0/24")}
	n, shut := made(t, first, "it", open), made(t, first, "shut", network.Policy{})

	second := network.New("f0b3", subnet)
	second.Adopt(n)
	second.Adopt(shut)
	check(t, second.Open(t.Context()))
	if got := ask(t, n, public+":7000"); got != "" {
		t.Errorf("before it is permitted: seen as %q", got)
	}
	policies := map[network.Network]network.Policy{n: open, shut: {}}
	check(t, second.Permit(t.Context(), policies))
	check(t, second.Permit(t.Context(), policies)) // again
	if got := ask(t, n, public+":7000"); got != uplink {
		t.Errorf("after it is permitted: seen as %q", got)
	}
	check(t, second.Destroy(n))
	check(t, second.Destroy(n)) // again
	check(t, second.Destroy(shut))
	if left := rules(t); left != empty {
		t.Errorf("left:\n%s\nit was:\n%s", left, empty)
	}
	check(t, second.Close(t.Context()))
	if left := rules(t); strings.Contains(left, "f0b3") {
		t.Errorf("left:\n%s", left)
	}
}

// Whoever has an address next is not heard on connections of whoever had it
// before.
func TestConnectionsAreNotInherited(t *testing.T) {
	l := newLand(t)
	p := network.New("f0b4", netip.MustParsePrefix("10.228.6.0/29"))
	t.Cleanup(func() { check(t, p.Sweep(nil)) })
	check(t, p.Open(t.Context()))
	var world *net.UDPConn
	check(t, inside(l.world, func() (err error) {
		world, err = net.ListenUDP("udp4", &net.UDPAddr{Port: 7001})
		return err
	}))
	defer world.Close()
	heard := make(chan string, 16)
	go func() {
		defer close(heard)
		buffer := make([]byte, 64)
		for {
			n, from, err := world.ReadFromUDP(buffer)
			if err != nil {
				return
			}
			heard <- string(buffer[:n])
			_, _ = world.WriteToUDP([]byte("back"), from) // so that the connection counts as established
		}
	}()
	say := func(n network.Network, word string) (answer string) {
		ns, err := netns.GetFromPath(n.Path())
		check(t, err)
		defer ns.Close()
		check(t, inside(ns, func() error {
			c, err := net.DialUDP("udp4", &net.UDPAddr{Port: 5555}, &net.UDPAddr{IP: net.ParseIP(public), Port: 7001})
			if err != nil {
				return err
			}
			defer c.Close()
			if err := c.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
				return err
			}
			buffer := make([]byte, 64)
			if _, err := io.WriteString(c, word); err == nil {
				k, _ := c.Read(buffer) // a refusal comes here
				answer = string(buffer[:k])
			}
			return nil
		}))
		return answer
	}
	before := made(t, p, "before", network.Policy{Internet: true})
	if got := say(before, "first"); got != "back" {
		t.Fatalf("the first one hears %q", got)
	}
	check(t, p.Destroy(before))
	var after network.Network
	for after.IP != before.IP {
		if after.IP != "" {
			check(t, p.Destroy(after))
		}
		after = made(t, p, "after", network.Policy{Allow: list(other + "/32")})
	}
	if got := say(after, "second"); got != "" {
		t.Errorf("the next one hears %q", got)
	}
	check(t, world.Close())
	for word := range heard {
		if word != "first" {
			t.Errorf("the world heard %q", word)
		}
	}
}

// An address that is not the sandbox's own gets it nowhere.
func TestNobodySpeaksForAnother(t *testing.T) {
	l := newLand(t)
	p := network.New("f0b5", netip.MustParsePrefix("10.228.7.0/24"))
	t.Cleanup(func() { check(t, p.Sweep(nil)) })
	check(t, p.Open(t.Context()))
	n := made(t, p, "it", network.Policy{Internet: true})
	ns, err := netns.GetFromPath(n.Path())
	check(t, err)
	defer ns.Close()
	h, err := netlink.NewHandleAt(ns)
	check(t, err)
	defer h.Close()
	eth, err := h.LinkByName("eth0")
	check(t, err)
	fake, err := netlink.ParseAddr("10.228.7.99/32")
	check(t, err)
	check(t, h.AddrAdd(eth, fake))
	var world *net.UDPConn
	check(t, inside(l.world, func() (err error) {
		world, err = net.ListenUDP("udp4", &net.UDPAddr{Port: 7001})
		return err
	}))
	defer world.Close()
	check(t, world.SetDeadline(time.Now().Add(20*time.Second)))
	say := func(from net.IP, word string) error {
		return inside(ns, func() error {
			c, err := net.DialUDP("udp4", &net.UDPAddr{IP: from}, &net.UDPAddr{IP: net.ParseIP(public), Port: 7001})
			if err != nil {
				return err
			}
			defer c.Close()
			_, err = io.WriteString(c, word)
			return err
		})
	}
	check(t, say(fake.IP, "foreign"))
	check(t, say(net.ParseIP(n.IP), "own"))
	buffer := make([]byte, 64)
	k, _, err := world.ReadFromUDP(buffer)
	check(t, err)
	if got := string(buffer[:k]); got != "own" {
		t.Errorf("the world heard %q", got)
	}
}

// What clouds serve to their machines, and networks that are not of the
// internet, are not opened by a policy that opens all of it.
func TestWhatIsNotOfTheInternet(t *testing.T) {
	all := network.Policy{Internet: true, Allow: list("0.0.0.0/0")}
	for addr, c := range map[string]struct{ internet, named bool }{
		"168.63.129.16":   {false, false}, // Azure
		"192.0.0.192":     {false, false}, // Oracle's cloud
		"100.100.100.200": {false, false}, // Alibaba's cloud
		"169.254.169.254": {false, false},
		"127.0.0.1":       {false, false},
		"255.255.255.255": {false, false},
		"240.0.0.1":       {false, false},
		"192.88.99.1":     {false, false},
		"198.18.0.1":      {false, true},
		"198.19.255.1":    {false, true},
		"100.64.0.1":      {false, true},
		"10.0.0.1":        {false, true},
		"168.63.129.17":   {true, true},
		"192.0.1.1":       {true, true},
		"198.20.0.1":      {true, true},
		"192.31.196.1":    {true, true}, // of the registry, and reachable by all
	} {
		ip := netip.MustParseAddr(addr)
		named := network.Policy{Allow: list(addr + "/32")}
		if all.Reaches(ip) != c.internet || (network.Policy{Internet: true}).Reaches(ip) != c.internet || named.Reaches(ip) != c.named {
			t.Errorf("%s: reached by the internet %t, by its name %t; want %t, %t", addr, all.Reaches(ip), named.Reaches(ip), c.internet, c.named)
		}
	}
}

// Words that look as if they belong to another's conversation are dropped, too.
func TestNobodyJoinsAnothersConversation(t *testing.T) {
	l := newLand(t)
	p := network.New("f0b7", netip.MustParsePrefix("10.228.10.0/24"))
	t.Cleanup(func() { check(t, p.Sweep(nil)) })
	check(t, p.Open(t.Context()))
	talks := made(t, p, "talks", network.Policy{Internet: true})
	forges := map[string]network.Network{
		"open": made(t, p, "open", network.Policy{Allow: list(other + "/32")}),
		"shut": made(t, p, "shut", network.Policy{}),
	}
	listen := func(ns netns.NsHandle) *net.UDPConn {
		var c *net.UDPConn
		check(t, inside(ns, func() (err error) {
			c, err = net.ListenUDP("udp4", &net.UDPAddr{Port: 7001})
			return err
		}))
		t.Cleanup(func() { _ = c.Close() })
		check(t, c.SetDeadline(time.Now().Add(20*time.Second)))
		return c
	}
	home, err := netns.GetFromPath(talks.Path())
	check(t, err)
	defer home.Close()
	world, host, its := listen(l.world), listen(l.host), listen(home)
	its7001 := &net.UDPAddr{IP: net.ParseIP(talks.IP), Port: 7001}
	buffer := make([]byte, 64)
	hears := func(c *net.UDPConn, want string) *net.UDPAddr {
		t.Helper()
		k, from, err := c.ReadFromUDP(buffer)
		if err != nil || string(buffer[:k]) != want {
			t.Errorf("heard %q, %v, want %q", buffer[:k], err, want)
		}
		return from
	}
	says := func(c *net.UDPConn, to *net.UDPAddr, word string) {
		t.Helper()
		_, err := c.WriteToUDP([]byte(word), to)
		check(t, err)
	}
	toWorld, toHost := &net.UDPAddr{IP: net.ParseIP(public), Port: 7001}, &net.UDPAddr{IP: net.ParseIP(p.Gateway().String()), Port: 7001}
	says(its, toWorld, "hello")
	says(world, hears(world, "hello"), "yes")
	hears(its, "yes")
	says(host, its7001, "hello")
	hears(its, "hello")
	says(its, toHost, "yes")
	hears(host, "yes")
	for name, n := range forges {
		ns, err := netns.GetFromPath(n.Path())
		check(t, err)
		h, err := netlink.NewHandleAt(ns)
		check(t, err)
		eth, err := h.LinkByName("eth0")
		check(t, err)
		fake, err := netlink.ParseAddr(talks.IP + "/32")
		check(t, err)
		check(t, h.AddrAdd(eth, fake))
		h.Close()
		check(t, inside(ns, func() error {
			for _, to := range []*net.UDPAddr{toWorld, toHost} {
				c, err := net.DialUDP("udp4", its7001, to)
				if err != nil {
					return err
				}
				if _, err := io.WriteString(c, "forged by "+name); err != nil {
					return err
				}
				if err := c.Close(); err != nil {
					return err
				}
			}
			return nil
		}))
		check(t, ns.Close())
	}
	says(its, toWorld, "own")
	says(its, toHost, "own")
	hears(world, "own")
	hears(host, "own")
}
