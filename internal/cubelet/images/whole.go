package images

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"net/http"
	"os"

	"golang.org/x/sys/unix"

	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/hostpb"
	"github.com/paddock-dev/paddock/internal/platform/fail"
)

// download is an artifact that comes in a row: a file and what is in it.
type download struct {
	*origin
	want proof
	file *os.File
	sum  hash.Hash
	have int64 // bytes in file and sum
}

// part is where the bytes of one version of an artifact are gathered.
func (m *Store) part(id string, want proof, suffix string) string {
	return m.Path(id) + "." + want.SHA256[:16] + suffix
}

func (m *Store) origin(r *hostpb.EnsureArtifactRequest) *origin {
	return &origin{w: m.web, id: r.GetArtifactId(), url: r.GetUrl(), token: r.GetToken()}
}

// fetchWhole downloads, verifies and renames. A broken transfer goes on where
// it stopped, also that of an earlier call; wrong bytes are thrown away.
func (m *Store) fetchWhole(ctx context.Context, r *hostpb.EnsureArtifactRequest, want proof) (got Traffic, err error) {
	id := r.GetArtifactId()
	part := m.part(id, want, wholeSuffix)
	f, err := os.OpenFile(part, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return got, fault.Wrap(fault.DataDir, err, "artifact %s", id)
	}
	defer func() {
		err = errors.Join(err, f.Close())
		if err != nil && !resumable(err) {
			_ = os.Remove(part) // the next start sweeps it otherwise
		}
	}()
	d := &download{origin: m.origin(r), want: want, file: f, sum: sha256.New()}
	if err := d.resume(); err != nil {
		return got, fault.Wrap(fault.DataDir, err, "artifact %s", id)
	}
	if err := m.room(id, want.Size-d.have); err != nil {
		return got, err
	}
	err = persist(ctx, func() (int64, error) {
		if d.have >= want.Size {
			return 0, nil // the size is judged with the sum
		}
		n, err := m.transfer(ctx, d)
		got.Wire += n
		return n, err
	})
	if err != nil {
		return got, err
	}
	if sum := hex.EncodeToString(d.sum.Sum(nil)); d.have != want.Size || sum != want.SHA256 {
		return got, fault.New(fault.ArtifactCorrupt, "artifact %s: got %d bytes with sha256 %s, want %d with %s", id, d.have, sum, want.Size, want.SHA256)
	}
	if err := f.Sync(); err != nil {
		return got, fault.Wrap(fault.DiskFull, err, "artifact %s", id)
	}
	if err := fail.Point("cubelet.artifact.verified"); err != nil {
		return got, err
	}
	return got, m.keep(id, part, want, nil)
}

// resumable reports whether the bytes gathered so far are worth keeping: also
// when the master is to ask again with a token that is not over.
func resumable(err error) bool {
	return errors.Is(err, fault.TokenExpired) || fault.Of(err).Class.Retry && !errors.Is(err, fault.DiskFull) || errors.Is(err, context.Canceled)
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
func (m *Store) room(id string, need int64) error {
	var s unix.Statfs_t
	if err := unix.Statfs(m.dir, &s); err != nil {
		return fault.Wrap(fault.DataDir, err, "artifacts")
	}
	if free := int64(s.Bavail) * s.Bsize; free < need {
		return fault.New(fault.DiskFull, "artifact %s needs %d bytes in %s, %d are free", id, need, m.dir, free)
	}
	return nil
}

// transfer appends what one answer brings.
func (m *Store) transfer(ctx context.Context, d *download) (int64, error) {
	ctx, alive, stop := during(ctx, m.stall.origin)
	defer stop()
	span := ""
	if d.have > 0 {
		span = fmt.Sprintf("bytes=%d-", d.have)
	}
	answer, err := d.get(ctx, span)
	if err != nil {
		return 0, cut(ctx, err, d.id)
	}
	defer answer.Body.Close()
	switch ok, err := d.accept(answer); {
	case err != nil:
		return 0, err
	case !ok:
		// Any other answer is words, never bytes of an image.
		return 0, refused(answer, d.id)
	}
	body := &watched{r: io.LimitReader(answer.Body, d.want.Size-d.have+1), alive: alive}
	n, err := io.Copy(io.MultiWriter(d.file, d.sum), body)
	d.have += n
	switch {
	case errors.Is(err, unix.ENOSPC):
		return n, fault.Wrap(fault.DiskFull, err, "artifact %s", d.id)
	case err != nil:
		return n, cut(ctx, err, d.id)
	}
	return n, nil
}

// accept reports whether an answer is the bytes that are missing.
func (d *download) accept(answer *http.Response) (bool, error) {
	if isWords(answer) {
		return false, nil
	}
	switch answer.StatusCode {
	case http.StatusPartialContent:
		if begins(answer) == d.have {
			return true, nil
		}
		return true, d.restartFor(answer)
	case http.StatusOK:
		if d.have > 0 { // it cannot go on in the middle
			if err := d.restart(); err != nil {
				return false, fault.Wrap(fault.DataDir, err, "artifact %s", d.id)
			}
		}
		return true, nil
	case http.StatusRequestedRangeNotSatisfiable:
		return false, d.restartFor(answer)
	}
	return false, nil
}

// begins returns at which byte a partial answer begins, or -1.
func begins(answer *http.Response) int64 {
	var from int64
	if _, err := fmt.Sscanf(answer.Header.Get("Content-Range"), "bytes %d-", &from); err != nil {
		return -1
	}
	return from
}

// restartFor throws away what was gathered, since the other side has something
// else; the next try begins at the first byte.
func (d *download) restartFor(answer *http.Response) error {
	return errors.Join(fault.New(fault.PeerUnavailable, "download of artifact %s: it does not go on at byte %d: %s", d.id, d.have, answer.Status), d.restart())
}
