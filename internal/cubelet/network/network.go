// Package network gives each sandbox a network namespace of its own, joined to
// the host by one veth pair. A sandbox can answer its host, and reach what its
// policy permits: by default nothing, and never the host, a neighbour or the
// control plane. It must never touch an interface, namespace or table that does
// not carry this cubelet's tag; it turns the machine's forwarding on when the
// first policy needs it.
package network

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

const (
	namespaces = "/run/netns"
	inside     = "eth0" // the sandbox's end of its veth pair
	firstSlot  = 2      // the subnet's own address and the gateway come before
)

// ErrTaken is what Create answers when another program took the address since
// Reserve chose it.
var ErrTaken = errors.New("the address was taken meanwhile")

// Pool hands out the networks of one cubelet. It is safe for concurrent use.
type Pool struct {
	tag     string
	subnet  netip.Prefix
	control []uint16

	changing sync.Mutex // held while rules are changed
	tracked  *tracked

	mu    sync.Mutex
	used  map[int]bool
	ruled map[int]bool // those that may have rules of their own
	next  int          // where the search goes on, so that addresses are not reused at once
}

// Network is one sandbox's.
type Network struct {
	Slot int    `json:"slot"`
	Name string `json:"name"` // of the namespace
	IP   string `json:"ip"`   // of the sandbox
}

// Path returns the file that stands for the namespace.
func (n Network) Path() string { return filepath.Join(namespaces, n.Name) }

// New returns the pool of the cubelet with that tag, four hex digits. Each
// sandbox has one address of subnet; the first one is the gateway of them all.
// The control ports are those of the control plane on machines like this one:
// no policy opens them in a private network.
func New(tag string, subnet netip.Prefix, control ...uint16) *Pool {
	return &Pool{tag: tag, subnet: subnet.Masked(), control: control, tracked: newTracked(endConnections), used: map[int]bool{}, ruled: map[int]bool{}, next: firstSlot}
}

func (p *Pool) slots() int           { return 1<<(32-p.subnet.Bits()) - 1 } // the last is the broadcast address
func (p *Pool) link(slot int) string { return fmt.Sprintf("%s%d", p.prefix(), slot) }
func (p *Pool) prefix() string       { return "pd" + p.tag + "-" }
func (p *Pool) table() string        { return "paddock_" + p.tag }
func (p *Pool) name(id string) string {
	return "paddock-" + p.tag + "-" + id
}

func (p *Pool) address(slot int) netip.Addr {
	b := p.subnet.Addr().As4()
	n := uint32(b[0])<<24 | uint32(b[1])<<16 | uint32(b[2])<<8 | uint32(b[3])
	n += uint32(slot)
	return netip.AddrFrom4([4]byte{byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)})
}

// Gateway is the host's address as every sandbox knows it.
func (p *Pool) Gateway() netip.Addr { return p.address(1) }

// Reserve chooses a free network for the sandbox called id. Nothing is made.
// Addresses that this machine reaches by another way are left alone: they
// belong to its network, or to another cubelet's sandboxes.
func (p *Pool) Reserve(id string) (Network, error) {
	taken, err := p.taken()
	if err != nil {
		return Network{}, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	last := p.slots()
	for range last - firstSlot {
		slot := p.next
		if p.next++; p.next >= last {
			p.next = firstSlot
		}
		ip := p.address(slot)
		if p.used[slot] || covers(taken, ip) {
			continue
		}
		p.used[slot] = true
		return Network{Slot: slot, Name: p.name(id), IP: ip.String()}, nil
	}
	return Network{}, fmt.Errorf("no address is free in %s: all are used by sandboxes or reached by other routes of this machine", p.subnet)
}

// Adopt marks a network as used that was made by an earlier process.
func (p *Pool) Adopt(n Network) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.used[n.Slot] = true
}

// Release gives back an address of which nothing was made.
func (p *Pool) Release(n Network) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.used, n.Slot)
}

// taken returns where the machine's routes lead, as far as that is in the
// subnet. The default route is no claim.
func (p *Pool) taken() ([]netip.Prefix, error) {
	routes, err := netlink.RouteList(nil, netlink.FAMILY_V4)
	if err != nil {
		return nil, fmt.Errorf("routes of this machine: %w", err)
	}
	var list []netip.Prefix
	for _, r := range routes {
		if r.Dst == nil {
			continue
		}
		ip, ok := netip.AddrFromSlice(r.Dst.IP.To4())
		bits, _ := r.Dst.Mask.Size()
		if d := netip.PrefixFrom(ip, bits); ok && bits > 0 && d.Overlaps(p.subnet) {
			list = append(list, d)
		}
	}
	return list, nil
}

func covers(list []netip.Prefix, ip netip.Addr) bool {
	for _, d := range list {
		if d.Contains(ip) {
			return true
		}
	}
	return false
}

// Create makes what Reserve chose, or answers ErrTaken.
func (p *Pool) Create(n Network) error {
	if err := makeNamespace(n.Name); err != nil {
		return fmt.Errorf("network namespace %s: %w", n.Name, err)
	}
	handle, err := netns.GetFromName(n.Name)
	if err != nil {
		return err
	}
	defer handle.Close()
	ip, gateway := p.address(n.Slot), p.Gateway()
	hostMAC, mac := hardware(0x02, ip), hardware(0x06, ip)
	veth := &netlink.Veth{
		LinkAttrs: netlink.LinkAttrs{Name: p.link(n.Slot), HardwareAddr: hostMAC},
		PeerName:  inside, PeerHardwareAddr: mac, PeerNamespace: netlink.NsFd(handle),
	}
	if err := netlink.LinkAdd(veth); err != nil {
		return fmt.Errorf("veth %s: %w", veth.Name, err)
	}
	if err := p.hostEnd(veth.Name, ip, mac); err != nil {
		return fmt.Errorf("veth %s: %w", veth.Name, err)
	}
	h, err := netlink.NewHandleAt(handle)
	if err != nil {
		return err
	}
	defer h.Close()
	if err := sandboxEnd(h, ip, gateway, hostMAC); err != nil {
		return fmt.Errorf("sandbox's end of veth %s: %w", veth.Name, err)
	}
	return nil
}

// hostEnd sets the host's end up. The route is the claim of the address: the
// kernel keeps one per destination, and it goes with the link.
func (p *Pool) hostEnd(name string, ip netip.Addr, mac net.HardwareAddr) error {
	// The link is for one address of IPv4 and nothing else.
	if err := os.WriteFile("/proc/sys/net/ipv6/conf/"+name+"/disable_ipv6", []byte("1"), 0o644); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	link, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	if err := netlink.AddrAdd(link, &netlink.Addr{IPNet: single(p.Gateway())}); err != nil {
		return fmt.Errorf("address %s: %w", p.Gateway(), err)
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return err
	}
	err = netlink.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: single(ip), Scope: netlink.SCOPE_LINK, Src: p.Gateway().AsSlice()})
	if errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("%s: %w", ip, ErrTaken)
	}
	if err != nil {
		return fmt.Errorf("route to %s: %w", ip, err)
	}
	return permanent(nil, link, ip, mac)
}

// sandboxEnd sets the other end up. The runtime takes all of it over at its
// start, the neighbour too, so that no answer waits for one to be found.
func sandboxEnd(h *netlink.Handle, ip, gateway netip.Addr, hostMAC net.HardwareAddr) error {
	lo, err := h.LinkByName("lo")
	if err == nil {
		err = h.LinkSetUp(lo)
	}
	if err != nil {
		return fmt.Errorf("lo: %w", err)
	}
	link, err := h.LinkByName(inside)
	if err != nil {
		return err
	}
	if err := h.AddrAdd(link, &netlink.Addr{IPNet: single(ip)}); err != nil {
		return fmt.Errorf("address %s: %w", ip, err)
	}
	if err := h.LinkSetUp(link); err != nil {
		return err
	}
	if err := h.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: single(gateway), Scope: netlink.SCOPE_LINK}); err != nil {
		return fmt.Errorf("route to the gateway: %w", err)
	}
	if err := h.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Gw: gateway.AsSlice()}); err != nil {
		return fmt.Errorf("default route: %w", err)
	}
	return permanent(h, link, gateway, hostMAC)
}

func permanent(h *netlink.Handle, link netlink.Link, ip netip.Addr, mac net.HardwareAddr) error {
	if h == nil {
		h = &netlink.Handle{}
	}
	n := &netlink.Neigh{LinkIndex: link.Attrs().Index, Family: netlink.FAMILY_V4, State: netlink.NUD_PERMANENT, IP: ip.AsSlice(), HardwareAddr: mac}
	if err := h.NeighSet(n); err != nil {
		return fmt.Errorf("neighbour %s: %w", ip, err)
	}
	return nil
}

// hardware returns the hardware address of one end of the pair that leads to
// ip; kind makes it a local one.
func hardware(kind byte, ip netip.Addr) net.HardwareAddr {
	b := ip.As4()
	return net.HardwareAddr{kind, 0x70, b[0], b[1], b[2], b[3]}
}

func single(ip netip.Addr) *net.IPNet {
	return &net.IPNet{IP: ip.AsSlice(), Mask: net.CIDRMask(32, 32)}
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
	if err := bindNew(path); err != nil {
		return errors.Join(err, os.Remove(path))
	}
	return nil
}

// bindNew makes a namespace and mounts it at path.
func bindNew(path string) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			// The first thread does not end before the process, so it would keep
			// the namespace. While it waits here, another is taken.
			defer runtime.UnlockOSThread()
			done <- bindNew(path)
			return
		}
		// Not unlocked: the thread leaves the host's namespace and must end with
		// this goroutine.
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			done <- err
			return
		}
		// Of the thread's own namespace: before any link is there.
		if err := os.WriteFile("/proc/sys/net/ipv6/conf/default/disable_ipv6", []byte("1"), 0o644); err != nil && !errors.Is(err, os.ErrNotExist) {
			done <- err
			return
		}
		done <- unix.Mount(fmt.Sprintf("/proc/self/task/%d/ns/net", unix.Gettid()), path, "none", unix.MS_BIND, "")
	}()
	return <-done
}

// shutTime bounds the removal of one sandbox's rules.
const shutTime = 15 * time.Second

// Destroy removes a network, whole or half made, with its rules, and frees its
// address.
func (p *Pool) Destroy(n Network) error {
	if err := p.remove(n.Name, p.link(n.Slot)); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), shutTime)
	defer cancel()
	if err := p.shut(ctx, n); err != nil {
		return err
	}
	p.Release(n)
	return nil
}

func (p *Pool) remove(name, link string) error {
	if l, err := netlink.LinkByName(link); err == nil {
		if err := netlink.LinkDel(l); err != nil && !errors.Is(err, unix.ENODEV) {
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
			if err := netlink.LinkDel(l); err != nil && !errors.Is(err, unix.ENODEV) {
				errs = append(errs, fmt.Errorf("veth %s: %w", name, err))
			}
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
