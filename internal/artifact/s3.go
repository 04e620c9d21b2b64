package artifact

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"os"
	"path"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"

	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/platform/config"
)

// S3 keeps each key as an object of one bucket.
type S3 struct {
	client         *minio.Client
	bucket, prefix string
}

// NewS3 returns the store in c's bucket. Nothing is asked of it yet.
func NewS3(c config.S3) (*S3, error) {
	endpoint, secure := c.Endpoint, c.UseSSL
	if u, err := url.Parse(c.Endpoint); err == nil && u.Host != "" {
		endpoint, secure = u.Host, u.Scheme == "https"
	}
	lookup := minio.BucketLookupAuto
	if c.PathStyle {
		lookup = minio.BucketLookupPath
	}
	client, err := minio.New(endpoint, &minio.Options{
		Creds:  credentials.NewStaticV4(c.AccessKey.Reveal(), c.SecretKey.Reveal(), ""),
		Secure: secure, Region: c.Region, BucketLookup: lookup,
	})
	if err != nil {
		return nil, fault.Wrap(fault.BadConfig, err, "artifact_store.s3")
	}
	return &S3{client, c.Bucket, c.Prefix}, nil
}

// Backend returns the word that artifact rows keep.
func (s *S3) Backend() string { return "s3" }

// Location returns the object that holds a key's bytes, for the row.
func (s *S3) Location(key string) string { return path.Join(s.prefix, key) }

// Put stores the file at path as key and removes the file.
func (s *S3) Put(ctx context.Context, key, path string) error {
	if err := checkKey(key); err != nil {
		return err
	}
	_, err := s.client.FPutObject(ctx, s.bucket, s.Location(key), path, minio.PutObjectOptions{ContentType: "application/octet-stream"})
	if err != nil {
		return s.missing(key, err)
	}
	return os.Remove(path)
}

// Open returns a key's bytes, to be closed by the caller.
func (s *S3) Open(ctx context.Context, key string) (io.ReadSeekCloser, Info, error) {
	info, err := s.Stat(ctx, key)
	if err != nil {
		return nil, info, err
	}
	o, err := s.client.GetObject(ctx, s.bucket, s.Location(key), minio.GetObjectOptions{})
	if err != nil {
		return nil, info, s.missing(key, err)
	}
	return o, info, nil
}

// Stat returns what is known of a key.
func (s *S3) Stat(ctx context.Context, key string) (Info, error) {
	if err := checkKey(key); err != nil {
		return Info{}, err
	}
	o, err := s.client.StatObject(ctx, s.bucket, s.Location(key), minio.StatObjectOptions{})
	if err != nil {
		return Info{}, s.missing(key, err)
	}
	return Info{Size: o.Size, Modified: o.LastModified}, nil
}

// missing tells a key that is not there from a store that does not answer.
func (s *S3) missing(key string, err error) error {
	var e minio.ErrorResponse
	if errors.As(err, &e) && e.StatusCode == http.StatusNotFound && e.Code == minio.NoSuchKey {
		return fault.New(fault.ArtifactNotFound, "artifact %s in bucket %s", key, s.bucket)
	}
	return fault.Wrap(fault.StoreUnavailable, err, "artifact %s in bucket %s", key, s.bucket)
}

// Remove removes a key. Absent is success.
func (s *S3) Remove(ctx context.Context, key string) error {
	if err := checkKey(key); err != nil {
		return err
	}
	if err := s.client.RemoveObject(ctx, s.bucket, s.Location(key), minio.RemoveObjectOptions{}); err != nil {
		return s.missing(key, err)
	}
	return nil
}
