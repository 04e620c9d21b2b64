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
	"net/http"
	"os"
	"path/filepath"
	"sort"
	"strings"

	"golang.org/x/sync/singleflight"
	"golang.org/x/sys/unix"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/hostpb"
	"github.com/paddock-dev/paddock/internal/platform/fail"
	"github.com/paddock-dev/paddock/internal/template"
)

const (
	imageSuffix    = ".ext4"
	partSuffix     = ".download"
	downloadsAtOne = 2
)

// images is the artifacts that this host holds: whole and verified, or not at
// all under their final name.
type images struct {
	dir    string
	client *http.Client
	flight singleflight.Group
	slots  chan struct{}
}

func newImages(dir string) *images {
	return &images{dir: dir, client: &http.Client{}, slots: make(chan struct{}, downloadsAtOne)}
}

func (m *images) path(id string) string { return filepath.Join(m.dir, id+imageSuffix) }

// list returns the ids of the artifacts held.
func (m *images) list() ([]string, error) {
	entries, err := os.ReadDir(m.dir)
	if err != nil {
		return nil, err
	}
	ids := []string{}
	for _, e := range entries {
		if id, ok := strings.CutSuffix(e.Name(), imageSuffix); ok {
			ids = append(ids, id)
		}
	}
	sort.Strings(ids)
	return ids, nil
}

// sweep removes what an earlier process left half fetched.
func (m *images) sweep() error {
	parts, err := filepath.Glob(filepath.Join(m.dir, "*"+partSuffix))
	if err != nil {
		return err
	}
	var errs []error
	for _, p := range parts {
		errs = append(errs, os.Remove(p))
	}
	return errors.Join(errs...)
}

// ensure fetches an artifact unless it is held, and returns how many bytes
// crossed the wire. Calls for one artifact share one download.
func (m *images) ensure(ctx context.Context, r *hostpb.EnsureArtifactRequest) (int64, error) {
	id := r.GetArtifactId()
	if err := template.CheckID(id); err != nil {
		return 0, err
	}
	if len(r.GetSha256()) != sha256.Size*2 || r.GetSizeBytes() <= 0 {
		return 0, fault.New(fault.InvalidInput, "artifact %s: sha256 and size must be given", id)
	}
	v, err, _ := m.flight.Do(id, func() (any, error) {
		info, err := os.Stat(m.path(id))
		if err == nil && info.Size() == r.GetSizeBytes() {
			return int64(0), nil
		}
		select {
		case m.slots <- struct{}{}:
			defer func() { <-m.slots }()
		case <-ctx.Done():
			return int64(0), ctx.Err()
		}
		return m.fetch(ctx, r)
	})
	return v.(int64), err
}

// fetch downloads, verifies and renames. A broken transfer goes on where it
// stopped, a few times; wrong bytes are thrown away.
func (m *images) fetch(ctx context.Context, r *hostpb.EnsureArtifactRequest) (fetched int64, err error) {
	if err := m.room(r); err != nil {
		return 0, err
	}
	part := m.path(r.GetArtifactId()) + partSuffix
	f, err := os.OpenFile(part, os.O_CREATE|os.O_RDWR|os.O_TRUNC, 0o600)
	if err != nil {
		return 0, fault.Wrap(fault.DataDir, err, "artifact %s", r.GetArtifactId())
	}
	defer func() {
		err = errors.Join(err, f.Close())
		if err != nil {
			_ = os.Remove(part) // the next start sweeps it otherwise
		}
	}()
	sum := sha256.New()
	for try := 0; ; try++ {
		n, err := m.transfer(ctx, r, f, sum, fetched)
		fetched += n
		if err == nil {
			break
		}
		if try == 3 || !fault.Of(err).Class.Retry || ctx.Err() != nil {
			return fetched, err
		}
	}
	if got := hex.EncodeToString(sum.Sum(nil)); fetched != r.GetSizeBytes() || got != r.GetSha256() {
		return fetched, fault.New(fault.ArtifactCorrupt, "artifact %s: got %d bytes with sha256 %s, want %d with %s", r.GetArtifactId(), fetched, got, r.GetSizeBytes(), r.GetSha256())
	}
	if err := f.Sync(); err != nil {
		return fetched, fault.Wrap(fault.DiskFull, err, "artifact %s", r.GetArtifactId())
	}
	if err := fail.Point("cubelet.artifact.before_rename"); err != nil {
		return fetched, err
	}
	return fetched, os.Rename(part, m.path(r.GetArtifactId()))
}

// room refuses a download that the disk cannot take, before it begins.
func (m *images) room(r *hostpb.EnsureArtifactRequest) error {
	var s unix.Statfs_t
	if err := unix.Statfs(m.dir, &s); err != nil {
		return fault.Wrap(fault.DataDir, err, "artifacts")
	}
	if free := int64(s.Bavail) * s.Bsize; free < r.GetSizeBytes() {
		return fault.New(fault.DiskFull, "artifact %s needs %d bytes in %s, %d are free", r.GetArtifactId(), r.GetSizeBytes(), m.dir, free)
	}
	return nil
}

// transfer appends the bytes from offset on.
func (m *images) transfer(ctx context.Context, r *hostpb.EnsureArtifactRequest, f *os.File, sum hash.Hash, offset int64) (int64, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, r.GetUrl(), nil)
	if err != nil {
		return 0, fault.Wrap(fault.InvalidInput, err, "artifact url")
	}
	req.Header.Set(cubeapi.HeaderArtifactToken, r.GetToken())
	if offset > 0 {
		req.Header.Set("Range", fmt.Sprintf("bytes=%d-", offset))
	}
	answer, err := m.client.Do(req)
	if err != nil {
		return 0, fault.Wrap(fault.PeerUnavailable, err, "download of artifact %s", r.GetArtifactId())
	}
	defer answer.Body.Close()
	want := http.StatusOK
	if offset > 0 {
		want = http.StatusPartialContent
	}
	// Any other answer is words, never bytes of an image.
	if answer.StatusCode != want {
		return 0, refused(answer, r.GetArtifactId())
	}
	n, err := io.Copy(io.MultiWriter(f, sum), io.LimitReader(answer.Body, r.GetSizeBytes()-offset+1))
	switch {
	case errors.Is(err, unix.ENOSPC):
		return n, fault.Wrap(fault.DiskFull, err, "artifact %s", r.GetArtifactId())
	case err != nil:
		return n, fault.Wrap(fault.PeerUnavailable, err, "download of artifact %s", r.GetArtifactId())
	}
	return n, nil
}

// refused keeps the code of a coded refusal.
func refused(answer *http.Response, id string) error {
	var e cubeapi.Envelope
	if json.NewDecoder(io.LimitReader(answer.Body, 1<<20)).Decode(&e) == nil && e.Error != nil {
		return fmt.Errorf("download of artifact %s: %w", id, fault.Parse(*e.Error, answer.StatusCode))
	}
	return fault.New(fault.PeerUnavailable, "download of artifact %s: HTTP status %d", id, answer.StatusCode)
}

func (m *images) remove(id string) error {
	if err := template.CheckID(id); err != nil {
		return err
	}
	if err := os.Remove(m.path(id)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fault.Wrap(fault.DataDir, err, "artifact %s", id)
	}
	return nil
}
