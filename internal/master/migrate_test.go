package master_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/platform/config"
	"github.com/paddock-dev/paddock/internal/template"
)

func (r *rig) migrate(q cubeapi.MigrateRequest) *cubeapi.Job {
	r.t.Helper()
	a, err := r.api.Migrate(r.t.Context(), q)
	must(r.t, err)
	j := r.ended(a.Job.JobID)
	shown, err := r.api.MigrateJob(r.t.Context(), j.JobID)
	must(r.t, err)
	if shown.Status != j.Status || shown.Operation != "MIGRATE" {
		r.t.Errorf("the move's own path shows %+v", shown)
	}
	return j
}

// moves counts how often bytes were moved.
func (c *fakeCenter) moved() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.moves
}

func TestAMoveChangesTheRowOnce(t *testing.T) {
	onBoth(t, func(t *testing.T, dsn string) {
		r := newRig(t, dsn)
		r.start()
		r.host(0, plenty)
		made := r.template(alias("app"))
		r.center.set(func(c *fakeCenter) { c.legacy = true })
		plan, err := r.api.Migrate(t.Context(), cubeapi.MigrateRequest{TemplateID: "app", DryRun: true})
		must(t, err)
		if p := plan.Plan; plan.Job != nil || !p.Moves || p.From != "dir" || p.To != "s3" || p.BytesToMove == 0 || len(r.jobs(made.TemplateID)) != 1 {
			t.Errorf("plan: %+v", p)
		}
		for n := range 3 { // it may be asked for again
			j := r.migrate(cubeapi.MigrateRequest{TemplateID: "app"})
			if j.Status != "READY" || j.Progress != 100 || j.ErrorMessage != "" || j.AttemptNo != n+2 {
				t.Errorf("job: %+v", j)
			}
			if a := r.artifact(made.ArtifactID); a.Backend != "s3" || a.State != template.ArtifactReady || r.center.moved() != 1 {
				t.Errorf("artifact: %+v, moved %d times", a, r.center.moved())
			}
		}
		if d := r.shown("app"); d.Status != "READY" || d.Alias != "app" {
			t.Errorf("template: %+v", d)
		}
		plan, err = r.api.Migrate(t.Context(), cubeapi.MigrateRequest{TemplateID: "app", DryRun: true})
		if err != nil || plan.Plan.Moves || plan.Plan.BytesToMove != 0 {
			t.Errorf("plan: %+v %v", plan.Plan, err)
		}
		_, err = r.api.MigrateJob(t.Context(), made.JobID)
		refused(t, err, fault.JobNotFound)
		_, err = r.api.Migrate(t.Context(), cubeapi.MigrateRequest{TemplateID: "nothing"})
		refused(t, err, fault.TemplateNotFound)
		// A redo after a move is made of what the template is made of.
		if j := r.redo(cubeapi.RedoRequest{TemplateID: "app"}); j.Status != "READY" {
			t.Errorf("job: %+v", j)
		}
	})
}

// While bytes are being moved, whoever asks gets that job, at whichever master.
func TestTwoMastersHaveOneMove(t *testing.T) {
	onBoth(t, func(t *testing.T, dsn string) {
		r := newRig(t, dsn)
		r.start()
		second, other := r.process(), newFace(t)
		other.show(second.Handler())
		apis := []*cubeapi.Client{r.api, cubeapi.NewClient(other.URL, apiKey)}
		r.host(0, plenty)
		made := r.template(alias("app"))
		gate := make(chan struct{})
		r.center.set(func(c *fakeCenter) { c.legacy, c.moving = true, func() error { <-gate; return nil } })
		release := sync.OnceFunc(func() { close(gate) })
		t.Cleanup(release)
		var mu sync.Mutex
		jobs := map[string]bool{}
		var all sync.WaitGroup
		for i := range 8 {
			all.Go(func() {
				a, err := apis[i%2].Migrate(t.Context(), cubeapi.MigrateRequest{RequestID: fmt.Sprintf("move-%d", i), TemplateID: "app"})
				mu.Lock()
				defer mu.Unlock()
				if err != nil {
					t.Error(err)
					return
				}
				jobs[a.Job.JobID] = true
			})
		}
		all.Wait()
		if len(jobs) != 1 || len(r.jobs(made.TemplateID)) != 2 {
			t.Errorf("jobs: %v", jobs)
		}
		_, err := r.api.Redo(t.Context(), cubeapi.RedoRequest{TemplateID: "app"})
		refused(t, err, fault.BuildInProgress)
		refused(t, r.api.DeleteTemplate(t.Context(), "app"), fault.BuildInProgress)
		release()
		for id := range jobs {
			if j := r.ended(id); j.Status != "READY" || r.center.moved() != 1 {
				t.Errorf("job: %+v", j)
			}
		}
	})
}

// withDir gives the master a directory of its own.
func withDir(dir string) func(*config.Config) {
	return func(c *config.Config) { c.ArtifactStore.Dir = dir }
}

// Bytes on the master's own disk are uploaded, and the file goes afterwards:
// whether the template centre calls them gone, or another store's.
func TestAMoveUploadsWhatIsOnTheMastersDisk(t *testing.T) {
	t.Run("gone", func(t *testing.T) { moveUploads(t, false) })
	t.Run("elsewhere", func(t *testing.T) { moveUploads(t, true) })
}

func moveUploads(t *testing.T, elsewhere bool) {
	dir := t.TempDir()
	r := newRig(t, sqlite(t), withDir(dir))
	r.start()
	r.host(0, plenty)
	made := r.template(alias("app"))
	file := filepath.Join(dir, made.ArtifactID+".ext4")
	var data []byte
	r.center.set(func(c *fakeCenter) {
		c.elsewhere = elsewhere
		data = c.bytes[made.ArtifactID]
		delete(c.bytes, made.ArtifactID)
	})
	must(t, os.WriteFile(file, data, 0o600))
	_, err := r.api.Redo(t.Context(), cubeapi.RedoRequest{TemplateID: "app"})
	refused(t, err, fault.StateConflict)
	if !strings.Contains(err.Error(), "tpl merge") {
		t.Errorf("%v", err)
	}
	plan, err := r.api.Migrate(t.Context(), cubeapi.MigrateRequest{TemplateID: "app", DryRun: true})
	if err != nil || plan.Plan.From != "master" || !plan.Plan.Moves {
		t.Errorf("plan: %+v %v", plan.Plan, err)
	}
	if j := r.migrate(cubeapi.MigrateRequest{TemplateID: "app"}); j.Status != "READY" || j.ErrorMessage != "" {
		t.Errorf("job: %+v", j)
	}
	r.center.set(func(c *fakeCenter) {
		if !bytes.Equal(c.bytes[made.ArtifactID], data) {
			t.Error("other bytes came")
		}
	})
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("left: %v %v", left, err)
	}
	if j := r.redo(cubeapi.RedoRequest{TemplateID: "app"}); j.Status != "READY" {
		t.Errorf("job: %+v", j)
	}
}

// Bytes that are nowhere are told as such, with what to do; nothing else
// changes.
func TestAMoveOfLostBytesSaysWhatToDo(t *testing.T) {
	dir := t.TempDir()
	r := newRig(t, sqlite(t), withDir(dir))
	r.start()
	r.host(0, plenty)
	made := r.template(alias("app"))
	r.center.set(func(c *fakeCenter) { delete(c.bytes, made.ArtifactID) })
	must(t, os.WriteFile(filepath.Join(dir, made.ArtifactID+".ext4"), []byte("half"), 0o600))
	before := r.artifact(made.ArtifactID)
	_, err := r.api.Migrate(t.Context(), cubeapi.MigrateRequest{TemplateID: "app", DryRun: true})
	refused(t, err, fault.BytesLost)
	j := r.migrate(cubeapi.MigrateRequest{TemplateID: "app"})
	if j.Status != "FAILED" || j.ErrorCode != "artifact_lost" || !strings.Contains(fault.BytesLost.Remedy, "paddock tpl redo") {
		t.Errorf("job: %+v", j)
	}
	if d := r.shown("app"); d.Status != "READY" || r.artifact(made.ArtifactID).Version != before.Version {
		t.Errorf("template: %+v", d)
	}
	if j = r.redo(cubeapi.RedoRequest{TemplateID: "app"}); j.Status != "READY" {
		t.Errorf("job: %+v", j)
	}
	if j = r.migrate(cubeapi.MigrateRequest{TemplateID: "app"}); j.Status != "READY" {
		t.Errorf("job: %+v", j)
	}
}

// A template centre that is away is waited for; one that is away for good ends
// the job within its bound, and nothing is changed.
func TestAMoveWaitsForItsTemplateCentre(t *testing.T) {
	r := newRig(t, sqlite(t))
	r.start(func(p *running) { p.MoveQuiet(time.Hour) })
	r.host(0, plenty)
	made := r.template(alias("app"))
	r.center.set(func(c *fakeCenter) { c.legacy = true })
	r.center.front.hide()
	a, err := r.api.Migrate(t.Context(), cubeapi.MigrateRequest{RequestID: "once", TemplateID: "app"})
	must(t, err)
	again, err := r.api.Migrate(t.Context(), cubeapi.MigrateRequest{RequestID: "once", TemplateID: "app"})
	if err != nil || again.Job.JobID != a.Job.JobID || again.Job.Status != "RUNNING" || again.Job.Phase != "MIGRATING_ARTIFACT" {
		t.Errorf("%+v %v", again.Job, err)
	}
	r.center.front.back()
	if j := r.ended(a.Job.JobID); j.Status != "READY" {
		t.Errorf("job: %+v", j)
	}
	r.crash()

	r.start(func(p *running) { p.MoveQuiet(time.Second) })
	before := r.artifact(made.ArtifactID)
	r.center.front.hide()
	j := r.migrate(cubeapi.MigrateRequest{TemplateID: "app"})
	if j.Status != "FAILED" || j.ErrorCode != "build_stalled" || r.artifact(made.ArtifactID).Version != before.Version || j.TemplateStatus != "READY" {
		t.Errorf("job: %+v", j)
	}
}

// A move whose every try is long, and fails as one that may be tried again,
// ends too: each try is a sign of life.
func TestAMoveThatNeverSucceedsEnds(t *testing.T) {
	r := newRig(t, sqlite(t))
	r.start(func(p *running) { p.MoveQuiet(10 * time.Second); p.MoveWithin(time.Second) })
	r.host(0, plenty)
	r.template(alias("app"))
	r.center.set(func(c *fakeCenter) {
		c.legacy, c.moving = true, func() error {
			time.Sleep(200 * time.Millisecond) // some beats
			return fault.New(fault.StoreUnavailable, "bucket")
		}
	})
	if j := r.migrate(cubeapi.MigrateRequest{TemplateID: "app"}); j.Status != "FAILED" || j.ErrorCode != "store_unavailable" || j.TemplateStatus != "READY" {
		t.Errorf("job: %+v", j)
	}
}

// A master that ends at any step of a move leaves a job that the next one ends,
// with one copy of the bytes.
func TestAMoveSurvivesACrashAtEachStep(t *testing.T) {
	for _, own := range []bool{false, true} {
		for _, step := range []string{"master.migrate.after_commit", "master.migrate.after_move", "master.migrate.after_row", "master.migrate.aside"} {
			if step == "master.migrate.aside" && !own {
				continue
			}
			t.Run(fmt.Sprintf("%s own disk %t", step, own), func(t *testing.T) {
				dir := t.TempDir()
				r := newRig(t, sqlite(t), withDir(dir))
				crash, reached := crashAt(step)
				r.start(crash)
				r.host(0, plenty)
				made := r.template(alias("app"))
				r.center.set(func(c *fakeCenter) {
					if c.legacy = !own; own {
						if err := os.WriteFile(filepath.Join(dir, made.ArtifactID+".ext4"), c.bytes[made.ArtifactID], 0o600); err != nil {
							t.Error(err)
						}
						delete(c.bytes, made.ArtifactID)
					}
				})
				q := cubeapi.MigrateRequest{RequestID: "once", TemplateID: "app"}
				_, _ = r.api.Migrate(t.Context(), q) // the answer may be lost
				wait(t, step, reached)
				r.crash()
				r.start()
				if j := r.migrate(q); j.Status != "READY" || j.AttemptNo != 2 {
					t.Errorf("job: %+v", j)
				}
				if a := r.artifact(made.ArtifactID); a.Backend != "s3" || r.center.moved() != 1 {
					t.Errorf("artifact: %+v, moved %d times", a, r.center.moved())
				}
				if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
					t.Errorf("left: %v %v", left, err)
				}
				if j := r.redo(cubeapi.RedoRequest{TemplateID: "app"}); j.Status != "READY" {
					t.Errorf("job: %+v", j)
				}
			})
		}
	}
}

// An artifact that is built again while its bytes are moved keeps what it is
// then.
func TestAMoveComparesWhatItMoved(t *testing.T) {
	r := newRig(t, sqlite(t))
	r.start()
	r.host(0, plenty)
	made := r.template(alias("app"))
	var once sync.Once
	r.center.set(func(c *fakeCenter) {
		c.legacy = true
		c.moving = func() error {
			once.Do(func() { r.moveArtifact(made.ArtifactID, template.OnArtifactLost, nil) })
			return nil
		}
	})
	j := r.migrate(cubeapi.MigrateRequest{TemplateID: "app"})
	if j.Status != "FAILED" || j.ErrorCode != "state_conflict" {
		t.Errorf("job: %+v", j)
	}
	if a := r.artifact(made.ArtifactID); a.Backend != "dir" || a.State != template.ArtifactFailed {
		t.Errorf("artifact: %+v", a)
	}
	_, err := r.api.Migrate(t.Context(), cubeapi.MigrateRequest{TemplateID: "app"})
	if !errors.Is(err, fault.BytesLost) {
		t.Errorf("%v", err)
	}
}
