package cubelet

import (
	"context"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"testing"

	"github.com/paddock-dev/paddock/internal/cubelet/network"
	"github.com/paddock-dev/paddock/internal/hostpb"
	"github.com/paddock-dev/paddock/internal/platform/config"
)

// AnswerHTTP is one try of an HTTP probe.
var AnswerHTTP = answerHTTP

// Networks is where sandboxes get their networks from.
func (c *Cubelet) Networks() *network.Pool { return c.nets }

// ResolvConf is what the resolver of a sandbox is told.
func ResolvConf(y *network.Policy, servers []string, machine string) string {
	e := entry{Egress: y}
	if servers != nil {
		e.Resolver = &resolver{Servers: servers}
	}
	return resolvConf(e, machine)
}

// Control is where the control plane of a host listens.
func Control(ctx context.Context, port int, master, templateCentre string) (ports []uint16, plane []netip.AddrPort) {
	c := &Cubelet{port: port, log: slog.New(slog.DiscardHandler)}
	c.cfg.Master = config.Master{Addr: master, TemplateCenterAddr: templateCentre}
	return c.control(ctx)
}

// Guest speaks to the guest at an address.
type Guest struct{ c *guestClient }

func NewGuest(base string) Guest { return Guest{clientAt(base, "")} }

func (g Guest) Ready(ctx context.Context) error { return g.c.health(ctx, longestPatience) }
func (g Guest) Init(ctx context.Context) error  { return g.c.init(ctx, settings{}) }

// Launch starts the template's own process and stops listening.
func (g Guest) Launch(ctx context.Context, command ...string) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	events, err := g.c.launch(ctx, command)
	if err != nil {
		return err
	}
	return events.Close()
}

func (g Guest) Answer(ctx context.Context, command ...string) error { return g.c.answer(ctx, command) }

// Read reads a file.
func (g Guest) Read(ctx context.Context, path string) error {
	body, _, err := g.c.read(ctx, guestFiles, path, "")
	if err != nil {
		return err
	}
	return body.Close()
}

// OpenRevisions returns where the count in a file goes on.
func OpenRevisions(path string) (int64, error) {
	k, err := openCounter(path)
	return k.next, err
}

// Revision is the count of the host.
func (c *Cubelet) Revision() int64 { return c.truth().GetRevision() }

// SpendRevisions leaves the host those that only ends may have.
func (c *Cubelet) SpendRevisions() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.count.next = c.count.limit - revisionSpare + 1
}

// Warm is how many sandboxes wait for a create.
func (c *Cubelet) Warm() (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, one := range c.warmCountLocked() {
		n += one
	}
	return n
}

// WarmKernels are the processes of those that wait, start or end.
func (c *Cubelet) WarmKernels() (pids []int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, w := range c.warm.all {
		pids = append(pids, w.entry.Kernel.PID)
	}
	return pids
}

// Truth is what the host says that it holds.
func (c *Cubelet) Truth() *hostpb.HostTruth { return c.truth() }

// TakeAddresses leaves the host none for another sandbox until release.
func (c *Cubelet) TakeAddresses() (release func()) {
	var all []network.Network
	for {
		n, err := c.nets.Reserve("taken")
		if err != nil {
			break
		}
		all = append(all, n)
	}
	return func() {
		for _, n := range all {
			c.nets.Release(n)
		}
	}
}

// TrimLog is what keeps logs short.
func TrimLog(path string) error { return trimLog(path) }

// LogText is what of a log is shown.
func LogText(tb testing.TB, path string, tail int) string {
	tb.Helper()
	f, err := os.Open(path)
	if err != nil {
		tb.Fatal(err)
	}
	defer f.Close()
	at, err := logStart(f, tail)
	if err != nil {
		tb.Fatal(err)
	}
	b, err := io.ReadAll(io.NewSectionReader(f, at, 1<<40))
	if err != nil {
		tb.Fatal(err)
	}
	return string(b)
}
