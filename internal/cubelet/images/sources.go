package images

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/paddock-dev/paddock/internal/artifact"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/hostpb"
	"github.com/paddock-dev/paddock/internal/platform/auth"
	"github.com/paddock-dev/paddock/internal/platform/serve"
)

const (
	spansAtOnce = 4       // of one artifact
	spanBytes   = 8 << 20 // chunks in a row that are asked for at once
	peersAtMost = 16
)

var (
	// errWrong: a chunk is not what the manifest names.
	errWrong = errors.New("these bytes are not those of the chunk")
	// errOurs: this host cannot keep what came. No other source will help.
	errOurs = errors.New("a chunk cannot be kept")
)

// run is missing chunks in a row.
type run struct{ next, end int }

// runs returns what is missing, each chunk once.
func (a *assembly) runs() (list []run) {
	longest := max(1, int(spanBytes/a.chunk))
	asked := map[artifact.Sum]bool{}
	for i, sum := range a.sums {
		if a.have[i] || asked[sum] {
			continue
		}
		asked[sum] = true
		if n := len(list); n > 0 && list[n-1].end == i && i-list[n-1].next < longest {
			list[n-1].end++
			continue
		}
		list = append(list, run{i, i + 1})
	}
	slices.Reverse(list) // they are taken from the end
	return list
}

// source is somebody who may have the bytes.
type source interface {
	// open begins to read size bytes from off.
	open(ctx context.Context, off, size int64) (io.ReadCloser, error)
	// patience is how long it may be silent.
	patience() time.Duration
	// traffic is what n bytes of it count as.
	traffic(n int64) Traffic
}

// peer is another host that holds the artifact.
type peer struct {
	m       *Store
	address string
	ask     *hostpb.ReadArtifactRequest
	conn    *grpc.ClientConn
}

func (p *peer) patience() time.Duration { return p.m.stall.peer }
func (p *peer) traffic(n int64) Traffic { return Traffic{Wire: n, Peers: n} }

func (p *peer) open(ctx context.Context, off, size int64) (io.ReadCloser, error) {
	s, err := hostpb.NewHostServiceClient(p.conn).ReadArtifact(ctx, &hostpb.ReadArtifactRequest{ArtifactId: p.ask.GetArtifactId(), Token: p.ask.GetToken(), Sha256: p.ask.GetSha256(), Offset: off, SizeBytes: size})
	if err != nil {
		return nil, err
	}
	return io.NopCloser(&stream{s: s}), nil // it ends with ctx
}

// stream reads what another host sends.
type stream struct {
	s    grpc.ServerStreamingClient[hostpb.ReadArtifactResponse]
	rest []byte
}

func (s *stream) Read(b []byte) (int, error) {
	for len(s.rest) == 0 {
		answer, err := s.s.Recv()
		if err != nil {
			return 0, err
		}
		s.rest = answer.GetData()
	}
	n := copy(b, s.rest)
	s.rest = s.rest[n:]
	return n, nil
}

// storeSource is the origin as a source of chunks.
type storeSource struct {
	*origin
	stall time.Duration
}

func (s *storeSource) patience() time.Duration { return s.stall }
func (s *storeSource) traffic(n int64) Traffic { return Traffic{Wire: n} }

func (s *storeSource) open(ctx context.Context, off, size int64) (io.ReadCloser, error) {
	answer, err := s.get(ctx, fmt.Sprintf("bytes=%d-%d", off, off+size-1))
	if err != nil {
		return nil, err
	}
	if answer.StatusCode == http.StatusPartialContent && begins(answer) == off && !isWords(answer) {
		return answer.Body, nil
	}
	defer answer.Body.Close()
	if answer.StatusCode < 300 && !isWords(answer) {
		return nil, fmt.Errorf("%w: the store sends no parts of artifact %s, but HTTP status %d", errUnfit, s.id, answer.StatusCode)
	}
	return nil, refused(answer, s.id)
}

// crew is the sources of one assembly and what is still to be fetched.
type crew struct {
	a     *assembly
	store *storeSource

	mu    sync.Mutex
	runs  []run
	peers []*peer // those that are still asked
	turn  int
}

// takeRemote fetches what is missing: from hosts that have it, as long as any
// of them is of use, and else from the store.
func (a *assembly) takeRemote(ctx context.Context, r *hostpb.EnsureArtifactRequest) (err error) {
	c := &crew{a: a, store: &storeSource{a.m.origin(r), a.m.stall.origin}, runs: a.runs()}
	if len(c.runs) == 0 {
		return nil
	}
	peers, err := a.m.dial(r)
	if err != nil {
		return err
	}
	defer func() {
		for _, p := range peers {
			err = errors.Join(err, p.conn.Close())
		}
	}()
	c.peers = slices.Clone(peers)
	group, ctx := errgroup.WithContext(ctx)
	for range min(spansAtOnce, len(c.runs)) {
		group.Go(func() error { return c.work(ctx) })
	}
	return group.Wait()
}

func (m *Store) dial(r *hostpb.EnsureArtifactRequest) (list []*peer, err error) {
	for _, at := range r.GetPeers()[:min(len(r.GetPeers()), peersAtMost)] {
		conn, err := grpc.NewClient("passthrough:///"+at, append(serve.DialOptions(),
			grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithPerRPCCredentials(auth.Credentials(m.token)))...)
		if err != nil {
			for _, p := range list {
				_ = p.conn.Close() // nothing was sent
			}
			return nil, fault.Wrap(fault.InvalidInput, err, "peer %.80q of artifact %s", at, r.GetArtifactId())
		}
		list = append(list, &peer{m: m, address: at, conn: conn, ask: &hostpb.ReadArtifactRequest{ArtifactId: r.GetArtifactId(), Token: r.GetPeerToken(), Sha256: r.GetSha256()}})
	}
	return list, nil
}

// take returns the next chunks and whom to ask for them; a nil peer is the
// store.
func (c *crew) take() (r run, from *peer, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := len(c.runs)
	if n == 0 {
		return r, nil, false
	}
	r, c.runs = c.runs[n-1], c.runs[:n-1]
	if len(c.peers) > 0 {
		c.turn++
		from = c.peers[c.turn%len(c.peers)]
	}
	return r, from, true
}

// leave gives back what a peer did not bring, and asks it no more.
func (c *crew) leave(ctx context.Context, p *peer, rest run, why error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.runs = append(c.runs, rest)
	at := slices.Index(c.peers, p)
	if at < 0 {
		return // another worker was as unlucky
	}
	c.peers = slices.Delete(c.peers, at, at+1)
	c.a.m.log.WarnContext(ctx, "a host that should have an artifact is left", slog.String("peer", p.address), slog.String("artifact_id", c.a.id), slog.String("error", why.Error()))
}

// work fetches until nothing is left to take.
func (c *crew) work(ctx context.Context) error {
	buf := make([]byte, c.a.chunk)
	for {
		r, p, ok := c.take()
		if !ok {
			return nil
		}
		if p == nil {
			err := persist(ctx, func() (int64, error) { return c.a.fetch(ctx, c.store, &r, buf) })
			if errors.Is(err, errWrong) {
				err = fmt.Errorf("%w: %w", errUnfit, err)
			}
			if err != nil {
				return err
			}
			continue
		}
		_, err := c.a.fetch(ctx, p, &r, buf)
		switch {
		case err == nil:
		case ctx.Err() != nil, errors.Is(err, errOurs):
			return err
		default:
			c.leave(ctx, p, r, err)
		}
	}
}

// fetch brings the chunks of r and moves its beginning on with each.
func (a *assembly) fetch(ctx context.Context, from source, r *run, buf []byte) (brought int64, err error) {
	ctx, alive, stop := during(ctx, from.patience())
	defer stop()
	first, _ := a.span(r.next)
	last, size := a.span(r.end - 1)
	body, err := from.open(ctx, first, last+size-first)
	if err != nil {
		return 0, cut(ctx, err, a.id)
	}
	defer body.Close()
	in := &watched{r: body, alive: alive}
	for r.next < r.end {
		_, size := a.span(r.next)
		b := buf[:size]
		n, err := io.ReadFull(in, b)
		a.mu.Lock()
		a.got.add(from.traffic(int64(n)))
		a.mu.Unlock()
		if err != nil {
			return brought, cut(ctx, err, a.id)
		}
		if sum := a.sums[r.next]; sha256.Sum256(b) != sum {
			return brought, fmt.Errorf("chunk %d of artifact %s: %w", r.next, a.id, errWrong)
		}
		if err := a.place(a.sums[r.next], b, nil); err != nil {
			return brought, fmt.Errorf("%w: %w", errOurs, err)
		}
		r.next++
		brought += size
	}
	return brought, nil
}
