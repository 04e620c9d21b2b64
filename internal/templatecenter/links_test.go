package templatecenter_test

import (
	"bytes"
	"encoding/hex"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/paddock-dev/paddock/internal/artifact"
	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/platform/config"
	"github.com/paddock-dev/paddock/internal/templatecenter"
	"github.com/paddock-dev/paddock/test/service"
)

// ask asks without following where it is led.
func (r *rig) ask(method, link string, header map[string]string) (int, []byte, http.Header) {
	r.t.Helper()
	req, err := http.NewRequestWithContext(r.t.Context(), method, link, nil)
	if err != nil {
		r.t.Fatal(err)
	}
	for k, v := range header {
		req.Header.Set(k, v)
	}
	client := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	a, err := client.Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	defer a.Body.Close()
	b, err := io.ReadAll(a.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	return a.StatusCode, b, a.Header
}

// door stands before an object store: it can be shut.
type door struct {
	mu   sync.Mutex
	shut bool
}

func (d *door) set(shut bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.shut = shut
}

func onS3(t *testing.T, presign bool) (*rig, *artifact.S3, *door) {
	t.Helper()
	s3 := service.S3(t)
	target, err := url.Parse(s3.Endpoint)
	if err != nil {
		t.Fatal(err)
	}
	d := &door{}
	proxy := &httputil.ReverseProxy{Rewrite: func(p *httputil.ProxyRequest) {
		p.SetURL(target)
		p.Out.Host = p.In.Host // it is signed
	}}
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		d.mu.Lock()
		shut := d.shut
		d.mu.Unlock()
		if shut {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		proxy.ServeHTTP(w, q)
	}))
	t.Cleanup(front.Close)
	c := config.Default().ArtifactStore.S3
	c.Endpoint, c.Bucket, c.AccessKey, c.SecretKey, c.Presign = front.URL, s3.Bucket, config.Secret(s3.AccessKey), config.Secret(s3.SecretKey), presign
	r := newRig(t, open(t, sqlite(t)), func(d *templatecenter.Deps) {
		d.Config.ArtifactStore.Backend, d.Config.ArtifactStore.S3 = "s3", c
		if err := os.MkdirAll(d.Config.ArtifactStore.Dir, 0o700); err != nil {
			t.Fatal(err)
		}
	})
	s, err := artifact.NewS3(c)
	if err != nil {
		t.Fatal(err)
	}
	return r, s, d
}

// The table of downloads: both backends, with and without links.
func TestDownloadsOfEachBackend(t *testing.T) {
	for name, backend := range map[string]func(*testing.T) *rig{
		"dir":           func(t *testing.T) *rig { return newRig(t, open(t, sqlite(t)), nil) },
		"s3, streaming": func(t *testing.T) *rig { r, _, _ := onS3(t, false); return r },
		"s3, links":     func(t *testing.T) *rig { r, _, _ := onS3(t, true); return r },
	} {
		t.Run(name, func(t *testing.T) {
			r := backend(t)
			out := r.built(r.image("app", "1"))
			link := r.url + cubeapi.PathArtifactDownload + "?artifact_id=" + out.ArtifactID
			withToken := func(more ...string) map[string]string {
				h := map[string]string{cubeapi.HeaderArtifactToken: r.ticket(out.ArtifactID)}
				for i := 0; i+1 < len(more); i += 2 {
					h[more[i]] = more[i+1]
				}
				return h
			}
			mustBeOf := func(what string, h http.Header) {
				t.Helper()
				if h.Get("ETag") != `"`+out.Ext4SHA256+`"` || h.Get(cubeapi.HeaderArtifactID) != out.ArtifactID {
					t.Errorf("%s: %v", what, h)
				}
			}
			status, body, h := r.ask(http.MethodHead, link, withToken())
			if status != http.StatusOK || len(body) > 0 || h.Get("Content-Length") != itoa(out.Ext4SizeBytes) || h.Get("Location") != "" {
				t.Errorf("HEAD: %d %v", status, h)
			}
			mustBeOf("HEAD", h)
			fetched, head := link, withToken()
			status, whole, h := r.ask(http.MethodGet, link, head)
			mustBeOf("GET", h)
			if name == "s3, links" {
				fetched = h.Get("Location")
				u, err := url.Parse(fetched)
				if status != http.StatusFound || err != nil || u.Query().Get("X-Amz-Expires") != "900" || strings.Contains(fetched, "pt1.") || h.Get("Cache-Control") != "no-store" {
					t.Fatalf("GET: %d %v", status, h)
				}
				clear(head) // the link is enough
				status, whole, _ = r.ask(http.MethodGet, fetched, head)
			}
			if status != http.StatusOK || sum(whole) != out.Ext4SHA256 {
				t.Errorf("GET: %d, %d bytes", status, len(whole))
			}
			head["Range"] = "bytes=1024-2047"
			status, part, h := r.ask(http.MethodGet, fetched, head)
			if status != http.StatusPartialContent || !bytes.Equal(part, whole[1024:2048]) || !strings.HasPrefix(h.Get("Content-Range"), "bytes 1024-2047/") {
				t.Errorf("a part: %d, %d bytes, %v", status, len(part), h)
			}
			head["Range"] = "bytes=" + itoa(out.Ext4SizeBytes) + "-"
			if status, _, _ := r.ask(http.MethodGet, fetched, head); status != http.StatusRequestedRangeNotSatisfiable {
				t.Errorf("a part behind the end: %d", status)
			}
			status, part, h = r.ask(http.MethodGet, link+"&"+cubeapi.QueryRedirect+"=false", withToken("Range", "bytes=4096-8191"))
			if status != http.StatusPartialContent || !bytes.Equal(part, whole[4096:8192]) {
				t.Errorf("without a link: %d, %d bytes", status, len(part))
			}
			mustBeOf("without a link", h)
			if status, _, h := r.ask(http.MethodGet, link, nil); status != http.StatusUnauthorized || h.Get("Location") != "" {
				t.Errorf("without a token: %d %v", status, h)
			}
			r.mustServeManifest(out, whole)
		})
	}
}

// mustServeManifest demands that the manifest is of these bytes.
func (r *rig) mustServeManifest(out cubeapi.JobReport, whole []byte) {
	r.t.Helper()
	link := r.url + cubeapi.PathArtifactManifest + "?artifact_id=" + out.ArtifactID
	status, b, h := r.ask(http.MethodGet, link, map[string]string{cubeapi.HeaderArtifactToken: r.ticket(out.ArtifactID)})
	m, sums, err := artifact.ReadManifest(b)
	if status != http.StatusOK || err != nil || h.Get("Content-Type") != artifact.ManifestType || m.SHA256 != out.Ext4SHA256 || m.SizeBytes != out.Ext4SizeBytes {
		r.t.Fatalf("manifest: %d %v %v %.200s", status, err, h, b)
	}
	i := 0
	for c := range slices.Chunk(whole, int(m.ChunkBytes)) {
		if zero := bytes.Equal(c, make([]byte, len(c))); zero != sums[i].Zero() || !zero && sum(c) != hexOf(sums[i]) {
			r.t.Errorf("chunk %d has another sum", i)
		}
		i++
	}
	for _, given := range []string{"", "guess"} {
		if status, b, _ := r.ask(http.MethodGet, link, map[string]string{cubeapi.HeaderArtifactToken: given}); status != http.StatusUnauthorized || !strings.Contains(string(b), fault.TokenRejected.Name) {
			r.t.Errorf("token %q: %d %s", given, status, b)
		}
	}
}

func hexOf(s artifact.Sum) string {
	return hex.EncodeToString(s[:])
}

// Bytes that are gone are told from a store that does not answer; neither is
// ever a 200 or a link.
func TestGoneIsNotAway(t *testing.T) {
	check := func(t *testing.T, r *rig, id, what string, status int, code *fault.Code) {
		t.Helper()
		link := r.url + cubeapi.PathArtifactDownload + "?artifact_id=" + id
		for _, more := range []string{"", "&" + cubeapi.QueryRedirect + "=false"} {
			got, b, h := r.ask(http.MethodGet, link+more, map[string]string{cubeapi.HeaderArtifactToken: r.ticket(id)})
			if got != status || !strings.Contains(string(b), `"`+code.Name+`"`) || h.Get("Location") != "" || h.Get("ETag") != "" {
				t.Errorf("%s%s: %d %s", what, more, got, b)
			}
		}
	}
	t.Run("dir", func(t *testing.T) {
		r := newRig(t, open(t, sqlite(t)), nil)
		out := r.built(r.image("app", "1"))
		dir := r.deps.Config.ArtifactStore.Dir
		if err := os.Rename(dir, dir+".away"); err != nil {
			t.Fatal(err)
		}
		check(t, r, out.ArtifactID, "away", http.StatusServiceUnavailable, fault.StoreUnavailable)
		if err := os.Rename(dir+".away", dir); err != nil {
			t.Fatal(err)
		}
		if err := os.Remove(filepath.Join(dir, out.ObjectKey)); err != nil {
			t.Fatal(err)
		}
		check(t, r, out.ArtifactID, "gone", http.StatusNotFound, fault.ArtifactNotFound)
	})
	t.Run("s3", func(t *testing.T) {
		r, s, d := onS3(t, true)
		out := r.built(r.image("app", "1"))
		d.set(true)
		check(t, r, out.ArtifactID, "away", http.StatusServiceUnavailable, fault.StoreUnavailable)
		d.set(false)
		if err := s.Remove(t.Context(), out.ObjectKey); err != nil {
			t.Fatal(err)
		}
		check(t, r, out.ArtifactID, "gone", http.StatusNotFound, fault.ArtifactNotFound)
		// Who asks for the same image again heals it.
		if again := r.built(r.image("app", "1")); again.Reused || again.Ext4SHA256 != out.Ext4SHA256 {
			t.Errorf("again: %+v", again)
		}
	})
}
