package images_test

import (
	"bytes"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/hostpb"
)

func words(status int, body string) http.HandlerFunc {
	return func(rw http.ResponseWriter, _ *http.Request) {
		rw.Header().Set("Content-Type", "application/json")
		rw.WriteHeader(status)
		_, _ = rw.Write([]byte(body))
	}
}

// With a host that holds it, the store is asked for the manifest and no more.
func TestPeersComeFirst(t *testing.T) {
	b := picture(1, 300)
	o := newOrigin(t, b)
	first := newHolder(t, t.TempDir())
	_, err := first.ensure(o.wanted(id))
	check(t, err)
	at, face, _ := show(t, first.Read)
	o.set(func(o *origin) { o.sent = 0 })
	second := newHolder(t, t.TempDir())
	got, err := second.ensure(o.wanted(id, at))
	check(t, err)
	second.has(id, b)
	if o.served() != 0 || face.calls() == 0 || got.Peers != missing(b) || got.Wire != got.Peers+int64(len(o.manifest)) {
		t.Errorf("the store sent %d, of the peer came %+v in %d calls", o.served(), got, face.calls())
	}
}

// A peer that lies, stalls, dies or refuses is left at once, and what is
// missing comes from another, at last from the store.
func TestBadPeersAreLeft(t *testing.T) {
	b := picture(1, 300)
	stuck := make(chan struct{})
	defer close(stuck)
	type reader = func(r *hostpb.ReadArtifactRequest, send func([]byte) error) error
	for name, read := range map[string]reader{
		"lies": func(r *hostpb.ReadArtifactRequest, send func([]byte) error) error {
			lie := slices.Clone(asked(r, b))
			lie[len(lie)-1] ^= 1
			return send(lie)
		},
		"says too little": func(r *hostpb.ReadArtifactRequest, send func([]byte) error) error {
			return send(asked(r, b)[:chunk+10])
		},
		"stalls": func(r *hostpb.ReadArtifactRequest, send func([]byte) error) error {
			err := send(asked(r, b)[:100])
			<-stuck
			return err
		},
		"breaks off": func(r *hostpb.ReadArtifactRequest, send func([]byte) error) error {
			return errors.Join(send(asked(r, b)[:2*chunk]), errors.New("out of memory"))
		},
		"does not hold it": func(*hostpb.ReadArtifactRequest, func([]byte) error) error {
			return fault.New(fault.ArtifactNotFound, "not here")
		},
	} {
		for _, second := range []string{"the store", "another peer"} {
			t.Run(name+", "+second, func(t *testing.T) {
				o := newOrigin(t, b)
				bad, face, _ := show(t, read)
				peers := []string{bad}
				if second == "another peer" {
					good := newHolder(t, t.TempDir())
					_, err := good.ensure(o.wanted(id))
					check(t, err)
					at, _, _ := show(t, good.Read)
					peers = append(peers, at)
					o.set(func(o *origin) { o.sent = 0 })
				}
				h := newHolder(t, t.TempDir())
				h.Impatient(time.Minute, 3*time.Second)
				_, err := h.ensure(o.wanted(id, peers...))
				check(t, err)
				h.has(id, b)
				if second == "another peer" && o.served() != 0 {
					t.Errorf("the store sent %d bytes although a host has them", o.served())
				}
				// Each of the workers may have met it before it was left, and taken
				// another turn meanwhile.
				if n := face.calls(); n < 1 || n > 8 {
					t.Errorf("it was asked %d times", n)
				}
				if said := h.log.String(); strings.Count(said, "is left") != 1 || !strings.Contains(said, bad) {
					t.Errorf("the log: %s", said)
				}
			})
		}
	}
}

// A peer that dies in the middle, and one that was never there.
func TestDyingPeers(t *testing.T) {
	b := picture(1, 600)
	o := newOrigin(t, b)
	var end func()
	at, _, end := show(t, func(r *hostpb.ReadArtifactRequest, send func([]byte) error) error {
		err := send(asked(r, b)[:3*chunk])
		go end()
		<-t.Context().Done()
		return err
	})
	h := newHolder(t, t.TempDir())
	got, err := h.ensure(o.wanted(id, at, "127.0.0.1:1"))
	check(t, err)
	h.has(id, b)
	if got.Wire-got.Peers < missing(b)/2 {
		t.Errorf("%+v", got)
	}
}

// Who may read: hosts that show their own token, the artifact's, and name the
// bytes that are there.
func TestWhoMayRead(t *testing.T) {
	b := picture(1, 20)
	h := newHolder(t, t.TempDir())
	o := newOrigin(t, b)
	_, err := h.ensure(o.wanted(id))
	check(t, err)
	ask := func(change func(*hostpb.ReadArtifactRequest)) error {
		r := &hostpb.ReadArtifactRequest{ArtifactId: id, Token: peerKey(id).Ticket(time.Now().Add(time.Hour)), Sha256: sumOf(b), Offset: 10, SizeBytes: chunk}
		if change != nil {
			change(r)
		}
		var got []byte
		err := h.Read(r, func(b []byte) error { got = append(got, b...); return nil })
		if err == nil && !slices.Equal(got, asked(r, b)) {
			t.Error("it sent other bytes")
		}
		return err
	}
	check(t, ask(nil))
	for name, c := range map[string]struct {
		change func(*hostpb.ReadArtifactRequest)
		want   *fault.Code
	}{
		"no token":    {func(r *hostpb.ReadArtifactRequest) { r.Token = "" }, fault.TokenRejected},
		"wrong token": {func(r *hostpb.ReadArtifactRequest) { r.Token += "x" }, fault.TokenRejected},
		"store's":     {func(r *hostpb.ReadArtifactRequest) { r.Token = token }, fault.TokenRejected},
		"over":        {func(r *hostpb.ReadArtifactRequest) { r.Token = peerKey(id).Ticket(time.Now()) }, fault.TokenExpired},
		"another's":   {func(r *hostpb.ReadArtifactRequest) { r.Token = peerKey(otherID).Ticket(time.Now().Add(time.Hour)) }, fault.TokenRejected},
		"another id":  {func(r *hostpb.ReadArtifactRequest) { r.ArtifactId = otherID }, fault.ArtifactNotFound},
		"a path":      {func(r *hostpb.ReadArtifactRequest) { r.ArtifactId = "../" + id }, fault.InvalidInput},
		"other bytes": {func(r *hostpb.ReadArtifactRequest) { r.Sha256 = sumOf(nil) }, fault.ArtifactNotFound},
		"before it":   {func(r *hostpb.ReadArtifactRequest) { r.Offset = -1 }, fault.InvalidInput},
		"behind it":   {func(r *hostpb.ReadArtifactRequest) { r.Offset = int64(len(b)) }, fault.InvalidInput},
		"nothing":     {func(r *hostpb.ReadArtifactRequest) { r.SizeBytes = 0 }, fault.InvalidInput},
		"overflow":    {func(r *hostpb.ReadArtifactRequest) { r.Offset, r.SizeBytes = 1<<62, 1<<62 }, fault.InvalidInput},
	} {
		if err := ask(c.change); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %s", name, err, c.want.Name)
		}
	}
	// An artifact that was registered anew has another key; the bytes are the
	// same and do not travel again.
	r := o.wanted(id)
	anew := peerKey("registered anew")
	r.PeerKey = anew.Reveal()
	if got, err := h.ensure(r); err != nil || got.Wire != 0 {
		t.Fatalf("%+v, %v", got, err)
	}
	if err := ask(nil); !errors.Is(err, fault.TokenRejected) {
		t.Errorf("the old token: %v", err)
	}
	check(t, ask(func(r *hostpb.ReadArtifactRequest) { r.Token = anew.Ticket(time.Now().Add(time.Hour)) }))
	// After a restart the host still knows whom to admit.
	h = newHolder(t, h.dir)
	check(t, ask(func(r *hostpb.ReadArtifactRequest) { r.Token = anew.Ticket(time.Now().Add(time.Hour)) }))
}

// A token that is over in the middle of a download is a word for the master, not
// the end: what came is kept for the call with the next one.
func TestATokenThatIsOverLosesNothing(t *testing.T) {
	for _, way := range []string{"chunks", "whole"} {
		t.Run(way, func(t *testing.T) {
			b := picture(1, 600)
			o := newOrigin(t, b)
			r := o.wanted(id)
			if way == "whole" {
				r.ManifestUrl = ""
			}
			var parts atomic.Int32
			over := words(http.StatusUnauthorized, `{"error":{"code":"token_expired","message":"it was good until noon"}}`)
			o.turn = func(w http.ResponseWriter, q *http.Request) {
				switch n := parts.Add(1); {
				case n > 20 || n > 1 && way == "whole":
					over(w, q)
				case way == "whole": // it breaks off, and is asked for the rest
					w.Header().Set("Content-Length", strconv.Itoa(len(b)))
					_, _ = w.Write(b[:len(b)/2])
				default:
					http.ServeContent(w, q, "image", time.Time{}, bytes.NewReader(b))
				}
			}
			h := newHolder(t, t.TempDir())
			first, err := h.ensure(r)
			if !errors.Is(err, fault.TokenExpired) || first.Wire == 0 {
				t.Fatalf("%+v, %v", first, err)
			}
			o.mu.Lock()
			o.turn = nil
			o.mu.Unlock()
			second, err := h.ensure(r)
			check(t, err)
			h.has(id, b)
			manifest := int64(0)
			if way == "chunks" {
				manifest = int64(len(o.manifest))
			}
			if want := int64(len(b)) - first.Wire; way == "whole" && second.Wire != want {
				t.Errorf("it fetched %d bytes, %d were missing", second.Wire, want)
			}
			// When the 21st part was asked for, at most three others were on their way.
			if most := missing(b) - 17*chunk; way == "chunks" && second.Wire-manifest > most {
				t.Errorf("it fetched %d bytes, at most %d were missing", second.Wire-manifest, most)
			}
		})
	}
}
