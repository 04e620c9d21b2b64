package cubelet

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"mime"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"time"

	"golang.org/x/sys/unix"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/hostpb"
	"github.com/paddock-dev/paddock/internal/platform/fail"
)

const (
	stallTime = 30 * time.Second // a transfer without a byte for so long has broken
	fetchMax  = 5                // tries in a row without a byte of progress
)

var shaForm = regexp.MustCompile(`^[0-9a-f]{64}$`)

// download is an artifact on its way: a file and what is in it.
type download struct {
	request *hostpb.EnsureArtifactRequest
	want    proof
	file    *os.File
	sum     hash.Hash
	have    int64 // bytes in file and sum
}

// part is where the bytes of one version of an artifact are gathered.
func (m *images) part(id string, want proof) string {
	return m.path(id) + "." + want.SHA256[:16] + partSuffix
}

// fetch downloads, verifies and renames. A broken transfer goes on where it
// stopped, also that of an earlier call; wrong bytes are thrown away.
func (m *images) fetch(ctx context.Context, r *hostpb.EnsureArtifactRequest, want proof) (fetched int64, err error) {
	id := r.GetArtifactId()
	part := m.part(id, want)
	f, err := os.OpenFile(part, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return 0, fault.Wrap(fault.DataDir, err, "artifact %s", id)
	}
	defer func() {
		err = errors.Join(err, f.Close())
		if err != nil && !resumable(err) {
			_ = os.Remove(part) // the next start sweeps it otherwise
		}
	}()
	d := &download{request: r, want: want, file: f, sum: sha256.New()}
	if err := d.resume(); err != nil {
		return 0, fault.Wrap(fault.DataDir, err, "artifact %s", id)
	}
	if err := m.room(d); err != nil {
		return 0, err
	}
	if fetched, err = m.transferAll(ctx, d); err != nil {
		return fetched, err
	}
	if got := hex.EncodeToString(d.sum.Sum(nil)); d.have != want.Size || got != want.SHA256 {
		return fetched, fault.New(fault.ArtifactCorrupt, "artifact %s: got %d bytes with sha256 %s, want %d with %s", id, d.have, got, want.Size, want.SHA256)
	}
	if err := f.Sync(); err != nil {
		return fetched, fault.Wrap(fault.DiskFull, err, "artifact %s", id)
	}
	if err := fail.Point("cubelet.artifact.verified"); err != nil {
		return fetched, err
	}
	return fetched, m.keep(id, part, want)
}

// resumable reports whether the bytes gathered so far are worth keeping.
func resumable(err error) bool {
	return fault.Of(err).Class.Retry && !errors.Is(err, fault.DiskFull) || errors.Is(err, context.Canceled)
}

// resume takes over what an earlier call left.
func (d *download) resume() error {
	n, err := io.Copy(d.sum, d.file)
	d.have = n
	if err == nil && n > d.want.Size {
		return d.restart()
	}
	return err
}

func (d *download) restart() error {
	d.sum.Reset()
	d.have = 0
	_, err := d.file.Seek(0, io.SeekStart)
	return errors.Join(err, d.file.Truncate(0))
}

// room refuses a download that the disk cannot take, before it begins.
func (m *images) room(d *download) error {
	var s unix.Statfs_t
	if err := unix.Statfs(m.dir, &s); err != nil {
		return fault.Wrap(fault.DataDir, err, "artifacts")
	}
	if free := int64(s.Bavail) * s.Bsize; free < d.want.Size-d.have {
		return fault.New(fault.DiskFull, "artifact %s needs %d bytes in %s, %d are free", d.request.GetArtifactId(), d.want.Size, m.dir, free)
	}
	return nil
}

// transferAll fetches what is missing. Each try that brought something starts
// the count of tries anew.
func (m *images) transferAll(ctx context.Context, d *download) (fetched int64, err error) {
	pause := 100 * time.Millisecond
	for try := 0; d.have < d.want.Size; try++ {
		n, err := m.transfer(ctx, d)
		fetched += n
		if err == nil {
			break // the size is judged with the sum
		}
		if n > 0 {
			try, pause = 0, 100*time.Millisecond
		}
		if try == fetchMax-1 || ctx.Err() != nil || !fault.Of(err).Class.Retry || errors.Is(err, fault.DiskFull) {
			return fetched, err
		}
		select {
		case <-ctx.Done():
			return fetched, err
		case <-time.After(pause):
			pause *= 2
		}
	}
	return fetched, nil
}

// transfer appends what one answer brings.
func (m *images) transfer(ctx context.Context, d *download) (int64, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	id := d.request.GetArtifactId()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, d.request.GetUrl(), nil)
	if err != nil {
		return 0, fault.New(fault.InvalidInput, "artifact %s: its url cannot be read", id)
	}
	req.Header.Set(cubeapi.HeaderArtifactToken, d.request.GetToken())
	if d.have > 0 {
		req.Header.Set("Range", fmt.Sprintf("bytes=%d-", d.have))
	}
	answer, err := m.client.Do(req)
	if err != nil {
		return 0, fault.Wrap(fault.PeerUnavailable, bare(err), "download of artifact %s", id)
	}
	defer answer.Body.Close()
	switch ok, err := d.accept(answer); {
	case err != nil:
		return 0, err
	case !ok:
		// Any other answer is words, never bytes of an image.
		return 0, refused(answer, id)
	}
	stall := time.AfterFunc(stallTime, func() { cancel(errStalled) })
	defer stall.Stop()
	body := &watched{r: io.LimitReader(answer.Body, d.want.Size-d.have+1), alive: func() { stall.Reset(stallTime) }}
	n, err := io.Copy(io.MultiWriter(d.file, d.sum), body)
	d.have += n
	switch {
	case errors.Is(err, unix.ENOSPC):
		return n, fault.Wrap(fault.DiskFull, err, "artifact %s", id)
	case err != nil && errors.Is(context.Cause(ctx), errStalled):
		return n, fault.Wrap(fault.PeerUnavailable, errStalled, "download of artifact %s", id)
	case err != nil:
		return n, fault.Wrap(fault.PeerUnavailable, bare(err), "download of artifact %s", id)
	}
	return n, nil
}

var errStalled = fmt.Errorf("no byte came for %s", stallTime)

// accept reports whether an answer is the bytes that are missing.
func (d *download) accept(answer *http.Response) (bool, error) {
	if kind, _, err := mime.ParseMediaType(answer.Header.Get("Content-Type")); err == nil && kind == "application/json" {
		return false, nil // words, whatever the status says
	}
	switch answer.StatusCode {
	case http.StatusPartialContent:
		var from int64
		if _, err := fmt.Sscanf(answer.Header.Get("Content-Range"), "bytes %d-", &from); err == nil && from == d.have {
			return true, nil
		}
		return true, d.restartFor(answer)
	case http.StatusOK:
		if d.have > 0 { // it cannot go on in the middle
			if err := d.restart(); err != nil {
				return false, fault.Wrap(fault.DataDir, err, "artifact %s", d.request.GetArtifactId())
			}
		}
		return true, nil
	case http.StatusRequestedRangeNotSatisfiable:
		return false, d.restartFor(answer)
	}
	return false, nil
}

// restartFor throws away what was gathered, since the other side has something
// else; the next try begins at the first byte.
func (d *download) restartFor(answer *http.Response) error {
	return errors.Join(fault.New(fault.PeerUnavailable, "download of artifact %s: it does not go on at byte %d: %s", d.request.GetArtifactId(), d.have, answer.Status), d.restart())
}

// refused keeps the code of a coded refusal.
func refused(answer *http.Response, id string) error {
	var e cubeapi.Envelope
	if json.NewDecoder(io.LimitReader(answer.Body, 1<<20)).Decode(&e) == nil && e.Error != nil {
		return fmt.Errorf("download of artifact %s: %w", id, fault.Parse(*e.Error, answer.StatusCode))
	}
	return fault.New(fault.PeerUnavailable, "download of artifact %s: the answer is HTTP status %d and no image", id, answer.StatusCode)
}

// bare takes the URL out of a client's error: it may carry a token.
func bare(err error) error {
	var u *url.Error
	if errors.As(err, &u) {
		return u.Err
	}
	return err
}

// watched tells of every byte that passes.
type watched struct {
	r     io.Reader
	alive func()
}

func (w *watched) Read(b []byte) (int, error) {
	n, err := w.r.Read(b)
	if n > 0 {
		w.alive()
	}
	return n, err
}
