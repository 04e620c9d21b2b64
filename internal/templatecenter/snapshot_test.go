package templatecenter_test

import (
	"archive/tar"
	"context"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/sandbox"
	"github.com/paddock-dev/paddock/internal/store"
	"github.com/paddock-dev/paddock/internal/store/sandboxdb"
	"github.com/paddock-dev/paddock/internal/template"
)

// A snapshot is built as an image of one layer is, with the program of the image
// that its sandbox began with. A root that breaks off makes nothing.
func TestASnapshotBecomesAnArtifact(t *testing.T) {
	databases(t, func(t *testing.T, db *store.Store) {
		r := newRig(t, db, nil)
		first := r.built(r.image("base", "1"))
		id := sandbox.SnapshotID("snap-0123456789abcdef01234567")
		r.update(func(ctx context.Context, tx *store.Tx) error {
			n, err := sandboxdb.AddSnapshot(ctx, tx, sandbox.Snapshot{ID: id, SandboxID: "sb-1", TemplateID: template.ID(first.TemplateID), ArtifactID: template.ArtifactID(first.ArtifactID), HostID: "h1"})
			if err == nil {
				_, err = sandboxdb.MoveSnapshot(ctx, tx, n, sandbox.OnSnapKept)
			}
			return err
		})
		whole := true
		r.master.setRoot(func(w http.ResponseWriter, r *http.Request) {
			if got := r.URL.Query().Get("snapshot_id"); got != string(id) || r.Header.Get(cubeapi.HeaderCallbackToken) != token {
				t.Errorf("asked for %q", got)
			}
			out := tar.NewWriter(w)
			for _, f := range []string{"bin/", "etc/", "etc/made"} {
				h := tar.Header{Name: f, Mode: 0o755, Typeflag: tar.TypeDir}
				if !strings.HasSuffix(f, "/") {
					h.Typeflag, h.Size = tar.TypeReg, 4
				}
				if err := out.WriteHeader(&h); err != nil {
					t.Error(err)
				}
				if h.Size > 0 {
					_, _ = out.Write([]byte("made"))
				}
			}
			if !whole {
				panic(http.ErrAbortHandler)
			}
			_ = out.Close()
		})
		b := r.job(cubeapi.SnapshotRef + string(id))
		r.submit(b)
		got := r.master.outcome(b.JobID)
		if got.Status != cubeapi.StatusBuilt || got.ArtifactID == first.ArtifactID || got.ImageConfig == nil || !slices.Equal(got.ImageConfig.Entrypoint, first.ImageConfig.Entrypoint) || !slices.Equal(got.ImageConfig.Env, first.ImageConfig.Env) {
			t.Fatalf("it came to %+v, with %+v", got, got.ImageConfig)
		}
		whole = false
		bad := r.job(cubeapi.SnapshotRef + string(id))
		r.submit(bad)
		if out := r.master.outcome(bad.JobID); out.Status != cubeapi.StatusFailed {
			t.Errorf("of half a root came %+v", out)
		}
		none := r.job(cubeapi.SnapshotRef + "snap-000000000000000000000000")
		r.submit(none)
		if out := r.master.outcome(none.JobID); out.ErrorCode != "snapshot_not_found" {
			t.Errorf("of none came %+v", out)
		}
		if work, _ := r.left(); len(work) > 0 {
			eventually(t, "nothing is left", func() bool { work, _ = r.left(); return len(work) == 0 })
		}
	})
}
