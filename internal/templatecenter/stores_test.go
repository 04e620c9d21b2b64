package templatecenter_test

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/platform/config"
	"github.com/paddock-dev/paddock/internal/store"
	"github.com/paddock-dev/paddock/internal/store/templatedb"
	"github.com/paddock-dev/paddock/internal/template"
	"github.com/paddock-dev/paddock/internal/templatecenter"
	"github.com/paddock-dev/paddock/test/service"
)

// beside starts another centre on the same database, whose store change alters.
func (r *rig) beside(change func(*config.ArtifactStore)) *rig {
	r.t.Helper()
	return newRig(r.t, r.db, func(d *templatecenter.Deps) {
		d.Config.Master.Addr = r.deps.Config.Master.Addr
		d.Config.ArtifactStore = r.deps.Config.ArtifactStore
		change(&d.Config.ArtifactStore)
	})
}

// says returns what a centre says of an artifact's bytes.
func (r *rig) says(id string) error {
	_, err := r.client.StatArtifact(r.t.Context(), id, false)
	return err
}

// A centre with a directory of its own knows nothing of what another stored: it
// neither calls it gone, nor makes it again beside the row.
func TestAnotherStoreSaysNothing(t *testing.T) {
	r := newRig(t, open(t, sqlite(t)), nil)
	image := r.image("app", "1")
	made := r.built(image)
	a := r.artifact(made.ArtifactID)
	other := r.beside(func(a *config.ArtifactStore) { a.Dir = filepath.Join(t.TempDir(), "other") })
	must(t, r.says(made.ArtifactID))
	refused(t, other.says(made.ArtifactID), fault.BytesElsewhere)
	_, err := other.client.MoveArtifact(t.Context(), made.ArtifactID)
	refused(t, err, fault.BytesElsewhere)
	status, body, _ := other.download(http.MethodGet, made.ArtifactID, r.ticket(made.ArtifactID), nil)
	if status != http.StatusServiceUnavailable || !bytes.Contains(body, []byte("bytes_elsewhere")) {
		t.Errorf("download: %d %s", status, body)
	}
	r.stop()
	again := r.job(image)
	other.submit(again)
	eventually(t, "the build is refused", func() bool { return r.jobRow(again.JobID).State == template.JobFailed })
	if j := r.jobRow(again.JobID); j.ErrorCode != fault.BytesElsewhere.Name {
		t.Errorf("%s: %s", j.ErrorCode, j.Error)
	}
	if now := r.artifact(made.ArtifactID); now.Version != a.Version || now.State != a.State {
		t.Errorf("the row is %+v", now)
	}
	if list := names(t, other.deps.Config.ArtifactStore.Dir); len(list) != 0 {
		t.Errorf("it stored %v", list)
	}
	if _, err := os.Stat(made.Ext4Path); err != nil {
		t.Error(err)
	}
}

// Centres that share a directory believe each other, and it.
func TestASharedStoreIsBelieved(t *testing.T) {
	r := newRig(t, open(t, sqlite(t)), nil)
	other := r.beside(func(*config.ArtifactStore) {})
	made := r.built(r.image("app", "1"))
	dir := r.deps.Config.ArtifactStore.Dir
	for _, c := range []*rig{r, other} {
		must(t, c.says(made.ArtifactID))
	}
	// A volume that is not mounted has no name, and nothing follows from it.
	aside := filepath.Join(t.TempDir(), "aside")
	must(t, os.Rename(dir, aside))
	must(t, os.Mkdir(dir, 0o700))
	for _, c := range []*rig{r, other} {
		refused(t, c.says(made.ArtifactID), fault.StoreUnavailable)
	}
	// Nor from one that a start took for new.
	other.stop()
	other.start()
	refused(t, other.says(made.ArtifactID), fault.BytesElsewhere)
	must(t, os.RemoveAll(dir))
	must(t, os.Rename(aside, dir))
	for _, c := range []*rig{r, other} {
		must(t, c.says(made.ArtifactID))
	}
	// The very store that had it says that it is gone.
	must(t, os.Remove(made.Ext4Path))
	for _, c := range []*rig{r, other} {
		refused(t, c.says(made.ArtifactID), fault.ArtifactNotFound)
	}
	// An operator's word that a store is lost for good: the new one takes its name.
	name, err := os.ReadFile(filepath.Join(dir, ".store-id"))
	must(t, err)
	must(t, os.RemoveAll(dir))
	other.stop()
	other.start()
	refused(t, other.says(made.ArtifactID), fault.BytesElsewhere)
	must(t, os.WriteFile(filepath.Join(dir, ".store-id"), name, 0o600))
	refused(t, other.says(made.ArtifactID), fault.ArtifactNotFound)
}

// Of S3 a missing key is gone; a server that is away, a bucket that is not there
// and another bucket say nothing.
func TestWhatS3SaysOfAbsence(t *testing.T) {
	s3 := service.S3(t)
	r := newRig(t, open(t, sqlite(t)), toS3(s3))
	made := r.built(r.image("app", "1"))
	must(t, r.says(made.ArtifactID))
	for name, c := range map[string]struct {
		change func(*config.ArtifactStore)
		want   *fault.Code
	}{
		"away":           {func(a *config.ArtifactStore) { a.S3.Endpoint = "http://127.0.0.1:1" }, fault.StoreUnavailable},
		"no bucket":      {func(a *config.ArtifactStore) { a.S3.Bucket = "nowhere" }, fault.StoreUnavailable},
		"another prefix": {func(a *config.ArtifactStore) { a.S3.Prefix = "elsewhere" }, fault.BytesElsewhere},
		"a directory":    {func(a *config.ArtifactStore) { a.Backend = "dir" }, fault.BytesElsewhere},
	} {
		other := r.beside(c.change)
		if err := other.says(made.ArtifactID); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %s", name, err, c.want.Name)
		}
		other.stop()
	}
	must(t, os.Remove(filepath.Join(s3.Dir, s3.Bucket, made.Ext4Path)))
	refused(t, r.says(made.ArtifactID), fault.ArtifactNotFound)
}

// Artifacts of a program that noted no store are noted when their bytes are
// seen, and until then none is called gone.
func TestStoresAreNotedWhenBytesAreSeen(t *testing.T) {
	r := newRig(t, open(t, sqlite(t)), nil)
	seen, lost := r.built(r.image("a", "1")), r.built(r.image("b", "2"))
	must(t, os.Remove(lost.Ext4Path))
	r.update(func(ctx context.Context, tx *store.Tx) error {
		_, err := tx.Exec(ctx, `DELETE FROM artifact_store`)
		return err
	})
	refused(t, r.says(lost.ArtifactID), fault.BytesElsewhere)
	r.stop()
	r.start()
	eventually(t, "the sweep notes it", func() (noted bool) {
		r.update(func(ctx context.Context, tx *store.Tx) error {
			name, err := templatedb.StoreOf(ctx, tx, template.ArtifactID(seen.ArtifactID))
			noted = name != ""
			return err
		})
		return noted
	})
	must(t, os.Remove(seen.Ext4Path))
	refused(t, r.says(seen.ArtifactID), fault.ArtifactNotFound)
	refused(t, r.says(lost.ArtifactID), fault.BytesElsewhere)
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
