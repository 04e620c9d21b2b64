package templatecenter_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"

	"github.com/paddock-dev/paddock/internal/platform/config"
	"github.com/paddock-dev/paddock/internal/templatecenter"
	"github.com/paddock-dev/paddock/test/service"
)

// A builder that ended in the middle of an upload leaves its parts at the
// server. They go after a day; one that began today may still be at work.
func TestTheSweepAbortsUploadsThatBrokeOff(t *testing.T) {
	s3 := service.S3(t)
	core, err := minio.NewCore(strings.TrimPrefix(s3.Endpoint, "http://"), &minio.Options{
		Creds: credentials.NewStaticV4(s3.AccessKey, s3.SecretKey, ""), Region: s3.Region, BucketLookup: minio.BucketLookupPath,
	})
	if err != nil {
		t.Fatal(err)
	}
	begin := func(object string) (id string) {
		id, err := core.NewMultipartUpload(t.Context(), s3.Bucket, object, minio.PutObjectOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return id
	}
	const key = "art/rfs-000000000000000000000001.ext4"
	old, young, another := begin(key), begin(key), begin("art/rfs-1.backup")
	age(t, s3, old, 25*time.Hour)
	age(t, s3, another, 25*time.Hour)

	newRig(t, open(t, sqlite(t)), func(d *templatecenter.Deps) {
		d.Config.ArtifactStore.Backend, d.Config.TemplateCenter.ReconcileInterval = "s3", time.Second
		d.Config.ArtifactStore.S3 = config.S3{Endpoint: s3.Endpoint, Bucket: s3.Bucket, AccessKey: config.Secret(s3.AccessKey), SecretKey: config.Secret(s3.SecretKey), Region: s3.Region, PathStyle: true, Prefix: "art"}
	})
	left := func() (ids []string) {
		for u := range core.ListIncompleteUploads(t.Context(), s3.Bucket, "", true) {
			if u.Err != nil {
				t.Fatal(u.Err)
			}
			ids = append(ids, u.UploadID)
		}
		return ids
	}
	eventually(t, "the old one goes", func() bool { return !slices.Contains(left(), old) })
	if ids := left(); len(ids) != 2 || !slices.Contains(ids, young) || !slices.Contains(ids, another) {
		t.Errorf("left %v, want %s and %s", ids, young, another)
	}
}

// age makes an upload begin that long ago, where the server keeps it.
func age(t *testing.T, s3 service.S3Config, id string, by time.Duration) {
	t.Helper()
	dirs, err := filepath.Glob(filepath.Join(s3.Dir, s3.Bucket, ".sgwtmp", "multipart", "*", id))
	if err != nil || len(dirs) != 1 {
		t.Fatalf("upload %s is in %v: %v", id, dirs, err)
	}
	then := time.Now().Add(-by)
	if err := os.Chtimes(dirs[0], then, then); err != nil {
		t.Fatal(err)
	}
}
