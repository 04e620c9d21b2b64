package artifact_test

import (
	"bytes"
	"path"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"

	"github.com/paddock-dev/paddock/test/service"
)

// bucket is a bucket as its owner sees it.
type bucket struct {
	t    *testing.T
	core *minio.Core
	name string
}

func newBucket(t *testing.T, c service.S3Config) *bucket {
	t.Helper()
	core, err := minio.NewCore(strings.TrimPrefix(c.Endpoint, "http://"), &minio.Options{
		Creds: credentials.NewStaticV4(c.AccessKey, c.SecretKey, ""), Region: c.Region, BucketLookup: minio.BucketLookupPath,
	})
	if err != nil {
		t.Fatal(err)
	}
	return &bucket{t, core, c.Bucket}
}

// begin begins an upload that nobody ends, with a part of its bytes.
func (b *bucket) begin(object string) {
	b.t.Helper()
	id, err := b.core.NewMultipartUpload(b.t.Context(), b.name, object, minio.PutObjectOptions{})
	if err != nil {
		b.t.Fatal(err)
	}
	part := []byte("some bytes")
	if _, err := b.core.PutObjectPart(b.t.Context(), b.name, object, id, 1, bytes.NewReader(part), int64(len(part)), minio.PutObjectPartOptions{}); err != nil {
		b.t.Fatal(err)
	}
}

// begun returns the objects of which an upload has begun.
func (b *bucket) begun() (list []string) {
	b.t.Helper()
	for u := range b.core.ListIncompleteUploads(b.t.Context(), b.name, "", true) {
		if u.Err != nil {
			b.t.Fatal(u.Err)
		}
		list = append(list, u.Key)
	}
	slices.Sort(list)
	return list
}

// A server keeps the parts of an upload that broke off, and bills them, until
// it is told that nobody will go on.
func TestUploadsThatBrokeOffAreAborted(t *testing.T) {
	for _, prefix := range []string{"", "a/b"} {
		t.Run("prefix "+prefix, func(t *testing.T) {
			server := service.S3(t)
			b := newBucket(t, server)
			c := s3Config(server)
			c.Prefix = prefix
			s := openS3(t, c)
			ours := func(key string) bool { return strings.HasPrefix(key, "rfs-") }
			mine := []string{path.Join(prefix, "rfs-1.ext4"), path.Join(prefix, "rfs-2.ext4")}
			strangers := []string{"a/bc/rfs-1.ext4", path.Join(prefix, "other"), path.Join(prefix, "sub/rfs-1.ext4")}
			for _, object := range append(slices.Clone(mine), strangers...) {
				b.begin(object)
			}
			b.begin(mine[0]) // two of one object
			for _, step := range []struct {
				before time.Time
				want   int
				left   []string
			}{
				{time.Now().Add(-time.Hour), 0, append([]string{mine[0], mine[0], mine[1]}, strangers...)},
				{time.Now().Add(time.Hour), 3, strangers},
				{time.Now().Add(time.Hour), 0, strangers},
			} {
				n, err := s.AbortUploads(t.Context(), step.before, ours)
				slices.Sort(step.left)
				if left := b.begun(); err != nil || n != step.want || !slices.Equal(left, step.left) {
					t.Errorf("aborted %d (%v), want %d; left %v, want %v", n, err, step.want, left, step.left)
				}
			}
		})
	}
}
