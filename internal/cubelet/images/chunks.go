package images

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"sync"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/paddock-dev/paddock/internal/artifact"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/hostpb"
	"github.com/paddock-dev/paddock/internal/platform/fail"
)

const (
	maxManifest = 80 << 20 // as it travels
	writeback   = 32 << 20 // bytes that are written before the disk is told to begin
)

// errUnfit: no chunks will do, but the whole may.
var errUnfit = errors.New("its chunk manifest is of no use")

// readManifest fetches the manifest of what is wanted. n is what travelled.
func (m *Store) readManifest(ctx context.Context, r *hostpb.EnsureArtifactRequest, want proof) (man *artifact.Manifest, sums []artifact.Sum, n int64, err error) {
	o := m.origin(r)
	o.url = r.GetManifestUrl()
	var body []byte
	err = persist(ctx, func() (int64, error) {
		b, err := m.ask(ctx, o)
		body, n = b, n+int64(len(b))
		return 0, err
	})
	if err != nil {
		if !fault.Of(err).Class.Retry && !errors.Is(err, fault.TokenExpired) && ctx.Err() == nil {
			err = fmt.Errorf("%w: %w", errUnfit, err)
		}
		return nil, nil, n, err
	}
	if known, sum := r.GetManifestSha256(), sha256.Sum256(body); known != "" && hex.EncodeToString(sum[:]) != known {
		return nil, nil, n, fmt.Errorf("%w: it has another sha256 than was said, %s", errUnfit, known)
	}
	man, sums, err = artifact.ReadManifest(body)
	if err == nil && (man.SHA256 != want.SHA256 || man.SizeBytes != want.Size) {
		err = fault.New(fault.InvalidInput, "chunk manifest of artifact %s: it is of %d bytes with sha256 %.64s", o.id, man.SizeBytes, man.SHA256)
	}
	if err != nil {
		return nil, nil, n, fmt.Errorf("%w: %w", errUnfit, err)
	}
	return man, sums, n, nil
}

func (m *Store) ask(ctx context.Context, o *origin) ([]byte, error) {
	ctx, alive, stop := during(ctx, m.stall.origin)
	defer stop()
	answer, err := o.get(ctx, "")
	if err != nil {
		return nil, cut(ctx, err, o.id)
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK || answer.Header.Get("Content-Type") != artifact.ManifestType {
		return nil, refused(answer, o.id)
	}
	b, err := io.ReadAll(&watched{r: io.LimitReader(answer.Body, maxManifest), alive: alive})
	if err != nil {
		return b, cut(ctx, err, o.id)
	}
	return b, nil
}

// assembly is an artifact that is put together of chunks: a file with holes
// where some are missing.
type assembly struct {
	m     *Store
	id    string
	want  proof
	chunk int64
	sums  []artifact.Sum
	file  *os.File

	news  chan struct{} // wakes the proof
	flush chan struct{} // wakes the disk

	mu    sync.Mutex
	have  []bool // in the file and verified
	at    map[artifact.Sum][]int
	wrote int64 // since the disk was told
	got   Traffic
}

// assemble puts the artifact together, proves and renames. What is verified
// outlives a broken transfer, also that of a process that was killed.
func (m *Store) assemble(ctx context.Context, r *hostpb.EnsureArtifactRequest, want proof, man *artifact.Manifest, sums []artifact.Sum) (got Traffic, err error) {
	id := r.GetArtifactId()
	part := m.part(id, want, partSuffix)
	f, err := os.OpenFile(part, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return got, fault.Wrap(fault.DataDir, err, "artifact %s", id)
	}
	defer func() {
		err = errors.Join(err, f.Close())
		if err != nil && !resumable(err) {
			_ = os.Remove(part) // a later start sweeps it otherwise
		}
	}()
	a := &assembly{m: m, id: id, want: want, chunk: man.ChunkBytes, sums: sums, file: f, news: make(chan struct{}, 1), flush: make(chan struct{}, 1), have: make([]bool, len(sums)), at: map[artifact.Sum][]int{}}
	if err := a.resume(); err != nil {
		return got, fault.Wrap(fault.DataDir, err, "artifact %s", id)
	}
	if err := m.room(id, a.missing()); err != nil {
		return got, err
	}
	stop := a.flushBehind()
	defer stop()
	group, bounded := errgroup.WithContext(ctx)
	if r.GetManifestSha256() == "" { // else each chunk is proven by the manifest
		group.Go(func() error { return a.prove(bounded) })
	}
	group.Go(func() error {
		if err := a.takeLocal(bounded); err != nil {
			return err
		}
		return a.takeRemote(bounded, r)
	})
	if err := group.Wait(); err != nil {
		return a.got, err
	}
	if err := f.Sync(); err != nil {
		return a.got, fault.Wrap(fault.DiskFull, err, "artifact %s", id)
	}
	if err := fail.Point("cubelet.artifact.verified"); err != nil {
		return a.got, err
	}
	return a.got, m.keep(id, part, want, man)
}

// span returns where a chunk lies.
func (a *assembly) span(i int) (off, size int64) {
	off = int64(i) * a.chunk
	return off, min(a.chunk, a.want.Size-off)
}

// resume takes over the chunks that an earlier call left, and notes which are
// missing. Chunks of zeros are holes and need nothing.
func (a *assembly) resume() error {
	if err := a.file.Truncate(a.want.Size); err != nil {
		return err
	}
	b := make([]byte, a.chunk)
	data := int64(-1) // the next byte that is no hole
	for i, sum := range a.sums {
		off, size := a.span(i)
		if !sum.Zero() && data < off+size {
			if data < off {
				var err error
				if data, err = unix.Seek(int(a.file.Fd()), off, unix.SEEK_DATA); errors.Is(err, unix.ENXIO) {
					data, err = a.want.Size, nil // holes to the end
				}
				if err != nil {
					return err
				}
			}
			if data < off+size {
				if _, err := a.file.ReadAt(b[:size], off); err != nil {
					return err
				}
				a.have[i] = sha256.Sum256(b[:size]) == sum
			}
		}
		if a.have[i] = a.have[i] || sum.Zero(); !a.have[i] {
			a.at[sum] = append(a.at[sum], i)
		}
	}
	return nil
}

// missing returns the bytes that the disk must still take.
func (a *assembly) missing() (n int64) {
	for i, there := range a.have {
		if !there {
			_, size := a.span(i)
			n += size
		}
	}
	return n
}

// place writes a verified chunk everywhere it belongs. copied is how a chunk of
// another file may come there without its bytes; it may be nil.
func (a *assembly) place(sum artifact.Sum, b []byte, copied func(to int64) bool) error {
	a.mu.Lock()
	where := a.at[sum]
	delete(a.at, sum)
	a.mu.Unlock()
	for _, i := range where {
		off, size := a.span(i)
		if copied == nil || !copied(off) {
			if _, err := a.file.WriteAt(b, off); err != nil {
				return a.diskFault(err)
			}
		}
		a.mu.Lock()
		a.have[i] = true
		a.wrote += size
		much := a.wrote >= writeback
		if much {
			a.wrote = 0
		}
		a.mu.Unlock()
		rouse(a.news)
		if much {
			rouse(a.flush)
		}
	}
	return fail.Point("cubelet.artifact.chunk")
}

func rouse(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default: // it will look
	}
}

// flushBehind lets the disk begin while the rest is on its way, so that little
// is left for the end. It only hints: what it misses, fsync writes.
func (a *assembly) flushBehind() (stop func()) {
	var done sync.WaitGroup
	done.Go(func() {
		for range a.flush {
			_ = unix.SyncFileRange(int(a.file.Fd()), 0, 0, unix.SYNC_FILE_RANGE_WRITE) // only a hint
		}
	})
	return func() {
		close(a.flush)
		done.Wait()
	}
}

func (a *assembly) diskFault(err error) error {
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return fault.Wrap(fault.DiskFull, err, "artifact %s", a.id)
	}
	return fault.Wrap(fault.DataDir, err, "artifact %s", a.id)
}

// wanted reports whether a chunk is still missing.
func (a *assembly) wanted(sum artifact.Sum) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.at[sum]) > 0
}

// prove reads the file in order, as it grows, and compares the whole with what
// is wanted: whatever manifest, hosts and disk may say, these are the bytes.
func (a *assembly) prove(ctx context.Context) error {
	whole := sha256.New()
	b, zeros := make([]byte, a.chunk), make([]byte, a.chunk)
	for i, sum := range a.sums {
		if err := a.await(ctx, i); err != nil {
			return err
		}
		off, size := a.span(i)
		if sum.Zero() {
			_, _ = whole.Write(zeros[:size]) // a hash never fails
			continue
		}
		if _, err := a.file.ReadAt(b[:size], off); err != nil {
			return fault.Wrap(fault.DataDir, err, "artifact %s", a.id)
		}
		_, _ = whole.Write(b[:size])
	}
	if got := hex.EncodeToString(whole.Sum(nil)); got != a.want.SHA256 {
		return fmt.Errorf("%w: the chunks that it names have sha256 %s together, want %s", errUnfit, got, a.want.SHA256)
	}
	return nil
}

func (a *assembly) await(ctx context.Context, i int) error {
	for {
		a.mu.Lock()
		there := a.have[i]
		a.mu.Unlock()
		if there {
			return nil
		}
		select {
		case <-a.news:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// takeLocal takes what other artifacts of this host have. One that cannot be
// read, or is not what its manifest says, is passed over.
func (a *assembly) takeLocal(ctx context.Context) error {
	ids, err := a.m.List()
	if err != nil {
		return fault.Wrap(fault.DataDir, err, "artifacts")
	}
	for _, id := range ids {
		if err := a.takeFrom(ctx, id); err != nil {
			return err
		}
	}
	return nil
}

func (a *assembly) takeFrom(ctx context.Context, id string) error {
	p, ok := a.m.held(id)
	b, err := os.ReadFile(a.m.manifest(id))
	if !ok || err != nil {
		return nil // fetched whole
	}
	man, sums, err := artifact.ReadManifest(b)
	if err != nil || man.SHA256 != p.SHA256 || man.ChunkBytes != a.chunk {
		return nil
	}
	from, err := os.Open(a.m.Path(id))
	if err != nil {
		return nil
	}
	defer from.Close()
	buf := make([]byte, a.chunk)
	for i, sum := range sums {
		if !a.wanted(sum) {
			continue
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		off := int64(i) * a.chunk
		b := buf[:min(a.chunk, p.Size-off)]
		if _, err := from.ReadAt(b, off); err != nil || sha256.Sum256(b) != sum {
			a.m.log.WarnContext(ctx, "an artifact of this host is not what it was", slog.String("artifact_id", id), slog.Int64("offset", off))
			return nil
		}
		// Where the file system can, the chunk is shared and takes no room.
		copied := func(to int64) bool {
			n, err := unix.CopyFileRange(int(from.Fd()), &off, int(a.file.Fd()), &to, len(b), 0)
			off -= int64(n)
			return err == nil && n == len(b)
		}
		if err := a.place(sum, b, copied); err != nil {
			return err
		}
		a.mu.Lock()
		a.got.Local += int64(len(b))
		a.mu.Unlock()
	}
	return nil
}
