package rootfs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"golang.org/x/sync/errgroup"

	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/platform/fail"
	"github.com/paddock-dev/paddock/internal/template"
)

const (
	pullers   = 4
	pullTries = 3
	idleTime  = time.Minute // without a byte, the registry is taken for away
)

// pulled counts what arrived and tells of it.
type pulled struct {
	mu   sync.Mutex
	now  Event
	tell func(Event)
}

func (p *pulled) add(bytes int64, layers int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.now.DoneBytes += bytes
	p.now.DoneLayers += layers
	if p.tell != nil {
		p.tell(p.now)
	}
}

// pull brings each layer into dir, several at a time, and verifies its digest.
func (im *Image) pull(ctx context.Context, dir string) error {
	p := &pulled{now: Event{Phase: template.PhasePulling, TotalBytes: im.CompressedBytes, TotalLayers: im.Layers}, tell: im.req.Progress}
	p.add(0, 0)
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(pullers)
	begun := map[string]bool{}
	for i, l := range im.layers {
		if begun[l.digest.Hex] { // the same layer twice
			p.add(l.size, 1)
			continue
		}
		begun[l.digest.Hex] = true
		group.Go(func() error {
			if err := fail.Point("rootfs.pull"); err != nil {
				return err
			}
			if err := im.fetch(ctx, dir, l, p); err != nil {
				return layerFault(err, im.Reference, i)
			}
			p.add(0, 1)
			return nil
		})
	}
	return group.Wait()
}

func blob(dir string, l layer) string { return filepath.Join(dir, "layer-"+l.digest.Hex) }

// fetch brings one layer, and tries again when the line breaks.
func (im *Image) fetch(ctx context.Context, dir string, l layer, p *pulled) error {
	for try := 1; ; try++ {
		n, err := im.fetchOnce(ctx, blob(dir, l), l, p)
		if err == nil || try == pullTries || ctx.Err() != nil || fault.Of(err) != fault.RegistryDown {
			return err
		}
		p.add(-n, 0)
	}
}

func (im *Image) fetchOnce(ctx context.Context, file string, l layer, p *pulled) (n int64, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	idle := time.AfterFunc(idleTime, func() {
		cancel(fault.New(fault.RegistryDown, "image %s: no byte of layer %s for %s", im.Reference, l.digest, idleTime))
	})
	defer idle.Stop()
	remote, err := im.puller.Layer(ctx, im.repo.Digest(l.digest.String()))
	if err != nil {
		return 0, im.lineFault(ctx, err)
	}
	in, err := remote.Compressed() // it verifies the digest at its end
	if err != nil {
		return 0, im.lineFault(ctx, err)
	}
	out, err := os.Create(file)
	if err != nil {
		return 0, errors.Join(diskFault(err, filepath.Dir(file)), in.Close())
	}
	counted := readFunc(func(b []byte) (int, error) {
		k, err := in.Read(b)
		idle.Reset(idleTime)
		p.add(int64(k), 0)
		n += int64(k)
		switch {
		case n > l.size:
			return k, fault.New(fault.ImageInvalid, "layer %s is larger than its manifest says", l.digest)
		case err == nil || errors.Is(err, io.EOF):
			return k, err
		case n == l.size: // all of it came: the digest is what is wrong
			return k, fault.Wrap(fault.ImageInvalid, err, "layer %s", l.digest)
		}
		return k, im.lineFault(ctx, err)
	})
	_, err = io.Copy(out, counted)
	if err == nil && n < l.size {
		err = fault.New(fault.ImageInvalid, "layer %s has %d bytes, its manifest says %d", l.digest, n, l.size)
	}
	if late := errors.Join(out.Close(), in.Close()); err == nil {
		err = late
	}
	return n, diskFault(err, filepath.Dir(file))
}

type readFunc func([]byte) (int, error)

func (f readFunc) Read(b []byte) (int, error) { return f(b) }

// lineFault says why a layer did not come. A layer that the registry does not
// have is a fault of the image, which names it.
func (im *Image) lineFault(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	var answer *transport.Error
	if !errors.As(err, &answer) {
		return fault.Wrap(fault.RegistryDown, err, "image %s", im.Reference)
	}
	coded := answerFault(answer, im.Reference)
	if fault.Of(coded) == fault.ImageNotFound {
		return fault.Wrap(fault.ImageInvalid, err, "the registry lacks a layer")
	}
	return coded
}

// layerFault says which layer it was.
func layerFault(err error, reference string, at int) error {
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return fmt.Errorf("image %s: layer %d: %w", reference, at+1, err)
}
