package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	stdlog "log"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/cubelet/images"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/host"
	"github.com/paddock-dev/paddock/internal/hostpb"
	"github.com/paddock-dev/paddock/internal/master"
	"github.com/paddock-dev/paddock/internal/platform/auth"
	"github.com/paddock-dev/paddock/internal/platform/config"
	"github.com/paddock-dev/paddock/internal/platform/serve"
	"github.com/paddock-dev/paddock/internal/platform/telemetry"
	"github.com/paddock-dev/paddock/internal/store"
	"github.com/paddock-dev/paddock/internal/templatecenter"
)

const (
	apiKey    = "e2b_0123456789abcdef0123456789abcdef01234567"
	roleToken = "shared by master and centre"
	hostToken = "shared by master and hosts"
	readyTime = 5 * time.Minute // of one job
)

// rig is everything but the hosts' runtimes.
type rig struct {
	dir   string
	cfg   config.Config
	api   *cubeapi.Client
	ref   string // of the image, without its tag
	stop  context.CancelFunc
	run   sync.WaitGroup
	close func() error

	centre *prometheus.Registry
	hosts  map[string]*benchHost
	image  string // version 1 in the store
	size   int64
}

func newRig(ctx context.Context, o options) (_ *rig, err error) {
	dir, err := os.MkdirTemp(o.work, "paddock-bench-")
	if err != nil {
		return nil, err
	}
	r := &rig{dir: dir, hosts: map[string]*benchHost{}, centre: telemetry.NewRegistry()}
	var undo []func() error
	undo = append(undo, func() error { return os.RemoveAll(dir) })
	r.close = func() error {
		var errs []error
		for i := len(undo) - 1; i >= 0; i-- {
			errs = append(errs, undo[i]())
		}
		return errors.Join(errs...)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.close())
		}
	}()
	images, err := r.openRegistry(ctx)
	if err != nil {
		return nil, err
	}
	undo = append(undo, func() error { images.Close(); return nil })
	guest, err := filepath.Abs(filepath.Join(o.bin, "paddock-guest"))
	if err != nil {
		return nil, err
	}
	front, centre := newFront(), newFront()
	undo = append(undo, func() error { front.Close(); centre.Close(); return nil })
	c := config.Default()
	c.DataDir = dir
	c.Auth = config.Auth{APIKey: apiKey, CallbackToken: roleToken, HostToken: hostToken}
	c.Master.Addr, c.Master.DownloadBaseURL, c.Master.TemplateCenterAddr = front.URL, centre.URL, centre.URL // as on one machine
	c.Cubelet.HeartbeatInterval, c.Master.HostStaleAfter = 500*time.Millisecond, 5*time.Second
	c.TemplateCenter.WorkDir, c.TemplateCenter.CacheDir, c.ArtifactStore.Dir = filepath.Join(dir, "work"), filepath.Join(dir, "layers"), filepath.Join(dir, "artifacts")
	c.TemplateCenter.GuestBinary = guest
	r.cfg, r.api = c, cubeapi.NewClient(front.URL, apiKey)
	db, err := store.Open(ctx, store.Options{DSN: "sqlite:" + filepath.Join(dir, "paddock.db"), AutoMigrate: true})
	if err != nil {
		return nil, err
	}
	undo = append(undo, db.Close)
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	m, err := master.New(master.Deps{Config: c, Store: db, Log: log, Metrics: telemetry.NewRegistry()})
	if err != nil {
		return nil, err
	}
	tc, err := templatecenter.Open(templatecenter.Deps{Config: c, Store: db, Log: log, Metrics: r.centre})
	if err != nil {
		return nil, err
	}
	front.show(m.Handler())
	centre.show(tc.Handler())
	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	r.stop = stop
	failed := make(chan error, 2)
	r.run.Go(func() { failed <- m.Run(running) })
	r.run.Go(func() { failed <- tc.Run(running) })
	undo = append(undo, func() error {
		for _, h := range r.hosts {
			h.end()
		}
		stop()
		r.run.Wait()
		return errors.Join(<-failed, <-failed)
	})
	return r, nil
}

// openRegistry makes the images and a registry that has them.
func (r *rig) openRegistry(ctx context.Context) (*httptest.Server, error) {
	blobs := filepath.Join(r.dir, "registry")
	manifests, err := makeImages(blobs)
	if err != nil {
		return nil, err
	}
	s := httptest.NewServer(registry.New(registry.Logger(stdlog.New(io.Discard, "", 0)), registry.WithBlobHandler(registry.NewDiskBlobHandler(blobs))))
	r.ref = strings.TrimPrefix(s.URL, "http://") + "/bench"
	for i, b := range manifests {
		q, err := http.NewRequestWithContext(ctx, http.MethodPut, fmt.Sprintf("%s/v2/bench/manifests/v%d", s.URL, i+1), bytes.NewReader(b))
		if err != nil {
			return s, err
		}
		q.Header.Set("Content-Type", manifestType)
		answer, err := http.DefaultClient.Do(q)
		if err != nil {
			return s, err
		}
		if answer.StatusCode != http.StatusCreated {
			err = fmt.Errorf("registry: HTTP %d", answer.StatusCode)
		}
		if err := errors.Join(err, answer.Body.Close()); err != nil {
			return s, err
		}
	}
	return s, nil
}

// front is an address whose handler is made after it.
type front struct {
	*httptest.Server
	h atomic.Pointer[http.Handler]
}

func newFront() *front {
	f := &front{}
	f.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) { (*f.h.Load()).ServeHTTP(w, q) }))
	return f
}

func (f *front) show(h http.Handler) { f.h.Store(&h) }

// benchHost is a host without a runtime: its store of images, its gRPC face and
// its reports.
type benchHost struct {
	hostpb.UnimplementedHostServiceServer
	name   string
	dir    string
	store  *images.Store
	server *grpc.Server
	port   int
	wire   atomic.Int64
	took   atomic.Int64 // the last call, in nanoseconds
	gone   context.CancelFunc
}

func (h *benchHost) EnsureArtifact(ctx context.Context, q *hostpb.EnsureArtifactRequest) (*hostpb.EnsureArtifactResponse, error) {
	began := time.Now()
	got, err := h.store.Ensure(ctx, q)
	h.took.Store(int64(time.Since(began)))
	h.wire.Add(got.Wire)
	return &hostpb.EnsureArtifactResponse{FetchedBytes: got.Wire, PeerBytes: got.Peers, LocalBytes: got.Local}, serve.GRPCError(err)
}

func (h *benchHost) ReadArtifact(q *hostpb.ReadArtifactRequest, s hostpb.HostService_ReadArtifactServer) error {
	return serve.GRPCError(h.store.Read(q, func(b []byte) error { return s.Send(&hostpb.ReadArtifactResponse{Data: b}) }))
}

func (h *benchHost) RemoveArtifact(_ context.Context, q *hostpb.RemoveArtifactRequest) (*hostpb.RemoveArtifactResponse, error) {
	return &hostpb.RemoveArtifactResponse{}, serve.GRPCError(h.store.Remove(q.GetArtifactId()))
}

func (h *benchHost) ListSandboxes(context.Context, *hostpb.ListSandboxesRequest) (*hostpb.ListSandboxesResponse, error) {
	return &hostpb.ListSandboxesResponse{}, nil
}

// host starts a host that has nothing. A failure shows when it is waited for.
func (r *rig) host(name string) *benchHost {
	h := &benchHost{name: name, dir: filepath.Join(r.dir, name)}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err == nil {
		err = os.Mkdir(h.dir, 0o700)
	}
	if err != nil {
		panic(err) // the machine is unfit for any of this
	}
	h.port = l.Addr().(*net.TCPAddr).Port //nolint:forcetypeassert // it listens on TCP
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	h.store = images.New(images.Options{Dir: h.dir, Log: log, Token: hostToken})
	h.server = serve.NewGRPC("bench", log, prometheus.NewRegistry(),
		grpc.ChainUnaryInterceptor(auth.UnaryServer(hostToken, false)), grpc.ChainStreamInterceptor(auth.StreamServer(hostToken, false)))
	hostpb.RegisterHostServiceServer(h.server, h)
	ctx, gone := context.WithCancel(context.Background())
	h.gone = gone
	r.hosts[name] = h
	r.run.Go(func() { _ = h.server.Serve(l) }) // until Stop
	r.run.Go(func() { r.beat(ctx, h) })
	return h
}

// beat reports until the host is gone.
func (r *rig) beat(ctx context.Context, h *benchHost) {
	tell := cubeapi.NewHostClient(r.cfg.Master.Addr, hostToken)
	room := host.Resources{MilliCPU: 1000, MemBytes: 1 << 30, DiskBytes: 1 << 40, Slots: 1}
	registered := false
	tick := time.NewTicker(r.cfg.Cubelet.HeartbeatInterval)
	defer tick.Stop()
	for {
		if !registered {
			registered = tell.Register(ctx, cubeapi.HostRegisterRequest{NodeID: h.name, HostIP: "127.0.0.1", GRPCPort: h.port, InstanceType: r.cfg.Cubelet.InstanceType, Capacity: room, Allocatable: room}) == nil
		}
		if ids, err := h.store.List(); err == nil && registered {
			registered = tell.Report(ctx, host.ID(h.name), cubeapi.HostStatusRequest{Ready: true, Artifacts: ids}) == nil
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// await waits until the master counts with a host.
func (r *rig) await(ctx context.Context, h *benchHost) error {
	return until(ctx, "host "+h.name, func() (bool, error) {
		shown, err := r.api.Host(ctx, h.name)
		return err == nil && shown.Health == string(host.Healthy), nil
	})
}

func (h *benchHost) end() {
	h.gone()
	h.server.Stop()
	h.store.Wait()
}

// drop takes a host and its files away for ever.
func (r *rig) drop(ctx context.Context, h *benchHost) error {
	h.end()
	delete(r.hosts, h.name)
	err := until(ctx, "the end of host "+h.name, func() (bool, error) {
		err := r.api.RemoveHost(ctx, h.name, true)
		return err == nil, ignoreConflict(err) // it was heard of a moment ago
	})
	return errors.Join(err, os.RemoveAll(h.dir))
}

func ignoreConflict(err error) error {
	if errors.Is(err, fault.StateConflict) {
		return nil
	}
	return err
}

// ready makes a template of a version of the image and waits until it is ready
// on the hosts.
func (r *rig) ready(ctx context.Context, version int, on ...*benchHost) error {
	var scope []string
	for _, h := range on {
		if err := r.await(ctx, h); err != nil {
			return err
		}
		scope = append(scope, h.name)
	}
	j, err := r.api.FromImage(ctx, cubeapi.FromImageRequest{SourceImageRef: fmt.Sprintf("%s:v%d", r.ref, version), WritableLayerSize: "64Mi", DistributionScope: scope})
	if err != nil {
		return err
	}
	id := j.JobID
	err = until(ctx, "template", func() (bool, error) {
		if j, err = r.api.Job(ctx, id); err != nil {
			return false, err
		}
		if j.Status == cubeapi.StatusFailed {
			return false, errors.New(j.ErrorMessage)
		}
		return j.Status == cubeapi.StatusReady, nil
	})
	if err == nil && j.ReadyNodeCount != len(on) {
		err = fmt.Errorf("%d of %d hosts are ready", j.ReadyNodeCount, len(on))
	}
	if err == nil && version == 1 {
		r.image, r.size = filepath.Join(r.cfg.ArtifactStore.Dir, j.ArtifactID+".ext4"), j.Artifact.Ext4SizeBytes
	}
	return err
}

func until(ctx context.Context, what string, ok func() (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, readyTime)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		if done, err := ok(); done || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s did not come: %w", what, ctx.Err())
		case <-tick.C:
		}
	}
}

// served returns the bytes that the template centre has sent to hosts.
func (r *rig) served() (float64, error) {
	all, err := r.centre.Gather()
	if err != nil {
		return 0, err
	}
	for _, family := range all {
		if family.GetName() != "paddock_artifact_bytes_total" {
			continue
		}
		for _, m := range family.GetMetric() {
			if m.GetLabel()[0].GetValue() == "served" {
				return m.GetCounter().GetValue(), nil
			}
		}
	}
	return 0, errors.New("the template centre does not count what it sends")
}

// settle waits until the disk is idle: nobody pays for what another left in the
// page cache.
func (r *rig) settle() error {
	f, err := os.Open(r.dir)
	if err != nil {
		return err
	}
	return errors.Join(unix.Syncfs(int(f.Fd())), f.Close())
}
