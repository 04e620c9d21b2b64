package cubelet_test

import (
	"errors"
	"net"
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"github.com/paddock-dev/paddock/internal/cubelet"
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
