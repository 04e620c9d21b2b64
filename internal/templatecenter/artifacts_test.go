package templatecenter_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/platform/telemetry"
	"github.com/paddock-dev/paddock/internal/store"
	"github.com/paddock-dev/paddock/internal/store/templatedb"
	"github.com/paddock-dev/paddock/internal/template"
	"github.com/paddock-dev/paddock/internal/templatecenter"
)

func sum(b []byte) string {
	s := sha256.Sum256(b)
	return hex.EncodeToString(s[:])
}

func (r *rig) download(method, artifactID, given string, header map[string]string) (int, []byte, http.Header) {
	r.t.Helper()
	req, err := http.NewRequestWithContext(r.t.Context(), method, r.url+cubeapi.PathArtifactDownload+"?artifact_id="+artifactID, nil)
	if err != nil {
		r.t.Fatal(err)
	}
	req.Header.Set(cubeapi.HeaderArtifactToken, given)
	for k, v := range header {
		req.Header.Set(k, v)
	}
	a, err := http.DefaultClient.Do(req)
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

// release brings an artifact to where the template centre may remove it.
func (r *rig) release(artifactID string) {
	r.t.Helper()
	r.update(func(ctx context.Context, tx *store.Tx) error {
		a, err := templatedb.GetArtifact(ctx, tx, template.ArtifactID(artifactID))
		for _, on := range []template.ArtifactEvent{template.OnArtifactUnused, template.OnArtifactHostsClean} {
			if err == nil {
				a, err = templatedb.MoveArtifact(ctx, tx, a, on)
			}
		}
		return err
	})
}

func TestDownload(t *testing.T) {
	r := newRig(t, open(t, sqlite(t)), nil)
	out := r.built(r.image("app", "1"))
	good := r.ticket(out.ArtifactID)
	status, body, h := r.download(http.MethodGet, out.ArtifactID, good, nil)
	if status != http.StatusOK || sum(body) != out.Ext4SHA256 {
		t.Errorf("status %d, %d bytes", status, len(body))
	}
	etag := `"` + out.Ext4SHA256 + `"`
	if h.Get("ETag") != etag || h.Get(cubeapi.HeaderArtifactID) != out.ArtifactID || h.Get("Content-Type") != "application/octet-stream" || h.Get("Accept-Ranges") != "bytes" {
		t.Errorf("header %v", h)
	}
	status, none, h := r.download(http.MethodHead, out.ArtifactID, good, nil)
	if status != http.StatusOK || len(none) != 0 || h.Get("Content-Length") != itoa(out.Ext4SizeBytes) {
		t.Errorf("HEAD: %d, %d bytes, %v", status, len(none), h)
	}
	status, part, h := r.download(http.MethodGet, out.ArtifactID, good, map[string]string{"Range": "bytes=1024-2047", "If-Range": etag})
	if status != http.StatusPartialContent || !bytes.Equal(part, body[1024:2048]) || !strings.HasPrefix(h.Get("Content-Range"), "bytes 1024-2047/") {
		t.Errorf("range: %d, %d bytes, %v", status, len(part), h)
	}
	if status, all, _ := r.download(http.MethodGet, out.ArtifactID, good, map[string]string{"Range": "bytes=1024-2047", "If-Range": `"other"`}); status != http.StatusOK || len(all) != len(body) {
		t.Errorf("range of other bytes: %d, %d bytes", status, len(all))
	}
	if status, _, _ := r.download(http.MethodGet, out.ArtifactID+"&token="+good, "", nil); status != http.StatusOK {
		t.Errorf("token in the query: %d", status)
	}
	expectMetric(t, r, `paddock_artifact_bytes_total{direction="served"}`)
}

func itoa(n int64) string {
	b, _ := json.Marshal(n)
	return string(b)
}

func TestADownloadThatIsRefusedIsNever200(t *testing.T) {
	r := newRig(t, open(t, sqlite(t)), nil)
	out, gone, short := r.built(r.image("a", "1")), r.built(r.image("b", "2")), r.built(r.image("c", "3"))
	released := r.built(r.image("d", "4"))
	r.release(released.ArtifactID)
	if err := os.Remove(gone.Ext4Path); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(short.Ext4Path, 100); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		id, token string
		status    int
		code      *fault.Code
	}{
		"no token":    {out.ArtifactID, "", 401, fault.TokenRejected},
		"wrong token": {out.ArtifactID, "guess", 401, fault.TokenRejected},
		"other's":     {out.ArtifactID, r.ticket(gone.ArtifactID), 401, fault.TokenRejected},
		"no id":       {"", "x", 400, fault.InvalidInput},
		"bad id":      {"../../etc/passwd", "x", 400, fault.InvalidInput},
		"unknown":     {"rfs-000000000000000000000000", "x", 404, fault.ArtifactNotFound},
		"bytes gone":  {gone.ArtifactID, r.ticket(gone.ArtifactID), 404, fault.ArtifactNotFound},
		"released":    {released.ArtifactID, r.ticket(released.ArtifactID), 404, fault.ArtifactNotFound},
		"cut short":   {short.ArtifactID, r.ticket(short.ArtifactID), 500, fault.ArtifactCorrupt},
	} {
		t.Run(name, func(t *testing.T) {
			status, body, _ := r.download(http.MethodGet, c.id, c.token, nil)
			if status != c.status || !strings.Contains(string(body), `"`+c.code.Name+`"`) {
				t.Errorf("%d %s, want %d %s", status, body, c.status, c.code.Name)
			}
			if status, _, _ := r.download(http.MethodHead, c.id, c.token, nil); status != c.status {
				t.Errorf("HEAD: %d, want %d", status, c.status)
			}
		})
	}
}

func TestDelete(t *testing.T) {
	databases(t, func(t *testing.T, db *store.Store) {
		r := newRig(t, db, nil)
		ref := r.image("app", "1")
		out := r.built(ref)
		body := `{"artifact_id":"` + out.ArtifactID + `"}`
		if status, answer := r.post(cubeapi.PathTCArtifactDelete, token, body); status != http.StatusConflict || !strings.Contains(answer, fault.StateConflict.Name) {
			t.Errorf("before its release: %d %s", status, answer)
		}
		r.release(out.ArtifactID)
		for range 2 {
			if status, answer := r.post(cubeapi.PathTCArtifactDelete, token, body); status != http.StatusOK || !strings.Contains(answer, `"deleted"`) {
				t.Errorf("%d %s", status, answer)
			}
			if work, kept := r.left(); len(work)+len(kept) > 0 {
				t.Errorf("left in work %v, in the store %v", work, kept)
			}
		}
		if again := r.built(ref); again.Reused || again.ArtifactID != out.ArtifactID {
			t.Errorf("after the delete: %+v", again)
		}
		for _, bad := range []string{`{"artifact_id":"../x"}`, `{}`, `[`} {
			if status, answer := r.post(cubeapi.PathTCArtifactDelete, token, bad); status != http.StatusBadRequest {
				t.Errorf("%s: %d %s", bad, status, answer)
			}
		}
	})
}

// TestABuildFinishesADelete: the same image again, while its artifact waits to
// be removed.
func TestABuildFinishesADelete(t *testing.T) {
	r := newRig(t, open(t, sqlite(t)), nil)
	ref := r.image("app", "1")
	first := r.built(ref)
	r.release(first.ArtifactID)
	second := r.built(ref)
	if second.Reused || second.ArtifactID != first.ArtifactID {
		t.Errorf("outcome %+v", second)
	}
	status, body, _ := r.download(http.MethodGet, second.ArtifactID, r.ticket(second.ArtifactID), nil)
	if status != http.StatusOK || sum(body) != second.Ext4SHA256 {
		t.Errorf("download: %d, %d bytes", status, len(body))
	}
}

func TestBytesThatCannotBeRemovedAreKeptInTheBooks(t *testing.T) {
	r := newRig(t, open(t, sqlite(t)), nil)
	out := r.built(r.image("app", "1"))
	r.release(out.ArtifactID)
	// A directory in the file's place cannot be removed as a file.
	if err := os.Remove(out.Ext4Path); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(out.Ext4Path, "x"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := r.client.DeleteArtifact(t.Context(), out.ArtifactID); fault.Of(err) != fault.StoreUnavailable {
		t.Errorf("error %v", err)
	}
	r.update(func(ctx context.Context, tx *store.Tx) error {
		a, err := templatedb.GetArtifact(ctx, tx, template.ArtifactID(out.ArtifactID))
		if err == nil && (a.State != template.ArtifactCleanup || a.Error == "") {
			t.Errorf("artifact %+v", a)
		}
		return err
	})
}

func TestBytesInNoBookAreRemoved(t *testing.T) {
	r := newRig(t, open(t, sqlite(t)), nil)
	out := r.built(r.image("app", "1"))
	r.stop()
	dir := r.deps.Config.ArtifactStore.Dir
	old := time.Now().Add(-2 * time.Hour)
	orphans := []string{"rfs-0123456789abcdef01234567.ext4", "rfs-0123456789abcdef01234567.receipt.json", "rfs-bbbbbbbbbbbbbbbbbbbbbbbb.receipt.json"}
	const fresh = "rfs-aaaaaaaaaaaaaaaaaaaaaaaa.ext4"
	stay := []string{fresh, "notes.txt", "rfs-1.receipt.json", out.ObjectKey, out.ArtifactID + ".receipt.json"}
	names := append(slices.Clone(orphans), stay...)
	for _, n := range names {
		f, err := os.OpenFile(filepath.Join(dir, n), os.O_CREATE|os.O_RDWR, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
		if n != fresh {
			if err := os.Chtimes(filepath.Join(dir, n), old, old); err != nil {
				t.Fatal(err)
			}
		}
	}
	r.start()
	eventually(t, "the orphans' end", func() bool { _, kept := r.left(); return len(kept) <= len(stay) })
	for _, n := range stay {
		if _, err := os.Stat(filepath.Join(dir, n)); err != nil {
			t.Error(err)
		}
	}
}

// TestAStartRemovesWhatACrashLeft in the work directory, which no second
// process may use.
func TestAStartRemovesWhatACrashLeft(t *testing.T) {
	r := newRig(t, open(t, sqlite(t)), nil)
	second := r.deps
	second.Metrics = telemetry.NewRegistry()
	if _, err := templatecenter.Open(second); fault.Of(err) != fault.DataDirLocked {
		t.Errorf("second process: %v", err)
	}
	r.stop()
	work := r.deps.Config.TemplateCenter.WorkDir
	for _, name := range []string{"build-1/tree/etc/passwd", "build-job-1.ext4"} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(work, name)), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(work, name), []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	r.start()
	if left, _ := r.left(); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	r.built(r.image("app", "1"))
}

func TestADirectoryThatCannotBeUsedStopsTheStart(t *testing.T) {
	r := newRig(t, open(t, sqlite(t)), nil)
	r.stop()
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, change := range []func(*templatecenter.Deps){
		func(d *templatecenter.Deps) { d.Config.TemplateCenter.WorkDir = filepath.Join(file, "work") },
		func(d *templatecenter.Deps) { d.Config.ArtifactStore.Dir = filepath.Join(file, "store") },
	} {
		d := r.deps
		d.Metrics = telemetry.NewRegistry()
		change(&d)
		c, err := templatecenter.Open(d)
		if fault.Of(err) != fault.DataDir {
			t.Errorf("error %v", err)
		}
		if err := c.Run(t.Context()); fault.Of(err) != fault.DataDir {
			t.Errorf("what could not be opened runs: %v", err)
		}
	}
}

func TestHealth(t *testing.T) {
	r := newRig(t, open(t, sqlite(t)), nil)
	health := func(h http.Handler) (int, cubeapi.TCAnswer) {
		w := httptest.NewRecorder()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, cubeapi.PathTCHealth, nil)
		if err != nil {
			t.Fatal(err)
		}
		h.ServeHTTP(w, req)
		var a cubeapi.TCAnswer
		if err := json.Unmarshal(w.Body.Bytes(), &a); err != nil {
			t.Fatal(err)
		}
		return w.Code, a
	}
	eventually(t, "readiness", func() bool { status, a := health(r.center.Handler()); return status == 200 && a.Status == "ok" })

	d := r.deps
	d.Metrics = telemetry.NewRegistry()
	d.Config.TemplateCenter.WorkDir = t.TempDir()
	fresh, err := templatecenter.New(d)
	if err != nil {
		t.Fatal(err)
	}
	if status, a := health(fresh.Handler()); status != 503 || a.Status != "not_ready" || a.Checks["nodemeta"] == "ok" || a.Checks["store"] != "ok" {
		t.Errorf("before Run: %d %+v", status, a)
	}
	// A volume that went away is seen, and seen to be back.
	dir := r.deps.Config.ArtifactStore.Dir
	if err := os.Rename(dir, dir+".away"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the store is missed", func() bool {
		status, a := health(r.center.Handler())
		return status == 503 && a.Checks["artifacts"] == fault.StoreUnavailable.Name && a.Checks["store"] == "ok"
	})
	if err := os.Rename(dir+".away", dir); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the store is back", func() bool { status, _ := health(r.center.Handler()); return status == 200 })
	if err := r.db.Close(); err != nil {
		t.Fatal(err)
	}
	if status, a := health(r.center.Handler()); status != 503 || a.Status != "not_ready" || a.Checks["store"] == "ok" {
		t.Errorf("store away: %d %+v", status, a)
	}
}
