package templatecenter_test

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/store"
	"github.com/paddock-dev/paddock/internal/store/templatedb"
	"github.com/paddock-dev/paddock/internal/template"
	"github.com/paddock-dev/paddock/test/service"
)

// noted returns the store that is noted of an artifact.
func (r *rig) noted(id string) (name string) {
	r.t.Helper()
	r.update(func(ctx context.Context, tx *store.Tx) (err error) {
		name, err = templatedb.StoreOf(ctx, tx, template.ArtifactID(id))
		return err
	})
	return name
}

// A move that breaks off leaves the note of the directory: once that is not
// mounted, S3 must not pass for a store that lost the bytes.
func TestABrokenMoveDoesNotNoteTheStore(t *testing.T) {
	r := newRig(t, open(t, sqlite(t)), nil)
	made := r.built(r.image("app", "1"))
	before := r.noted(made.ArtifactID)
	data, err := os.ReadFile(made.Ext4Path)
	must(t, err)
	r.stop()
	s3 := service.S3(t)
	toS3(s3)(&r.deps)
	r.start()
	// In the way of the object.
	block := filepath.Join(s3.Dir, s3.Bucket, "art", made.ArtifactID+".ext4")
	must(t, os.MkdirAll(filepath.Join(block, "x"), 0o700))
	if _, err := r.client.MoveArtifact(t.Context(), made.ArtifactID); err == nil {
		t.Fatal("it moved")
	}
	if now := r.noted(made.ArtifactID); now != before {
		t.Errorf("noted %s, it is in %s", now, before)
	}
	// An upload of them that breaks off is no better.
	if _, err := r.client.UploadArtifact(t.Context(), made.ArtifactID, bytes.NewReader(data), nil); err == nil {
		t.Fatal("it was taken")
	}
	if now := r.noted(made.ArtifactID); now != before {
		t.Errorf("noted %s, it is in %s", now, before)
	}
	must(t, os.RemoveAll(block))
	r.stop()
	dir := r.deps.Config.ArtifactStore.Dir
	must(t, os.Rename(dir, dir+".aside"))
	r.start()
	refused(t, r.says(made.ArtifactID), fault.BytesElsewhere)
	r.stop()
	must(t, os.RemoveAll(dir))
	must(t, os.Rename(dir+".aside", dir))
	r.start()
	// The copy was made, and nobody noted it: the next call does.
	for _, again := range []func() (cubeapi.TCArtifactAnswer, error){
		func() (cubeapi.TCArtifactAnswer, error) { return r.client.MoveArtifact(t.Context(), made.ArtifactID) },
		func() (cubeapi.TCArtifactAnswer, error) {
			return r.client.UploadArtifact(t.Context(), made.ArtifactID, bytes.NewReader(data), nil)
		},
	} {
		_, err := r.client.MoveArtifact(t.Context(), made.ArtifactID)
		must(t, err)
		r.update(func(ctx context.Context, tx *store.Tx) error {
			return templatedb.PutStore(ctx, tx, template.ArtifactID(made.ArtifactID), before)
		})
		s, err := again()
		must(t, err)
		if now := r.noted(made.ArtifactID); s.Status != cubeapi.BytesReused || !strings.HasPrefix(now, "s3:") {
			t.Errorf("%+v, noted %s", s, now)
		}
	}
}
