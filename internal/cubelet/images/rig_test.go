package images_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/paddock-dev/paddock/internal/artifact"
	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/cubelet/images"
	"github.com/paddock-dev/paddock/internal/hostpb"
	"github.com/paddock-dev/paddock/internal/platform/auth"
	"github.com/paddock-dev/paddock/internal/platform/config"
	"github.com/paddock-dev/paddock/internal/platform/serve"
)

const (
	id        = "rfs-0123456789abcdef01234567"
	otherID   = "rfs-89abcdef0123456789abcdef"
	token     = "the token of the artifact"
	hostToken = config.Secret("the token of all hosts")
	chunk     = 64 << 10
)

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// peerKey is what a master derives for an artifact.
func peerKey(id string) auth.TicketKey {
	k, err := auth.NewTicketKey("the roles' secret", token, auth.ForPeers, id)
	if err != nil {
		panic(err) // it depends on nothing
	}
	return k
}

// picture returns bytes of so many chunks and a bit, of which some are zeros
// and two are the same.
func picture(seed byte, chunks int) []byte {
	b := make([]byte, chunks*chunk+4096)
	_, _ = rand.NewChaCha8([32]byte{seed}).Read(b) // it never fails
	for i := 2; i < chunks; i += 7 {
		clear(b[i*chunk : (i+1)*chunk])
	}
	copy(b[3*chunk:4*chunk], b[5*chunk:6*chunk])
	return b
}

func sumOf(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

func manifestOf(b []byte) artifact.Manifest {
	m := artifact.Manifest{Version: artifact.ManifestVersion, SHA256: sumOf(b), SizeBytes: int64(len(b)), ChunkBytes: chunk}
	for c := range slices.Chunk(b, chunk) {
		word := sumOf(c)
		if bytes.Equal(c, make([]byte, len(c))) {
			word = "zeros*1"
		}
		m.Chunks = append(m.Chunks, word)
	}
	return m
}

// missing returns how many bytes somebody lacks who has only those of old.
func missing(b []byte, old ...[]byte) (n int64) {
	have := map[string]bool{sumOf(make([]byte, chunk)): true}
	for _, o := range old {
		for c := range slices.Chunk(o, chunk) {
			have[sumOf(c)] = true
		}
	}
	for c := range slices.Chunk(b, chunk) {
		if s := sumOf(c); !have[s] {
			have[s], n = true, n+int64(len(c))
		}
	}
	return n
}

// origin is a store with knobs.
type origin struct {
	*httptest.Server
	t        *testing.T
	image    []byte
	said     string // the sha256 of the manifest that is meant; empty: it is not known
	manifest []byte // as it travels; nil: there is none

	mu    sync.Mutex
	spans []string          // that were asked for
	sent  int64             // bytes of the image
	turn  http.HandlerFunc  // in place of the image
	watch func(span string) // before a part is sent
}

func newOrigin(t *testing.T, b []byte) *origin {
	t.Helper()
	m, err := json.Marshal(manifestOf(b))
	check(t, err)
	o := &origin{t: t, image: b, manifest: m, said: sumOf(m)}
	mux := http.NewServeMux()
	mux.HandleFunc("/manifest", o.serveManifest)
	mux.HandleFunc("/image", o.serveImage)
	o.Server = httptest.NewServer(mux)
	t.Cleanup(o.Close)
	return o
}

func (o *origin) serveManifest(w http.ResponseWriter, r *http.Request) {
	if o.manifest == nil || r.Header.Get(cubeapi.HeaderArtifactToken) != token {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusNotFound)
		_, _ = w.Write([]byte(`{"error":{"code":"artifact_not_found","message":"none"}}`))
		return
	}
	w.Header().Set("Content-Type", artifact.ManifestType)
	_, _ = w.Write(o.manifest)
}

func (o *origin) serveImage(w http.ResponseWriter, r *http.Request) {
	o.mu.Lock()
	turn, watch := o.turn, o.watch
	o.spans = append(o.spans, r.Header.Get("Range"))
	o.mu.Unlock()
	if turn != nil {
		turn(w, r)
		return
	}
	if r.Header.Get(cubeapi.HeaderArtifactToken) != token {
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	if watch != nil {
		watch(r.Header.Get("Range"))
	}
	http.ServeContent(&counting{w, o}, r, "image", time.Time{}, bytes.NewReader(o.image))
}

type counting struct {
	http.ResponseWriter
	o *origin
}

// Write counts first: whoever has the bytes finds them counted.
func (c *counting) Write(b []byte) (int, error) {
	c.o.set(func(o *origin) { o.sent += int64(len(b)) })
	return c.ResponseWriter.Write(b)
}

func (o *origin) served() int64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.sent
}

func (o *origin) set(turn func(*origin)) {
	o.mu.Lock()
	defer o.mu.Unlock()
	turn(o)
}

// wanted asks for the image by its chunks.
func (o *origin) wanted(id string, peers ...string) *hostpb.EnsureArtifactRequest {
	return &hostpb.EnsureArtifactRequest{
		ArtifactId: id, Token: token, Sha256: sumOf(o.image), SizeBytes: int64(len(o.image)), Url: o.URL + "/image", ManifestUrl: o.URL + "/manifest", Peers: peers, PeerToken: peerKey(id).Ticket(time.Now().Add(time.Hour)), PeerKey: peerKey(id).Reveal(), ManifestSha256: o.said,
	}
}

// holder is the artifacts of one host.
type holder struct {
	*images.Store
	t   *testing.T
	dir string
	log *bytes.Buffer
}

type quiet struct {
	mu sync.Mutex
	b  *bytes.Buffer
}

func (q *quiet) Write(b []byte) (int, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.b.Write(b)
}

func newHolder(t *testing.T, dir string, redirectTo ...string) *holder {
	t.Helper()
	h := &holder{t: t, dir: dir, log: &bytes.Buffer{}}
	h.Store = images.New(images.Options{Dir: dir, Log: slog.New(slog.NewTextHandler(&quiet{b: h.log}, nil)), Token: hostToken, RedirectTo: redirectTo})
	check(t, h.Sweep())
	t.Cleanup(h.Wait)
	return h
}

func (h *holder) ensure(r *hostpb.EnsureArtifactRequest) (images.Traffic, error) {
	ctx, cancel := context.WithTimeout(h.t.Context(), time.Minute)
	defer cancel()
	return h.Ensure(ctx, r)
}

// has demands that the host holds exactly these bytes.
func (h *holder) has(id string, want []byte) {
	h.t.Helper()
	b, err := os.ReadFile(h.Path(id))
	if err != nil || !bytes.Equal(b, want) {
		h.t.Fatalf("%d bytes of %d, %v", len(b), len(want), err)
	}
}

// files are the names in the directory.
func (h *holder) files() string {
	h.t.Helper()
	entries, err := os.ReadDir(h.dir)
	check(h.t, err)
	var list []string
	for _, e := range entries {
		list = append(list, strings.TrimPrefix(e.Name(), id))
	}
	return strings.Join(list, " ")
}

func (h *holder) parts() []string {
	h.t.Helper()
	list, err := filepath.Glob(filepath.Join(h.dir, "*.part"))
	check(h.t, err)
	return list
}

// face is the gRPC face of a host: a holder's, or one that misbehaves.
type face struct {
	hostpb.UnimplementedHostServiceServer
	read func(r *hostpb.ReadArtifactRequest, send func([]byte) error) error

	mu    sync.Mutex
	asked int
}

func (f *face) ReadArtifact(r *hostpb.ReadArtifactRequest, s hostpb.HostService_ReadArtifactServer) error {
	f.mu.Lock()
	f.asked++
	f.mu.Unlock()
	return serve.GRPCError(f.read(r, func(b []byte) error { return s.Send(&hostpb.ReadArtifactResponse{Data: b}) }))
}

func (f *face) calls() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.asked
}

// show serves a face and returns its address and what ends it.
func show(t *testing.T, read func(r *hostpb.ReadArtifactRequest, send func([]byte) error) error) (at string, f *face, end func()) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	s := grpc.NewServer(grpc.ChainStreamInterceptor(auth.StreamServer(hostToken, false)))
	f = &face{read: read}
	hostpb.RegisterHostServiceServer(s, f)
	go func() { _ = s.Serve(l) }() // until Stop
	t.Cleanup(s.Stop)
	return l.Addr().String(), f, s.Stop
}
