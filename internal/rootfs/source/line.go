package source

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/paddock-dev/paddock/internal/fault"
)

const (
	lineTries = 3       // of a line that brings next to nothing
	lineGain  = 1 << 20 // bytes after which a line is trusted anew
)

// blob opens a layer or a config. When the line breaks it goes on from where it
// was.
func (o *registry) blob(ctx context.Context, digest string, size int64) (io.ReadCloser, error) {
	l := &line{registry: o, ctx: ctx, digest: digest, size: size}
	if err := l.steadily(l.connect); err != nil {
		l.hang()
		return nil, err
	}
	return l, nil
}

// line brings one blob over as many connections as it takes.
type line struct {
	*registry
	ctx    context.Context
	digest string
	size   int64
	at     int64

	conn   context.Context // of the connection
	body   io.ReadCloser
	cancel context.CancelCauseFunc
	idle   *time.Timer // stops the connection; runs while a read waits
	tries  int
	trust  int64 // where it was when tries began
}

func (l *line) Read(p []byte) (n int, err error) {
	if l.cancel == nil {
		return 0, errors.New("read after close")
	}
	err = l.steadily(func() error {
		if l.body == nil {
			if err := l.connect(); err != nil {
				return err
			}
		}
		n, err = l.read(p)
		return err
	})
	return n, err
}

// read reads once. Bytes that came with an error are not lost: the error will
// come again.
func (l *line) read(p []byte) (int, error) {
	l.idle.Reset(idleTime)
	n, err := l.body.Read(p)
	l.idle.Stop()
	l.at += int64(n)
	if n > 0 || err == nil || errors.Is(err, io.EOF) {
		return n, ignore(err, n)
	}
	return 0, l.broken(err)
}

func ignore(err error, n int) error {
	if n > 0 && !errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// steadily tries again, from where it was, while the line is at fault.
func (l *line) steadily(do func() error) error {
	for {
		err := do()
		if err == nil || errors.Is(err, io.EOF) || fault.Of(err) != fault.RegistryDown || l.ctx.Err() != nil {
			return err
		}
		l.hang()
		if l.at-l.trust >= lineGain {
			l.tries, l.trust = 0, l.at
		}
		if l.tries++; l.tries >= lineTries {
			return err
		}
		wait := time.NewTimer(backoff << (l.tries - 1))
		select {
		case <-l.ctx.Done():
			wait.Stop()
			return context.Cause(l.ctx)
		case <-wait.C:
		}
	}
}

// connect asks for what is still missing.
func (l *line) connect() error {
	ctx, cancel := context.WithCancelCause(l.ctx)
	l.conn, l.cancel = ctx, cancel
	silent := fault.New(fault.RegistryDown, "registry %s: no byte for %s", l.repo.RegistryStr(), idleTime)
	l.idle = time.AfterFunc(idleTime, func() { cancel(silent) })
	h := http.Header{}
	if l.at > 0 {
		h.Set("Range", fmt.Sprintf("bytes=%d-", l.at))
	}
	resp, err := l.get(ctx, "blobs", l.digest, h) //nolint:bodyclose // hang closes it
	l.idle.Stop()
	if err != nil {
		err = l.fault(ctx, err)
		cancel(nil)
		return err
	}
	l.body = resp.Body
	return l.place(resp)
}

// place brings the answer's bytes to where the reader is.
func (l *line) place(resp *http.Response) error {
	from := int64(0)
	if resp.StatusCode == http.StatusPartialContent {
		from = l.at
		if got := resp.Header.Get("Content-Range"); !strings.HasPrefix(got, fmt.Sprintf("bytes %d-", l.at)) {
			return fault.New(fault.RegistryDown, "registry %s: asked for bytes from %d, it sent %.100q", l.repo.RegistryStr(), l.at, got)
		}
	}
	if n := resp.ContentLength; n >= 0 && n != l.size-from {
		return fault.New(fault.LayerDigest, "the registry has %d bytes of it, its manifest says %d", n+from, l.size)
	}
	// A registry that begins anew is read to where the line broke.
	for skip := l.at - from; skip > 0; {
		l.idle.Reset(idleTime)
		n, err := io.CopyN(io.Discard, resp.Body, min(skip, readAhead))
		l.idle.Stop()
		skip -= n
		if err != nil {
			return l.broken(err)
		}
	}
	return nil
}

// broken says why the line ended: by the clock, the caller, or by itself.
func (l *line) broken(err error) error {
	if cause := context.Cause(l.conn); cause != nil {
		return cause
	}
	return fault.Wrap(fault.RegistryDown, brief{err}, "registry %s: after %d of %d bytes", l.repo.RegistryStr(), l.at, l.size)
}

// hang ends the connection.
func (l *line) hang() {
	l.cancel(nil)
	l.idle.Stop()
	if l.body != nil {
		_ = l.body.Close() // it was only read
		l.body = nil
	}
}

// Close ends the connection.
func (l *line) Close() error {
	if l.cancel != nil {
		l.hang()
		l.cancel = nil
	}
	return nil
}
