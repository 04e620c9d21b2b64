package e2e

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/paddock-dev/paddock/test/service"
)

// A redo that builds lost bytes again, from its row to its end.
var redoSteps = []string{
	"master.redo.after_commit", "templatecenter.claimed", "templatecenter.before_store", "templatecenter.before_built", "master.built.after_commit",
	"master.resume.after_host", "master.resume.after_publish",
}

// A move of bytes from a directory to S3.
var moveSteps = []string{"master.migrate.after_commit", "templatecenter.before_move", "templatecenter.after_move", "master.migrate.after_move", "master.migrate.after_row"}

// template makes the template of the tests below, and stops.
func (c *cluster) template(image string) {
	c.t.Helper()
	c.start("up")
	c.must("tpl", "create-from-image", "--image", image, "--alias", "box", "--writable-layer-size", "32Mi")
	c.stop()
}

// settled demands that the template becomes ready by itself, with no job at
// work on it, and works.
func (c *cluster) settled() {
	c.t.Helper()
	c.eventually("a ready template without a job", time.Minute, func() bool {
		var d struct {
			Status string `json:"status"`
			JobID  string `json:"job_id"`
		}
		var j struct {
			Status string `json:"status"`
		}
		return json.Unmarshal([]byte(c.must("tpl", "info", "box", "-o", "json")), &d) == nil && d.Status == "READY" &&
			json.Unmarshal([]byte(c.must("tpl", "status", d.JobID, "-o", "json")), &j) == nil && j.Status == "READY"
	})
	c.eventually("no job at work", time.Minute, func() bool {
		_, _, code := c.run("", "tpl", "redo", "box", "--dry-run")
		return code == 0
	})
	id := c.sandbox("box")
	if out := c.must("sandbox", "exec", id, "--", "echo", "works"); out != "works\n" {
		c.t.Errorf("it said %q", out)
	}
	c.must("sandbox", "delete", id)
}

func TestCrashInARedo(t *testing.T) {
	registry := service.Registry(t)
	image := busybox(t, registry, "box:1")
	for _, place := range redoSteps {
		t.Run(place, func(t *testing.T) {
			t.Parallel() // most of the time, it waits
			c := newCluster(t)
			c.env = append(c.env, "PADDOCK_HEAL_REBUILD=false") // else it needs no redo
			clean := c.env
			c.template(image)
			lost, err := filepath.Glob(filepath.Join(c.data[0], "artifacts", "*.ext4"))
			if err != nil || len(lost) != 1 {
				t.Fatalf("images %v, %v", lost, err)
			}
			if err := os.Remove(lost[0]); err != nil {
				t.Fatal(err)
			}
			c.env = append(clean, "PADDOCK_FAILPOINTS="+place+"=crash")
			c.start("up")
			_, errs, _ := c.run("", "tpl", "redo", "box", "--detach")
			t.Log(errs)
			c.crashed(place)
			c.env = clean
			c.start("up")
			c.eventually("the bytes are there again", 2*time.Minute, func() bool { return c.images("data/artifacts") == 1 })
			c.settled()
			c.must("tpl", "delete", "box")
			for _, dir := range imageDirs {
				c.eventually("an empty "+dir, time.Minute, func() bool { return c.images(dir) == 0 })
			}
			c.empty("work")
		})
	}
}

func TestCrashInAMove(t *testing.T) {
	registry := service.Registry(t)
	image := busybox(t, registry, "box:1")
	for _, place := range moveSteps {
		t.Run(place, func(t *testing.T) {
			t.Parallel()
			c, s3 := newCluster(t), service.S3(t)
			c.template(image)
			clean := append(c.env, "CUBE_ARTIFACT_STORE_BACKEND=s3", "CUBE_S3_ENDPOINT="+s3.Endpoint, "CUBE_S3_BUCKET="+s3.Bucket, "CUBE_S3_ACCESS_KEY="+s3.AccessKey, "CUBE_S3_SECRET_KEY="+s3.SecretKey, "CUBE_S3_REGION="+s3.Region, "CUBE_S3_USE_PATH_STYLE=true", "CUBE_S3_USE_SSL=false")
			c.env = append(clean, "PADDOCK_FAILPOINTS="+place+"=crash")
			c.start("up")
			_, errs, _ := c.run("", "tpl", "merge", "box", "--detach")
			t.Log(errs)
			c.crashed(place)
			c.env = clean
			c.start("up")
			c.settled()
			c.must("tpl", "merge", "box") // nothing new, or what the first could not
			c.eventually("the bytes have left the directory", time.Minute, func() bool { return c.images("data/artifacts") == 0 })
			c.settled()
			c.must("tpl", "delete", "box")
			c.eventually("nothing is left in the bucket", time.Minute, func() bool {
				list, err := filepath.Glob(filepath.Join(s3.Dir, s3.Bucket, "rfs-*"))
				return err == nil && len(list) == 0 && c.images("data/cubelet") == 0
			})
		})
	}
}
