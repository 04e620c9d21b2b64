// Package guest is the agent inside a sandbox: the processes and files that
// its API shows are those of the sandbox itself.
//
// It speaks the envd protocol of the E2B clients: Connect RPC for processes
// and the file system, plain HTTP for the bytes of files. It runs as the
// sandbox's first process, so it also reaps orphans. The sandbox is the
// boundary, not this program: a caller with the token may do what root inside
// may. It must stay small, since every sandbox carries one, it must never hold
// output that nobody reads, and it must never mount anything.
package guest

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"connectrpc.com/connect"

	"github.com/paddock-dev/paddock/internal/envdpb"
	"github.com/paddock-dev/paddock/internal/fault"
)

// Port is where the guest listens.
const Port = 49983

// Version is the envd version that clients are told: they enable features by
// it.
const Version = "0.6.4"

const (
	maxMessage = 16 << 20        // bytes of one RPC message
	graceful   = 3 * time.Second // from SIGTERM to SIGKILL at the end
	endBound   = time.Second     // from SIGKILL to giving up
)

// Deps is what a guest is made of.
type Deps struct {
	Log *slog.Logger
	// DefaultUser is who runs what names no user; empty means root.
	DefaultUser string
	// DefaultWorkdir is where processes start; empty means the user's home.
	DefaultWorkdir string
	// Environ is the environment that every process begins with.
	Environ []string
	// Root is where etc/passwd and etc/group are found; empty means /.
	Root string
	// Init: this guest is the first process of its sandbox.
	Init bool
	// Output gets what the processes of StartTag say; nil: nothing does.
	Output io.Writer
	// SetClock sets the clock of the sandbox; nil: the clock is the host's.
	SetClock func(time.Time) error
}

// Guest is the agent. Make one with New; it is safe for concurrent use.
type Guest struct {
	log      *slog.Logger
	settings *settings
	users    accounts
	reaper   *reaper
	table    *table
	watchers *watchers
	meter    *meter
	life     *life
	record   *recorder // nil: nothing is recorded
	root     string
	init     bool
	setClock func(time.Time) error
	work     sync.WaitGroup // what pumps output and waits for processes
}

// New returns a guest that has not begun anything.
func New(d Deps) (*Guest, error) {
	if d.Log == nil {
		return nil, fault.New(fault.Bug, "a guest needs a log")
	}
	if d.DefaultUser == "" {
		d.DefaultUser = "root"
	}
	if d.Root == "" {
		d.Root = "/"
	}
	g := &Guest{
		log:      d.Log,
		settings: newSettings(d),
		users:    accounts{passwd: filepath.Join(d.Root, "etc/passwd"), group: filepath.Join(d.Root, "etc/group")},
		reaper:   newReaper(d.Init),
		table:    newTable(),
		watchers: newWatchers(),
		meter:    newMeter(),
		life:     newLife(),
		root:     d.Root,
		init:     d.Init,
		setClock: d.SetClock,
	}
	if d.Output != nil {
		g.record = newRecorder(d.Output)
	}
	return g, nil
}

// Run reaps orphans until ctx ends. Then every process is asked to stop, and
// ended after a bound.
func (g *Guest) Run(ctx context.Context) error {
	reaping, stop := context.WithCancel(context.WithoutCancel(ctx))
	done := make(chan struct{})
	go func() {
		defer close(done)
		g.reaper.run(reaping)
	}()
	<-ctx.Done()
	g.watchers.closeAll()
	err := g.endAll()
	stop()
	<-done
	return err
}

// endAll ends every process within graceful and endBound.
func (g *Guest) endAll() error {
	g.table.close()
	for _, step := range []struct {
		signal syscall.Signal
		wait   time.Duration
	}{{syscall.SIGTERM, graceful}, {syscall.SIGKILL, endBound}} {
		g.signalAll(step.signal)
		if g.waitAll(step.wait) {
			break
		}
	}
	if g.init {
		g.signalAll(syscall.SIGKILL) // orphans are nobody's children to wait for
	}
	g.table.release()
	ended := make(chan struct{})
	go func() { g.work.Wait(); close(ended) }()
	select {
	case <-ended:
		return nil
	case <-time.After(endBound):
		return errors.New("processes or readers of their output are left")
	}
}

// waitAll waits until every child ended, at most for d, and tells whether.
func (g *Guest) waitAll(d time.Duration) bool {
	bounded, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	for _, c := range g.reaper.living() {
		select {
		case <-c.done:
		case <-bounded.Done():
			return false
		}
	}
	return true
}

// signalAll signals all that runs in the sandbox, or all that this guest
// started if it is not the first process.
func (g *Guest) signalAll(s syscall.Signal) {
	if g.init {
		_ = syscall.Kill(-1, s) // nobody to signal is no failure
		return
	}
	for _, c := range g.reaper.living() {
		_ = g.reaper.signal(c, s) // one that ended meanwhile needs none
	}
}

// Handler serves the API.
func (g *Guest) Handler() http.Handler {
	options := []connect.HandlerOption{
		connect.WithInterceptors(translate{}),
		connect.WithReadMaxBytes(maxMessage),
		// Both sides share a machine: compressing answers would cost more than it saves.
		connect.WithCompressMinBytes(1 << 40),
	}
	mux := http.NewServeMux()
	mux.Handle(envdpb.NewProcessHandler(&processAPI{g: g}, options...))
	mux.Handle(envdpb.NewFilesystemHandler(&fileAPI{g: g}, options...))
	mux.HandleFunc("GET /health", g.health)
	mux.HandleFunc("POST /init", g.configure)
	mux.HandleFunc("GET /files", g.download)
	mux.HandleFunc("POST /files", g.upload)
	mux.HandleFunc("POST /files/compose", g.compose)
	mux.HandleFunc("GET /archive", g.pack)
	mux.HandleFunc("PUT /archive", g.unpack)
	mux.HandleFunc("GET /envs", g.envs)
	mux.HandleFunc("GET /metrics", g.metrics)
	return crossOrigin(g.life.within(g.admit(mux)))
}

func (g *Guest) health(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(http.StatusNoContent)
}

// owner returns the account that a request names, or the default one.
func (g *Guest) owner(name string) (account, error) {
	if name == "" {
		name = g.settings.current().user
	}
	return g.users.find(name)
}

// Environ is os.Environ with a PATH when there is none.
func Environ() []string {
	if os.Getenv("PATH") != "" {
		return os.Environ()
	}
	return append(os.Environ(), "PATH="+defaultPath)
}
