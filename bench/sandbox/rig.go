package main

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	stdlog "log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/platform/datadir"
)

const (
	template  = "bench"
	startTime = time.Minute // for everything that happens once
)

// rig is a whole Paddock with one template.
type rig struct {
	bin, dir string
	api      *cubeapi.Client
	up       *exec.Cmd
	images   *httptest.Server
	peers    int
	peer     *peer // the one that runs
	warm     bool  // sandboxes wait for creates
}

func newRig(ctx context.Context, bin string, warm bool) (_ *rig, err error) {
	dir, err := os.MkdirTemp("", "paddock-bench-")
	if err != nil {
		return nil, err
	}
	r := &rig{bin: bin, dir: dir, warm: warm}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.close())
		}
	}()
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	r.images = httptest.NewServer(registry.New(registry.Logger(stdlog.New(io.Discard, "", 0))))
	image := strings.TrimPrefix(r.images.URL, "http://") + "/bench:1"
	if err := push(ctx, image); err != nil {
		return nil, err
	}
	if err := r.start(ctx); err != nil {
		return nil, err
	}
	return r, r.makeTemplate(ctx, image)
}

// push makes an image of busybox and puts it where the rig's Paddock finds it.
func push(ctx context.Context, image string) error {
	layer, err := tarball.LayerFromOpener(busybox)
	if err != nil {
		return err
	}
	img, err := mutate.AppendLayers(empty.Image, layer)
	if err != nil {
		return err
	}
	config, err := img.ConfigFile()
	if err != nil {
		return err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture = "linux", "amd64"
	if img, err = mutate.ConfigFile(img, config); err != nil {
		return err
	}
	ref, err := name.ParseReference(image, name.Insecure)
	if err != nil {
		return err
	}
	return remote.Write(ref, img, remote.WithContext(ctx))
}

func busybox() (io.ReadCloser, error) {
	program, err := os.ReadFile("/bin/busybox")
	if err != nil {
		return nil, fmt.Errorf("the package busybox-static is needed: %w", err)
	}
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range []*tar.Header{
		{Name: "bin/", Typeflag: tar.TypeDir, Mode: 0o755},
		{Name: "bin/busybox", Typeflag: tar.TypeReg, Mode: 0o755, Size: int64(len(program))},
		{Name: "bin/true", Typeflag: tar.TypeSymlink, Linkname: "busybox"},
		{Name: "bin/sh", Typeflag: tar.TypeSymlink, Linkname: "busybox"},
	} {
		if err := w.WriteHeader(h); err != nil {
			return nil, err
		}
		if h.Size > 0 {
			if _, err := w.Write(program); err != nil {
				return nil, err
			}
		}
	}
	return io.NopCloser(&b), w.Close()
}

// start runs `paddock up` on addresses of its own until a host is healthy.
func (r *rig) start(ctx context.Context) error {
	var free [3]string
	for i := range free {
		l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		free[i] = l.Addr().String()
		if err := l.Close(); err != nil {
			return err
		}
	}
	data := filepath.Join(r.dir, "data")
	log, err := os.Create(filepath.Join(r.dir, "log"))
	if err != nil {
		return err
	}
	r.up = exec.Command(filepath.Join(r.bin, "paddock"), "up") //nolint:noctx // it is stopped by close, with a signal
	r.up.Env = append(os.Environ(), "PADDOCK_DATA_DIR="+data, "PADDOCK_MASTER_LISTEN="+free[0], "CUBE_TEMPLATE_CENTER_LISTEN="+free[1], "PADDOCK_CUBELET_LISTEN="+free[2])
	if !r.warm {
		r.up.Env = append(r.up.Env, "PADDOCK_WARM_MAX_PER_TEMPLATE=0")
	}
	r.up.Stdout, r.up.Stderr = log, log
	r.up.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C is for this program, which stops it in order
	err = r.up.Start()
	if err = errors.Join(err, log.Close()); err != nil {
		return err
	}
	return r.await(ctx, "a healthy host", func() bool {
		left, err := datadir.ReadClient(data)
		if err != nil {
			return false
		}
		r.api = cubeapi.NewClient(left.Address, left.APIKey)
		hosts, err := r.api.Hosts(ctx)
		return err == nil && len(hosts) == 1 && hosts[0].Health == "healthy"
	})
}

func (r *rig) makeTemplate(ctx context.Context, image string) error {
	j, err := r.api.FromImage(ctx, cubeapi.FromImageRequest{SourceImageRef: image, Alias: template, WritableLayerSize: "1Gi"})
	if err != nil {
		return err
	}
	id := j.JobID
	err = r.await(ctx, "the template", func() bool {
		now, err := r.api.Job(ctx, id)
		if err == nil {
			j = now
		}
		return j.Status == cubeapi.StatusReady || j.Status == cubeapi.StatusFailed
	})
	if err == nil && j.Status == cubeapi.StatusFailed {
		err = errors.New(j.ErrorMessage)
	}
	return err
}

func (r *rig) await(ctx context.Context, what string, ok func() bool) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-ctx.Done():
			log, err := os.ReadFile(filepath.Join(r.dir, "log"))
			return errors.Join(fmt.Errorf("%s did not come: %w\n%s", what, ctx.Err(), log), err)
		case <-tick.C:
		}
	}
	return nil
}

// close ends all that the rig started and removes its files.
func (r *rig) close() error {
	var errs []error
	if r.peer != nil {
		errs = append(errs, r.peer.end(context.Background()))
	}
	if r.up != nil && r.up.Process != nil {
		force := time.AfterFunc(startTime, func() { _ = r.up.Process.Kill() }) // Wait tells
		errs = append(errs, r.up.Process.Signal(syscall.SIGTERM), r.up.Wait())
		force.Stop()
	}
	if r.images != nil {
		r.images.Close()
	}
	if client, ok := http.DefaultTransport.(*http.Transport); ok {
		client.CloseIdleConnections()
	}
	return errors.Join(append(errs, os.RemoveAll(r.dir))...)
}
