package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/paddock-dev/paddock/test/service"
)

// A template's bytes get lost, are built again, and move from a directory to S3
// after the store was changed; it can be used at each step.
func TestBytesAreBuiltAgainAndMoved(t *testing.T) {
	registry := service.Registry(t)
	c := newCluster(t)
	c.env = append(c.env, "PADDOCK_HEAL_REBUILD=false")
	c.start("up")
	c.must("tpl", "create-from-image", "--image", busybox(t, registry, "box:1"), "--alias", "box", "--writable-layer-size", "32Mi")
	use := func() {
		t.Helper()
		id := c.sandbox("box")
		if out := c.must("sandbox", "exec", id, "--", "echo", "works"); out != "works\n" {
			t.Errorf("it said %q", out)
		}
		c.must("sandbox", "delete", id)
	}
	images := func() []string {
		t.Helper()
		list, err := filepath.Glob(filepath.Join(c.data[0], "artifacts", "*.ext4"))
		if err != nil {
			t.Fatal(err)
		}
		return list
	}
	if out := c.must("tpl", "redo", "box", "--dry-run"); !strings.Contains(out, "reuse the bytes") {
		t.Errorf("plan: %s", out)
	}
	if _, errs, code := c.run("", "tpl", "redo", "box", "--failed-only"); code != 5 || !strings.Contains(errs, "no failed replicas matched") {
		t.Errorf("nothing failed: %d %s", code, errs)
	}
	for _, file := range images() {
		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
	}
	if out := c.must("tpl", "redo", "box", "--dry-run"); !strings.Contains(out, "build again") {
		t.Errorf("plan: %s", out)
	}
	if out := c.must("tpl", "redo", "box"); !strings.Contains(out, "READY") || len(images()) != 1 {
		t.Errorf("redo: %s, images %v", out, images())
	}
	use()

	c.stop()
	s3 := service.S3(t)
	c.env = append(c.env, "CUBE_ARTIFACT_STORE_BACKEND=s3", "CUBE_S3_ENDPOINT="+s3.Endpoint, "CUBE_S3_BUCKET="+s3.Bucket, "CUBE_S3_ACCESS_KEY="+s3.AccessKey, "CUBE_S3_SECRET_KEY="+s3.SecretKey, "CUBE_S3_REGION="+s3.Region, "CUBE_S3_USE_PATH_STYLE=true", "CUBE_S3_USE_SSL=false")
	c.start("up")
	use()
	if out := c.must("tpl", "merge", "box", "--dry-run"); !strings.Contains(out, "dir") || !strings.Contains(out, "s3") {
		t.Errorf("plan: %s", out)
	}
	for range 2 {
		if out := c.must("tpl", "merge", "box"); !strings.Contains(out, "READY") || len(images()) != 0 {
			t.Errorf("merge: %s, images %v", out, images())
		}
	}
	use()
	c.must("tpl", "redo", "box")
	c.must("tpl", "delete", "box")
	c.eventually("nothing is left in the bucket", time.Minute, func() bool {
		list, err := filepath.Glob(filepath.Join(s3.Dir, s3.Bucket, "rfs-*"))
		return err == nil && len(list) == 0
	})
}
