package cubelet_test

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"github.com/paddock-dev/paddock/internal/cubelet"
	"github.com/paddock-dev/paddock/internal/cubelet/network"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/hostpb"
)

const (
	beyond     = "203.0.113.9" // addresses of the world outside
	beyondToo  = "203.0.113.10"
	beyondPort = ":7000"
)

// newOutside makes a world beyond this machine, in a namespace of its own, with
// a server.
func newOutside(t *testing.T) {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	here, err := netns.Get()
	check(t, err)
	defer here.Close()
	there, err := netns.New() // and this thread is in it
	check(t, err)
	defer there.Close()
	l, err := net.Listen("tcp4", beyondPort)
	check(t, errors.Join(err, netns.Set(here)))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_ = c.Close()
		}
	}()
	t.Cleanup(func() { _ = l.Close(); <-ended })
	check(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "pdtest-up"}, PeerName: "down", PeerNamespace: netlink.NsFd(there)}))
	t.Cleanup(func() {
		up, err := netlink.LinkByName("pdtest-up")
		check(t, err)
		check(t, netlink.LinkDel(up))
	})
	h, err := netlink.NewHandleAt(there)
	check(t, err)
	defer h.Close()
	dress(t, &netlink.Handle{}, "pdtest-up", "203.0.113.1/24")
	dress(t, h, "down", beyond+"/24", beyondToo+"/24")
}

func dress(t *testing.T, h *netlink.Handle, name string, addresses ...string) {
	t.Helper()
	link, err := h.LinkByName(name)
	check(t, err)
	for _, a := range addresses {
		addr, err := netlink.ParseAddr(a)
		check(t, err)
		check(t, h.AddrAdd(link, addr))
	}
	check(t, h.LinkSetUp(link))
}

// ways returns the chains of sandboxes that the cubelet's rules have.
func (w *world) ways() string {
	w.t.Helper()
	out, err := exec.CommandContext(w.t.Context(), "nft", "list", "table", "inet", "paddock_"+cubelet.Tag(w.cfg.DataDir)).CombinedOutput()
	check(w.t, err)
	var chains []string
	for line := range strings.Lines(string(out)) {
		if strings.Contains(line, "chain s") && !strings.Contains(line, "chain shut") {
			chains = append(chains, strings.TrimSpace(line))
		}
	}
	return strings.Join(chains, " ")
}

// The policy of a sandbox holds as long as it lives, over a crash of the
// cubelet, and is gone with it.
func TestASandboxKeepsItsWaysOut(t *testing.T) {
	newOutside(t)
	w := newWorld(t)
	kill, died := w.openChild("")
	w.hold()
	r := request()
	r.Egress = &hostpb.Egress{Internet: true, Deny: []string{beyondToo + "/32"}}
	r.Resolver = &hostpb.Resolver{Servers: []string{beyond}, Searches: []string{"corp.example"}, Options: []string{"ndots:2"}}
	r.OpenFiles = 4096
	open, shut := w.create(r).GetSandboxId(), w.create(request()).GetSandboxId()
	look := func(when string) {
		t.Helper()
		for _, c := range []struct{ id, addr, want string }{
			{open, beyond, "connected\n"}, {open, beyondToo, "refused\n"}, {shut, beyond, "refused\n"},
		} {
			if got := w.exec(c.id, "probe", "dial", c.addr+beyondPort); got.out != c.want {
				t.Errorf("%s, %s: %+v, want %s", when, c.addr, got, c.want)
			}
		}
	}
	look("made")
	if got := w.exec(open, "probe", "cat", "/etc/resolv.conf"); got.out != "nameserver "+beyond+"\nsearch corp.example\noptions ndots:2\n" {
		t.Errorf("resolver: %+v", got)
	}
	if got := w.exec(open, "probe", "files"); got.out != "4096\n" {
		t.Errorf("open files: %+v", got)
	}
	if w.create(r).GetSandboxId() != open {
		t.Error("the same request again makes another sandbox")
	}
	r.Egress = &hostpb.Egress{Internet: true}
	if _, err := w.host.CreateSandbox(w.ctx(), r); fault.Of(fromGRPC(err)) != fault.Exists {
		t.Errorf("another policy under the same id: %v", err)
	}
	kill()
	<-died
	w.open()
	look("after a crash")
	w.delete(open)
	if left := w.ways(); left != "" {
		t.Errorf("left: %s", left)
	}
	w.delete(shut)
	w.mustBeEmpty()
}

func TestABadPolicyIsRefused(t *testing.T) {
	w := newWorld(t).open().hold()
	for _, change := range []func(*hostpb.CreateSandboxRequest){
		func(r *hostpb.CreateSandboxRequest) { r.Egress = &hostpb.Egress{Allow: []string{"example.org"}} },
		func(r *hostpb.CreateSandboxRequest) { r.Egress = &hostpb.Egress{Deny: []string{"::/0"}} },
		func(r *hostpb.CreateSandboxRequest) {
			r.Resolver = &hostpb.Resolver{Servers: []string{"10.0.0.1\nnameserver 10.0.0.2"}}
		},
	} {
		r := request()
		change(r)
		if _, err := w.host.CreateSandbox(w.ctx(), r); fault.Of(fromGRPC(err)) != fault.InvalidInput {
			t.Errorf("%v %v: %v", r.GetEgress(), r.GetResolver(), err)
		}
	}
	w.mustBeEmpty()
}

// A sandbox gets the name servers that it was made with, else those of its host
// that it may reach; without any, programs are told so at once.
func TestNameServers(t *testing.T) {
	machine := filepath.Join(t.TempDir(), "resolv.conf")
	check(t, os.WriteFile(machine, []byte("# of the host\nsearch here\nnameserver 127.0.0.53\nnameserver 10.0.0.2\nnameserver 203.0.113.53\nnameserver 2001:db8::1\nnameserver\n"), 0o600))
	none := "# This sandbox reaches no name server.\noptions attempts:1 timeout:1\n"
	nets := func(s ...string) (all []netip.Prefix) {
		for _, p := range s {
			all = append(all, netip.MustParsePrefix(p))
		}
		return all
	}
	for name, c := range map[string]struct {
		policy  *network.Policy
		servers []string
		machine string
		want    string
	}{
		"shut":               {nil, nil, machine, none},
		"its own":            {nil, []string{"192.0.2.1"}, machine, "nameserver 192.0.2.1\n"},
		"the internet":       {&network.Policy{Internet: true}, nil, machine, "nameserver 203.0.113.53\n"},
		"denied":             {&network.Policy{Internet: true, Deny: nets("203.0.113.0/24")}, nil, machine, none},
		"allowed":            {&network.Policy{Deny: nets("0.0.0.0/0"), Allow: nets("10.0.0.2/32")}, nil, machine, "nameserver 10.0.0.2\n"},
		"wider":              {&network.Policy{Allow: nets("0.0.0.0/0", "127.0.0.0/8")}, nil, machine, "nameserver 203.0.113.53\n"},
		"no file":            {&network.Policy{Internet: true}, nil, machine + ".no", none},
		"its own and open":   {&network.Policy{Internet: true}, []string{"192.0.2.1"}, machine, "nameserver 192.0.2.1\n"},
		"a policy of nought": {&network.Policy{}, nil, machine, none},
	} {
		if got := cubelet.ResolvConf(c.policy, c.servers, c.machine); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

func TestWhereTheControlPlaneIs(t *testing.T) {
	for _, c := range []struct {
		master, centre string
		ports          []uint16
		plane          []string
	}{
		{"http://192.0.2.1:8089", "http://192.0.2.2:8090", []uint16{9090, 8089, 8090}, []string{"192.0.2.1:8089", "192.0.2.2:8090"}},
		{"https://192.0.2.1", "http://192.0.2.2/base", []uint16{9090, 443, 80}, []string{"192.0.2.1:443", "192.0.2.2:80"}},
		{"https://192.0.2.1", "", []uint16{9090, 443}, []string{"192.0.2.1:443"}},
		{"http://localhost:8089", "https://[2001:db8::1]", []uint16{9090, 8089, 443}, []string{"127.0.0.1:8089"}},
		{"https://no..such", "", []uint16{9090, 443}, nil},
	} {
		ports, plane := cubelet.Control(t.Context(), 9090, c.master, c.centre)
		var got []string
		for _, p := range plane {
			got = append(got, p.String())
		}
		if !slices.Equal(ports, c.ports) || !slices.Equal(got, c.plane) {
			t.Errorf("%s and %s: %v, %v", c.master, c.centre, ports, got)
		}
	}
}

// What a sandbox may reach changes while it runs, and while it is paused; a
// connection that it may not have any more is one no longer; an older revision
// changes nothing; and a cubelet that is killed lays the last one again.
func TestASandboxGetsOtherWaysOut(t *testing.T) {
	newOutside(t)
	w := newWorld(t)
	kill, died := w.openChild("")
	w.hold()
	r := request()
	r.Egress = &hostpb.Egress{Internet: true}
	r.Resolver, r.NetworkRevision, r.Generation = nil, 1, 1
	i := w.create(r).GetSandboxId()
	update := func(revision int64, y *hostpb.Egress, ports ...int32) *hostpb.Sandbox {
		t.Helper()
		answer, err := w.host.UpdateSandbox(w.ctx(), &hostpb.UpdateSandboxRequest{SandboxId: i, Revision: revision, Egress: y, ExposedPorts: ports})
		check(t, fromGRPC(err))
		return answer.GetSandbox()
	}
	reaches := func(when string, want map[string]string) {
		t.Helper()
		for addr, out := range want {
			if got := w.exec(i, "probe", "dial", addr+beyondPort); got.out != out+"\n" {
				t.Errorf("%s, %s: %+v, want %s", when, addr, got, out)
			}
		}
	}
	reaches("at first", map[string]string{beyond: "connected", beyondToo: "connected"})
	if s := update(2, &hostpb.Egress{Allow: []string{beyond + "/32"}}, 80); s.GetNetworkRevision() != 2 {
		t.Errorf("it shows %v", s)
	}
	reaches("with one address", map[string]string{beyond: "connected", beyondToo: "refused"})
	update(1, &hostpb.Egress{Internet: true})
	reaches("after an older revision", map[string]string{beyondToo: "refused"})
	update(3, nil)
	reaches("shut", map[string]string{beyond: "refused", beyondToo: "refused"})
	if got := w.exec(i, "probe", "cat", "/etc/resolv.conf"); !strings.Contains(got.out, "reaches no name server") {
		t.Errorf("shut, its resolver: %+v", got)
	}
	check(t, w.pause(i, 2, true))
	update(4, &hostpb.Egress{Internet: true, Deny: []string{beyond + "/32"}})
	check(t, w.resume(i, 3))
	reaches("resumed", map[string]string{beyond: "refused", beyondToo: "connected"})
	kill()
	<-died
	w.open()
	if s, err := w.get(i); err != nil || s.GetNetworkRevision() != 4 {
		t.Errorf("after a crash it shows %v, %v", s, err)
	}
	reaches("after a crash", map[string]string{beyond: "refused", beyondToo: "connected"})
	w.delete(i)
	if left := w.ways(); left != "" {
		t.Errorf("left: %s", left)
	}
	if _, err := w.host.UpdateSandbox(w.ctx(), &hostpb.UpdateSandboxRequest{SandboxId: i, Revision: 9}); !errors.Is(fromGRPC(err), fault.SandboxNotFound) {
		t.Errorf("of one that is gone: %v", err)
	}
}
