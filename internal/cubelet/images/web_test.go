package images_test

import (
	"bytes"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/paddock-dev/paddock/internal/artifact"
	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/platform/config"
	"github.com/paddock-dev/paddock/test/service"
)

// elsewhere is an object store to which downloads are led.
func elsewhere(t *testing.T, b []byte) (s *httptest.Server, asked *atomic.Int64) {
	t.Helper()
	asked = &atomic.Int64{}
	s = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		for name, values := range r.Header {
			if strings.EqualFold(name, cubeapi.HeaderArtifactToken) || strings.Contains(strings.Join(values, ""), token) {
				t.Errorf("the object store is told %s: %s", name, values)
			}
		}
		if strings.Contains(r.URL.String(), "tok") {
			t.Errorf("the object store is asked for %s", r.URL)
		}
		switch r.URL.Query().Get("X-Amz-Signature") {
		case "good":
			http.ServeContent(w, r, "image", time.Time{}, bytes.NewReader(b))
		case "on":
			http.Redirect(w, r, "http://169.254.169.254/latest", http.StatusFound)
		default:
			w.WriteHeader(http.StatusForbidden)
		}
	}))
	t.Cleanup(s.Close)
	return s, asked
}

// lead makes the origin lead to where unless it is asked not to.
func (o *origin) lead(where string) {
	o.set(func(o *origin) {
		o.turn = func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get(cubeapi.HeaderArtifactToken) != token {
				w.WriteHeader(http.StatusUnauthorized)
				return
			}
			if r.URL.Query().Get(cubeapi.QueryRedirect) != "false" {
				w.Header().Set("Location", where)
				w.WriteHeader(http.StatusFound)
				return
			}
			http.ServeContent(&counting{w, o}, r, "image", time.Time{}, bytes.NewReader(o.image))
		}
	})
}

// A listed object store sends the bytes, chunks or all, and learns nothing.
func TestLinksAreFollowedWithoutTheToken(t *testing.T) {
	b := picture(1, 300)
	s3, asked := elsewhere(t, b)
	for _, manifest := range []bool{true, false} {
		h := newHolder(t, t.TempDir(), strings.TrimPrefix(s3.URL, "http://"))
		o := newOrigin(t, b)
		o.lead(s3.URL + "/b/o?X-Amz-Signature=good")
		r := o.wanted(id)
		if !manifest {
			r.ManifestUrl = ""
		}
		before := asked.Load()
		_, err := h.ensure(r)
		check(t, err)
		h.has(id, b)
		if o.served() != 0 || asked.Load() == before {
			t.Errorf("the template centre sent %d bytes, the store was asked %d times", o.served(), asked.Load()-before)
		}
	}
}

// Where a host may not go, or where a link is of no use, the template centre
// sends the bytes itself. No private address is even called.
func TestLinksThatAreNotFollowed(t *testing.T) {
	b := picture(1, 100)
	s3, asked := elsewhere(t, b)
	_, port, _ := strings.Cut(strings.TrimPrefix(s3.URL, "http://"), ":")
	for name, c := range map[string]struct {
		link   string
		listed []string
		called bool
	}{
		"private":              {s3.URL + "/?X-Amz-Signature=good", nil, false},
		"private, another":     {s3.URL + "/?X-Amz-Signature=good", []string{"127.0.0.1:9"}, false},
		"private by name":      {"http://localhost:" + port + "/?X-Amz-Signature=good", nil, false},
		"link-local":           {"http://169.254.169.254/latest/meta-data", nil, false},
		"link-local as IPv6":   {"http://[::ffff:169.254.169.254]/latest", nil, false},
		"no web address":       {"file:///etc/shadow", nil, false},
		"nowhere":              {"", nil, false},
		"on to somewhere else": {s3.URL + "/?X-Amz-Signature=on", []string{strings.TrimPrefix(s3.URL, "http://")}, true},
		"expired":              {s3.URL + "/?X-Amz-Signature=old", []string{strings.TrimPrefix(s3.URL, "http://")}, true},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHolder(t, t.TempDir(), c.listed...)
			o := newOrigin(t, b)
			o.lead(c.link)
			before := asked.Load()
			_, err := h.ensure(o.wanted(id))
			check(t, err)
			h.has(id, b)
			if called := asked.Load() > before; called != c.called {
				t.Errorf("the store was called: %v", called)
			}
			if strings.Contains(h.log.String(), "X-Amz") {
				t.Errorf("the log has a link: %s", h.log)
			}
		})
	}
}

// A store that only ever leads elsewhere is a failure, not an endless walk.
func TestALinkWithoutEnd(t *testing.T) {
	b := picture(1, 20)
	h := newHolder(t, t.TempDir())
	o := newOrigin(t, b)
	o.turn = func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "http://10.0.0.1/?X-Amz-Signature=secret", http.StatusFound)
	}
	_, err := h.ensure(o.wanted(id))
	if !errors.Is(err, fault.PeerUnavailable) || strings.Contains(err.Error(), "secret") || !strings.Contains(err.Error(), "redirect_to") {
		t.Errorf("got %v", err)
	}
}

// The links of a real object store serve a host's chunks, and the store learns
// nothing that it does not need.
func TestChunksByLinksOfS3(t *testing.T) {
	b := picture(1, 300)
	s3 := service.S3(t)
	c := config.Default().ArtifactStore.S3
	c.Endpoint, c.Bucket, c.AccessKey, c.SecretKey = s3.Endpoint, s3.Bucket, config.Secret(s3.AccessKey), config.Secret(s3.SecretKey)
	s, err := artifact.NewS3(c)
	check(t, err)
	file := filepath.Join(t.TempDir(), "image")
	check(t, os.WriteFile(file, b, 0o600))
	check(t, s.Put(t.Context(), id+".ext4", file))
	all := config.Default()
	all.ArtifactStore.S3 = c
	h := newHolder(t, t.TempDir(), all.Redirects()...)
	o := newOrigin(t, b)
	var links atomic.Int64
	o.turn = func(w http.ResponseWriter, r *http.Request) {
		link, err := s.Presign(r.Context(), id+".ext4", time.Minute)
		if err != nil || r.URL.Query().Get(cubeapi.QueryRedirect) == "false" {
			t.Errorf("asked for the bytes themselves; %v", err)
		}
		links.Add(1)
		http.Redirect(w, r, link, http.StatusFound)
	}
	got, err := h.ensure(o.wanted(id))
	check(t, err)
	h.has(id, b)
	if links.Load() < 2 || got.Wire != missing(b)+int64(len(o.manifest)) {
		t.Errorf("%d links, %+v", links.Load(), got)
	}
	// Gone from the store: it says so, and nothing is held.
	check(t, s.Remove(t.Context(), id+".ext4"))
	other := newHolder(t, t.TempDir(), all.Redirects()...)
	o.set(func(o *origin) {
		led := o.turn
		o.turn = func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Query().Get(cubeapi.QueryRedirect) == "false" {
				words(http.StatusNotFound, `{"error":{"code":"artifact_not_found","message":"gone"}}`)(w, r)
				return
			}
			led(w, r)
		}
	})
	if _, err := other.ensure(o.wanted(id)); !errors.Is(err, fault.ArtifactNotFound) || other.files() != "" {
		t.Errorf("got %v, there is %s", err, other.files())
	}
}
