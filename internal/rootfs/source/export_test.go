package source

import (
	"context"
	"net/netip"
	"time"

	netaddress "github.com/paddock-dev/paddock/internal/platform/address"
)

// Hurry makes waiting short until the returned function is called: between
// tries, and for a silent registry as it is given.
func Hurry(idle time.Duration) (undo func()) {
	b, i, a := backoff, idleTime, answerTime
	backoff, idleTime, answerTime = time.Millisecond, idle, 10*idle
	return func() { backoff, idleTime, answerTime = b, i, a }
}

// Idle returns when a registry that is asked for a byte would have been silent
// for too long.
func Idle() { <-time.After(3 * idleTime / 2) }

// ReadManifest reads a manifest or an index, and returns all digests in it.
func ReadManifest(b []byte, served string) (kind string, digests []string, err error) {
	m, ix, err := readDocument(document{bytes: b, mediaType: servedType(served)}, Limits{}.Filled())
	switch {
	case err != nil:
		return "", nil, err
	case m != nil:
		kind, digests = "manifest", []string{m.config.digest}
		for _, l := range m.layers {
			digests = append(digests, l.digest)
		}
	case ix != nil:
		kind = "index"
		for _, e := range ix.entries {
			digests = append(digests, e.digest)
		}
		_, _, _, _ = ix.sort(platform{os: "linux", arch: "arm", variant: "v7"})
	}
	return kind, digests, nil
}

// ReadConfig reads an image's config.
func ReadConfig(b []byte) (Config, []string, error) {
	c, err := readConfig(b, Limits{}.Filled())
	return c.Config, c.diffIDs, err
}

// ReadSaved reads the manifest of a docker archive.
func ReadSaved(b []byte) error {
	_, err := readSaved(b, Limits{}.Filled())
	return err
}

// Dial connects as a registry's guard does, when requests went by a proxy.
func Dial(ctx context.Context, registry, proxy, address string) error {
	g := newGuard(registry, nil)
	g.proxies[hostOf(proxy)] = true
	c, err := g.dial(ctx, "tcp", address)
	if err != nil {
		return err
	}
	return c.Close()
}

// IsPrivate tells whether an address is not of the world.
func IsPrivate(ip netip.Addr) bool { return netaddress.Private(ip) }
