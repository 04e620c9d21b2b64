package master_test

import (
	"io"
	"strings"
	"testing"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/fault"
)

// A template is made of what a sandbox has on disk, and is as its template in
// all else. What was kept for the build goes with its end.
func TestATemplateIsMadeOfASandbox(t *testing.T) {
	onBoth(t, func(t *testing.T, dsn string) {
		r, h := lively(t, dsn)
		id := r.live()
		r.center.set(func(c *fakeCenter) { c.idle = true })
		asked := cubeapi.CommitRequest{RequestID: "commit-1", SandboxID: id, Alias: "made"}
		j, err := r.api.Commit(t.Context(), asked)
		must(t, err)
		again, err := r.api.Commit(t.Context(), asked)
		must(t, err)
		kept := h.snapshots()
		if again.JobID != j.JobID || len(kept) != 1 || j.SourceImageRef != cubeapi.SnapshotRef+kept[0] {
			t.Fatalf("jobs %+v and %+v, snapshots %v", j, again, kept)
		}
		asked.Alias = "other"
		_, err = r.api.Commit(t.Context(), asked)
		refused(t, err, fault.SubmissionReused)

		root, err := r.center.report.Root(t.Context(), kept[0])
		must(t, err)
		defer root.Close()
		text, err := io.ReadAll(root)
		must(t, err)
		if string(text) != "root of "+kept[0] {
			t.Errorf("its root is %q", text)
		}

		r.center.set(func(c *fakeCenter) { c.idle = false })
		eventually(t, "the builder has it", func() bool { return len(r.center.builds()) > 1 })
		for _, b := range r.center.builds() {
			if b.JobID == j.JobID {
				r.center.work(b)
			}
		}
		if done := r.ended(j.JobID); done.Status != "READY" {
			t.Fatalf("it ended as %+v", done)
		}
		eventually(t, "the snapshot goes", func() bool { return len(h.snapshots()) == 0 })
		a, err := r.api.CreateSandbox(t.Context(), cubeapi.SandboxCreateRequest{TemplateID: "made"})
		must(t, err)
		if a.Sandbox.TemplateID != j.TemplateID {
			t.Errorf("%+v is of another template than %s", a.Sandbox, j.TemplateID)
		}
	})
}

// A user's own snapshot stays when a template was made of it, and nobody names a
// snapshot as an image otherwise.
func TestATemplateIsMadeOfASnapshot(t *testing.T) {
	r, h := lively(t, sqlite(t))
	k := r.snapshot(r.live())
	j, err := r.api.Commit(t.Context(), cubeapi.CommitRequest{SnapshotID: k.SnapshotID})
	must(t, err)
	if done := r.ended(j.JobID); done.Status != "READY" {
		t.Fatalf("it ended as %+v", done)
	}
	if got := h.snapshots(); len(got) != 1 || got[0] != k.SnapshotID {
		t.Errorf("snapshots %v", got)
	}
	for _, bad := range []cubeapi.CommitRequest{{}, {SandboxID: "sb-1", SnapshotID: k.SnapshotID}, {SnapshotID: "none"}, {SnapshotID: k.SnapshotID, Alias: strings.Repeat("x", 300)}} {
		if _, err := r.api.Commit(t.Context(), bad); err == nil {
			t.Errorf("%+v was taken", bad)
		}
	}
	_, err = r.api.Commit(t.Context(), cubeapi.CommitRequest{SnapshotID: "snap-000000000000000000000000"})
	refused(t, err, fault.SnapshotNotFound)
	_, err = r.api.FromImage(t.Context(), cubeapi.FromImageRequest{SourceImageRef: cubeapi.SnapshotRef + k.SnapshotID, WritableLayerSize: "1Gi"})
	refused(t, err, fault.ImageRef)
}
