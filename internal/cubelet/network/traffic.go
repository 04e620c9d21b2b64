package network

import "github.com/vishvananda/netlink"

// Traffic is how many bytes came to a sandbox and went from it since its
// network was made; 0 when it has none.
func (p *Pool) Traffic(n Network) (received, sent int64) {
	link, err := netlink.LinkByName(p.link(n.Slot))
	if err != nil || link.Attrs().Statistics == nil {
		return 0, 0
	}
	// The host's end: what it sends is what the sandbox receives.
	s := link.Attrs().Statistics
	return int64(s.TxBytes), int64(s.RxBytes)
}
