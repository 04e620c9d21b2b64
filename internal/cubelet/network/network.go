// Package network gives each sandbox a network namespace of its own, joined to
// the host by one veth pair. A sandbox can answer its host and nothing more: it
// cannot begin a connection to the host, to a neighbour or to the world. It
// must never touch an interface, namespace or table that does not carry this
// cubelet's tag.
package network

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"text/template"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

const namespaces = "/run/netns"

// Pool hands out the networks of one cubelet. It is safe for concurrent use.
type Pool struct {
	tag    string
	subnet netip.Prefix

	mu   sync.Mutex
	used map[int]bool
}

// Network is one sandbox's.
type Network struct {
	Slot int    `json:"slot"`
	Name string `json:"name"` // of the namespace
	IP   string `json:"ip"`   // of the sandbox
}

// Path returns the file that stands for the namespace.
func (n Network) Path() string { return filepath.Join(namespaces, n.Name) }

// New returns the pool of the cubelet with that tag, four hex digits. Addresses
// come from subnet in blocks of four: network, host, sandbox, broadcast.
func New(tag string, subnet netip.Prefix) *Pool {
	return &Pool{tag: tag, subnet: subnet.Masked(), used: map[int]bool{}}
}

func (p *Pool) slots() int           { return 1 << (32 - p.subnet.Bits() - 2) }
func (p *Pool) link(slot int) string { return fmt.Sprintf("%s%d", p.prefix(), slot) }
func (p *Pool) prefix() string       { return "pd" + p.tag + "-" }
func (p *Pool) table() string        { return "paddock_" + p.tag }

func (p *Pool) address(slot, of int) netip.Addr {
	b := p.subnet.Addr().As4()
	n := uint32(b[0])<<24 | uint32(b[1])<<16 | uint32(b[2])<<8 | uint32(b[3])
	n += uint32(slot*4 + of)
	return netip.AddrFrom4([4]byte{byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)})
}

var rules = template.Must(template.New("nft").Parse(`
table inet {{.Table}}
delete table inet {{.Table}}
table inet {{.Table}} {
	chain input {
		type filter hook input priority 0; policy accept;
		iifname "{{.Links}}*" ct state established,related accept
		iifname "{{.Links}}*" drop
	}
	chain forward {
		type filter hook forward priority 0; policy accept;
		iifname "{{.Links}}*" drop
		oifname "{{.Links}}*" drop
	}
}
`))

// Open lays the rules that shut sandboxes in.
func (p *Pool) Open(ctx context.Context) error {
	var script bytes.Buffer
	if err := rules.Execute(&script, map[string]string{"Table": p.table(), "Links": p.prefix()}); err != nil {
		return err
	}
	return nft(ctx, &script, "-f", "-")
}

// Close removes the rules.
func (p *Pool) Close(ctx context.Context) error {
	return nft(ctx, strings.NewReader(""), "delete", "table", "inet", p.table())
}

func nft(ctx context.Context, in interface{ Read([]byte) (int, error) }, args ...string) error {
	c := exec.CommandContext(ctx, "nft", args...)
	c.Stdin = in
	if out, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("nft %s: %w: %s", strings.Join(args, " "), err, bytes.TrimSpace(out))
	}
	return nil
}

// Reserve chooses a free network for the sandbox called id. Nothing is made.
func (p *Pool) Reserve(id string) (Network, error) {
	taken, err := p.taken()
	if err != nil {
		return Network{}, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for slot := range p.slots() {
		if p.used[slot] || taken[p.address(slot, 1)] {
			continue
		}
		p.used[slot] = true
		return Network{Slot: slot, Name: p.name(id), IP: p.address(slot, 2).String()}, nil
	}
	return Network{}, fmt.Errorf("no free address in %s", p.subnet)
}

func (p *Pool) name(id string) string { return "paddock-" + p.tag + "-" + id }

// taken is the addresses of this machine: another program, or another cubelet,
// may use a part of the subnet.
func (p *Pool) taken() (map[netip.Addr]bool, error) {
	list, err := netlink.AddrList(nil, netlink.FAMILY_V4)
	if err != nil {
		return nil, fmt.Errorf("addresses of this machine: %w", err)
	}
	taken := map[netip.Addr]bool{}
	for _, a := range list {
		if ip, ok := netip.AddrFromSlice(a.IP.To4()); ok {
			taken[ip] = true
		}
	}
	return taken, nil
}

// Adopt marks a network as used that was made by an earlier process.
func (p *Pool) Adopt(n Network) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.used[n.Slot] = true
}

// Create makes what Reserve chose.
func (p *Pool) Create(n Network) error {
	if err := makeNamespace(n.Name); err != nil {
		return fmt.Errorf("network namespace %s: %w", n.Name, err)
	}
	handle, err := netns.GetFromName(n.Name)
	if err != nil {
		return err
	}
	defer handle.Close()
	hostIP, ip := p.address(n.Slot, 1), p.address(n.Slot, 2)
	veth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: p.link(n.Slot)}, PeerName: "eth0", PeerNamespace: netlink.NsFd(handle)}
	if err := netlink.LinkAdd(veth); err != nil {
		return fmt.Errorf("veth %s: %w", veth.Name, err)
	}
	if err := raise(nil, veth.Name, hostIP); err != nil {
		return err
	}
	inside, err := netlink.NewHandleAt(handle)
	if err != nil {
		return err
	}
	defer inside.Close()
	if err := raise(inside, "lo", netip.Addr{}); err != nil {
		return err
	}
	if err := raise(inside, "eth0", ip); err != nil {
		return err
	}
	return inside.RouteAdd(&netlink.Route{Gw: hostIP.AsSlice()})
}

// raise gives a link its address and sets it up; h nil is the host's own
// namespace.
func raise(h *netlink.Handle, name string, ip netip.Addr) error {
	if h == nil {
		h = &netlink.Handle{}
	}
	link, err := h.LinkByName(name)
	if err != nil {
		return fmt.Errorf("link %s: %w", name, err)
	}
	if ip.IsValid() {
		if err := h.AddrAdd(link, &netlink.Addr{IPNet: &net.IPNet{IP: ip.AsSlice(), Mask: net.CIDRMask(30, 32)}}); err != nil {
			return fmt.Errorf("address %s of %s: %w", ip, name, err)
		}
	}
	return h.LinkSetUp(link)
}

// makeNamespace makes a named namespace without leaving a thread in it.
func makeNamespace(name string) error {
	if err := os.MkdirAll(namespaces, 0o755); err != nil {
		return err
	}
	path := filepath.Join(namespaces, name)
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDONLY, 0o444)
	if err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	done := make(chan error, 1)
	go func() {
		// Never unlocked: the thread has left the host's namespace and must end
		// with this goroutine.
		runtime.LockOSThread()
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			done <- err
			return
		}
		done <- unix.Mount(fmt.Sprintf("/proc/self/task/%d/ns/net", unix.Gettid()), path, "none", unix.MS_BIND, "")
	}()
	if err := <-done; err != nil {
		return errors.Join(err, os.Remove(path))
	}
	return nil
}

// Destroy removes a network, whole or half made, and frees its addresses.
func (p *Pool) Destroy(n Network) error {
	err := p.remove(n.Name, p.link(n.Slot))
	if err == nil {
		p.mu.Lock()
		delete(p.used, n.Slot)
		p.mu.Unlock()
	}
	return err
}

func (p *Pool) remove(name, link string) error {
	if l, err := netlink.LinkByName(link); err == nil {
		if err := netlink.LinkDel(l); err != nil {
			return fmt.Errorf("veth %s: %w", link, err)
		}
	} else if gone := (netlink.LinkNotFoundError{}); !errors.As(err, &gone) {
		return fmt.Errorf("veth %s: %w", link, err)
	}
	return removeNamespace(name)
}

func removeNamespace(name string) error {
	path := filepath.Join(namespaces, name)
	if err := unix.Unmount(path, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("network namespace %s: %w", name, err)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// Sweep removes every namespace and link with this cubelet's tag that no
// sandbox in keep has.
func (p *Pool) Sweep(keep []Network) error {
	names, links := map[string]bool{}, map[string]bool{}
	for _, n := range keep {
		names[n.Name], links[p.link(n.Slot)] = true, true
	}
	var errs []error
	list, err := netlink.LinkList()
	if err != nil {
		return err
	}
	for _, l := range list {
		if name := l.Attrs().Name; strings.HasPrefix(name, p.prefix()) && !links[name] {
			errs = append(errs, netlink.LinkDel(l))
		}
	}
	entries, err := os.ReadDir(namespaces)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), p.name("")) && !names[e.Name()] {
			errs = append(errs, removeNamespace(e.Name()))
		}
	}
	return errors.Join(errs...)
}
