package proxy

import (
	"net"
	"net/http"
	"net/netip"
	"regexp"
	"strconv"
	"strings"

	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/sandbox"
)

// The headers by which clients without names of their own say where they want
// to: those of E2B's clients.
const (
	headerSandbox = "E2b-Sandbox-Id"
	headerPort    = "E2b-Sandbox-Port"
)

// target is a port of a sandbox.
type target struct {
	id   string
	port int
}

// named is the first label of a host name: port, sandbox, and what older
// clients put behind it.
var named = regexp.MustCompile(`^([0-9]{1,5})-([a-z0-9]+)(-[a-z0-9]+)?$`)

// targetOf reads where a request is to go: from its host name, or, when that is
// no sandbox's, from the two headers. A name that names a sandbox counts, so that
// no header leads a browser elsewhere.
func targetOf(r *http.Request, domain string) (target, error) {
	host := r.Host
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	if label, ok := strings.CutSuffix(host, "."+domain); ok && !strings.Contains(label, ".") && label != "sandbox" {
		m := named.FindStringSubmatch(label)
		if m == nil {
			return target{}, fault.New(fault.InvalidInput, "host %.128q: must be PORT-SANDBOX.%s", r.Host, domain)
		}
		return checked(m[2], m[1])
	}
	if _, err := netip.ParseAddr(strings.Trim(host, "[]")); err != nil && host != "localhost" && host != domain && host != "sandbox."+domain {
		return target{}, fault.New(fault.InvalidInput, "host %.128q is not served here: must be PORT-SANDBOX.%s, or localhost with headers %s and %s", r.Host, domain, headerSandbox, headerPort)
	}
	id, port := r.Header.Values(headerSandbox), r.Header.Values(headerPort)
	if len(id) != 1 || len(port) != 1 {
		return target{}, fault.New(fault.InvalidInput, "missing header: %s and %s, each once, or a host name PORT-SANDBOX.%s", headerSandbox, headerPort, domain)
	}
	first, _, _ := strings.Cut(id[0], "-")
	return checked(first, port[0])
}

func checked(id, port string) (t target, err error) {
	t.id = id
	if t.port, err = strconv.Atoi(port); err != nil || t.port < 1 || t.port > 65535 {
		return t, fault.New(fault.InvalidInput, "port %.16q: must be 1 to 65535", port)
	}
	return t, sandbox.CheckID(id)
}
