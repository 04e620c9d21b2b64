package e2e

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/paddock-dev/paddock/test/service"
)

// A template centre that is killed in any phase of a build leaves the job to
// another one, which has the database and the store in common with it and
// nothing else, within the time of its lease.
func TestAnotherCentreBuildsWhatADeadOneHad(t *testing.T) {
	registry := service.Registry(t)
	image := busybox(t, registry, "box:1")
	for _, at := range []struct {
		place   string
		rebuilt bool
	}{
		{"templatecenter.claimed", true},
		{"rootfs.pull", true},
		{"rootfs.before_rename", true},
		{"templatecenter.before_store", true},
		{"templatecenter.after_store", true},
		{"templatecenter.built", false},
	} {
		t.Run(at.place, func(t *testing.T) {
			t.Parallel() // most of the time, it waits
			c := newCluster(t)
			c.env = append(c.env, "PADDOCK_DATABASE_DSN="+service.MariaDB(t))
			c.spawn("centre-a", "templatecenter", "PADDOCK_FAILPOINTS="+at.place+"=crash", "CUBE_TEMPLATE_CENTER_ARTIFACT_WORK_DIR="+filepath.Join(c.dir, "work-a"), "PADDOCK_LAYER_CACHE_DIR="+filepath.Join(c.dir, "layers-a"))
			c.start("master", "cubelet")
			var job struct {
				JobID      string `json:"job_id"`
				TemplateID string `json:"template_id"`
				Status     string `json:"status"`
				Error      string `json:"error_message"`
			}
			if err := json.Unmarshal([]byte(c.must("tpl", "create-from-image", "--image", image, "--alias", "box", "--detach", "-o", "json")), &job); err != nil {
				t.Fatal(err)
			}
			others := c.cmds[1:]
			c.crashed(at.place)
			c.cmds = others
			c.spawn("centre-b", "templatecenter", "CUBE_TEMPLATE_CENTER_ARTIFACT_WORK_DIR="+filepath.Join(c.dir, "work-b"), "PADDOCK_LAYER_CACHE_DIR="+filepath.Join(c.dir, "layers-b"))
			c.eventually("the end of the job", 90*time.Second, func() bool {
				return json.Unmarshal([]byte(c.must("tpl", "status", job.JobID, "-o", "json")), &job) == nil && (job.Status == "READY" || job.Status == "FAILED")
			})
			log := c.must("tpl", "logs", job.JobID)
			if job.Status != "READY" || strings.Contains(log, "attempt 2 of") != at.rebuilt {
				t.Errorf("job is %s: %s\n%s", job.Status, job.Error, log)
			}
			id := c.sandbox("box")
			if out := c.must("sandbox", "exec", id, "--", "echo", "alive"); out != "alive\n" {
				t.Errorf("said %q", out)
			}
			c.must("sandbox", "delete", id)
			c.must("tpl", "delete", "box")
			for _, dir := range []string{"work-b", "data/artifacts"} {
				c.eventually("an empty "+dir, time.Minute, func() bool {
					left, err := os.ReadDir(filepath.Join(c.dir, dir))
					return err == nil && !slices.ContainsFunc(left, isNoName)
				})
			}
		})
	}
}
