package e2e

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/paddock-dev/paddock/test/service"
)

// Each step of a delete, in the order of its three phases.
var deleteSteps = []string{"master.delete.after_commit", "master.clean.after_host", "master.clean.after_hosts", "master.clean.after_release", "templatecenter.delete.after_bytes"}

// imageDirs are where the store and the host keep images.
var imageDirs = []string{"data/artifacts", "data/cubelet"}

// A delete that is killed at any step goes on by itself after the next start:
// no row, no file of the host and no bytes of the store are left.
func TestCrashInADelete(t *testing.T) {
	registry := service.Registry(t)
	image := busybox(t, registry, "box:1")
	for _, place := range deleteSteps {
		t.Run(place, func(t *testing.T) {
			t.Parallel() // most of the time, it waits
			c := newCluster(t)
			clean := c.env
			c.env = append(clean, "PADDOCK_FAILPOINTS="+place+"=crash")
			c.start("up")
			c.must("tpl", "create-from-image", "--image", image, "--alias", "box")
			for _, dir := range imageDirs {
				if c.images(dir) != 1 {
					t.Fatalf("%d images in %s before the delete", c.images(dir), dir)
				}
			}
			_, errs, _ := c.run("", "tpl", "delete", "box")
			t.Log(errs)
			c.crashed(place)
			c.env = clean
			c.start("up")
			c.eventually("the end of the template", time.Minute, func() bool {
				var left []any
				return json.Unmarshal([]byte(c.must("tpl", "list", "-o", "json")), &left) == nil && len(left) == 0
			})
			for _, dir := range imageDirs {
				c.eventually("an empty "+dir, time.Minute, func() bool { return c.images(dir) == 0 })
			}
			c.demo(image)
		})
	}
}

// images counts the images below a directory of the cluster.
func (c *cluster) images(dir string) (n int) {
	c.t.Helper()
	err := filepath.WalkDir(filepath.Join(c.dir, dir), func(path string, d os.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() && filepath.Ext(path) == ".ext4" {
			n++
		}
		return nil
	})
	if err != nil {
		c.t.Error(err)
	}
	return n
}
