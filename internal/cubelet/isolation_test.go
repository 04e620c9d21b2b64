package cubelet_test

import (
	"net"
	"testing"
)

func TestSandboxReachesNobody(t *testing.T) {
	w := newWorld(t).open().hold()
	a, b := w.create(request()), w.create(request())
	l, err := net.Listen("tcp", "0.0.0.0:0")
	check(t, err)
	defer l.Close()
	_, port, err := net.SplitHostPort(l.Addr().String())
	check(t, err)
	targets := map[string]string{
		"its neighbour's guest": net.JoinHostPort(b.GetIp(), "49983"),
		"the host's gateway":    net.JoinHostPort("10.230.0.1", port),
		"metadata":              "169.254.169.254:80",
		"the world":             "192.0.2.200:80",
	}
	for _, ip := range hostAddresses(t) {
		targets["the host at "+ip] = net.JoinHostPort(ip, port)
	}
	for name, address := range targets {
		if got := w.exec(a.GetSandboxId(), "probe", "dial", address); got.out != "refused\n" {
			t.Errorf("%s: %+v, want refused at once", name, got)
		}
	}
	if got := w.exec(a.GetSandboxId(), "probe", "dial", "127.0.0.1:49983"); got.out != "connected\n" {
		t.Errorf("its own guest: %+v", got)
	}
	// The host reaches it.
	c, err := net.Dial("tcp", net.JoinHostPort(a.GetIp(), "49983"))
	check(t, err)
	check(t, c.Close())
}

// hostAddresses returns the machine's own addresses of IPv4 that are no
// loopback.
func hostAddresses(t *testing.T) []string {
	addresses, err := net.InterfaceAddrs()
	check(t, err)
	var list []string
	for _, a := range addresses {
		if n, ok := a.(*net.IPNet); ok && n.IP.To4() != nil && !n.IP.IsLoopback() {
			list = append(list, n.IP.String())
		}
	}
	return list
}
