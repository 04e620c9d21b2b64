package artifact

import (
	"context"
	"errors"
	"io"
	"math"
	"net"
	"net/http"
	"net/url"
	"os"
	"path"
	"strings"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"

	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/platform/config"
)

// MaxPresign is the longest life of a signed link; the signature knows no
// longer one.
const MaxPresign = 7 * 24 * time.Hour

const (
	askTime  = 30 * time.Second // of a call that moves no bytes
	maxTries = 4
)

// S3 keeps each key as an object of one bucket. It is safe for concurrent use.
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
		Secure: secure, Region: c.Region, BucketLookup: lookup, MaxRetries: maxTries,
		Transport: &http.Transport{
			Proxy:                 http.ProxyFromEnvironment,
			DialContext:           (&net.Dialer{Timeout: 10 * time.Second}).DialContext,
			TLSHandshakeTimeout:   10 * time.Second,
			ResponseHeaderTimeout: askTime,
			MaxIdleConnsPerHost:   16,
			IdleConnTimeout:       time.Minute,
			DisableCompression:    true, // or a range would be of other bytes
		},
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

// Put stores the file at path as key and removes the file. An object appears
// when all of it is there.
func (s *S3) Put(ctx context.Context, key, file string) error {
	if err := s.Copy(ctx, key, file); err != nil {
		return err
	}
	if err := os.Remove(file); err != nil {
		return fault.Wrap(fault.StoreUnavailable, err, "artifact %s: the file that was stored", key)
	}
	return nil
}

// Copy is Put that leaves the file where it is.
func (s *S3) Copy(ctx context.Context, key, file string) error {
	if err := checkKey(key); err != nil {
		return err
	}
	_, err := s.client.FPutObject(ctx, s.bucket, s.Location(key), file, minio.PutObjectOptions{ContentType: "application/octet-stream"})
	if err != nil {
		return s.refused(err, key)
	}
	return nil
}

// Open returns a key's bytes, to be closed by the caller.
func (s *S3) Open(ctx context.Context, key string) (io.ReadSeekCloser, Info, error) {
	info, err := s.Stat(ctx, key)
	if err != nil {
		return nil, info, err
	}
	o, err := s.client.GetObject(ctx, s.bucket, s.Location(key), minio.GetObjectOptions{})
	if err != nil {
		return nil, info, s.refused(err, key)
	}
	return &object{o, s, key}, info, nil
}

// object is an open object whose errors carry codes.
type object struct {
	*minio.Object
	s   *S3
	key string
}

func (o *object) Read(b []byte) (int, error) {
	n, err := o.Object.Read(b)
	if err != nil && !errors.Is(err, io.EOF) {
		err = o.s.refused(err, o.key)
	}
	return n, err
}

// Stat returns what is known of a key.
func (s *S3) Stat(ctx context.Context, key string) (Info, error) {
	if err := checkKey(key); err != nil {
		return Info{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	o, err := s.client.StatObject(ctx, s.bucket, s.Location(key), minio.StatObjectOptions{})
	if err != nil && isMissing(err) {
		// A HEAD has no body: the bucket itself may be what is missing.
		if there, err := s.client.BucketExists(ctx, s.bucket); err != nil || !there {
			return Info{}, fault.Wrap(fault.StoreUnavailable, orNoBucket(err), "bucket %s", s.bucket)
		}
	}
	if err != nil {
		return Info{}, s.refused(err, key)
	}
	return Info{Size: o.Size, Modified: o.LastModified}, nil
}

func orNoBucket(err error) error {
	if err == nil {
		return errors.New("there is no such bucket")
	}
	return err
}

func isMissing(err error) bool {
	var e minio.ErrorResponse
	return errors.As(err, &e) && e.StatusCode == http.StatusNotFound && e.Code == minio.NoSuchKey
}

// refused tells a key that is not there from a store that does not answer.
func (s *S3) refused(err error, key string) error {
	switch {
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return err
	case isMissing(err):
		return fault.New(fault.ArtifactNotFound, "artifact %s in bucket %s", key, s.bucket)
	}
	return fault.Wrap(fault.StoreUnavailable, err, "artifact %s in bucket %s", key, s.bucket)
}

// Remove removes a key. Absent is success.
func (s *S3) Remove(ctx context.Context, key string) error {
	if err := checkKey(key); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	err := s.client.RemoveObject(ctx, s.bucket, s.Location(key), minio.RemoveObjectOptions{})
	if err != nil && !isMissing(err) {
		return s.refused(err, key)
	}
	return nil
}

// Free returns the bytes that may still be stored: an object store does not
// say, so there is no bound.
func (s *S3) Free(context.Context) (int64, error) { return math.MaxInt64, nil }

// List calls each for every key, in no order, and stops at its first error.
func (s *S3) List(ctx context.Context, each func(key string, i Info) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // it ends the listing when each does
	prefix := s.within()
	for o := range s.client.ListObjects(ctx, s.bucket, minio.ListObjectsOptions{Prefix: prefix}) {
		if o.Err != nil {
			return s.refused(o.Err, prefix)
		}
		key := strings.TrimPrefix(o.Key, prefix)
		if checkKey(key) != nil {
			continue // none of ours
		}
		if err := each(key, Info{Size: o.Size, Modified: o.LastModified}); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// AbortUploads ends the uploads of keys that are ours which began before that
// time and were not completed, and returns how many: whoever began them has
// ended, and the server would keep their parts for ever.
func (s *S3) AbortUploads(ctx context.Context, before time.Time, ours func(key string) bool) (int, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // it ends the listing when an abort fails
	prefix, aborted := s.within(), 0
	core := minio.Core{Client: s.client}
	for u := range s.client.ListIncompleteUploads(ctx, s.bucket, prefix, true) {
		if u.Err != nil {
			return aborted, s.refused(u.Err, prefix)
		}
		key := strings.TrimPrefix(u.Key, prefix)
		if checkKey(key) != nil || !ours(key) || !u.Initiated.Before(before) {
			continue
		}
		if err := core.AbortMultipartUpload(ctx, s.bucket, u.Key, u.UploadID); err != nil && !isNoUpload(err) {
			return aborted, s.refused(err, key)
		}
		aborted++
	}
	return aborted, ctx.Err()
}

// isNoUpload: it was completed or aborted meanwhile.
func isNoUpload(err error) bool {
	var e minio.ErrorResponse
	return errors.As(err, &e) && e.Code == minio.NoSuchUpload
}

// within is what the names of all our objects begin with.
func (s *S3) within() string {
	if s.prefix == "" {
		return ""
	}
	return strings.TrimRight(s.prefix, "/") + "/"
}

// Presign returns a link from which anybody may fetch the key's bytes for that
// long, at most MaxPresign. Mint it when it is asked for and never store it.
func (s *S3) Presign(ctx context.Context, key string, life time.Duration) (string, error) {
	if err := checkKey(key); err != nil {
		return "", err
	}
	if life < time.Second || life > MaxPresign {
		return "", fault.New(fault.InvalidInput, "life of a link %s: 1s to %s", life, MaxPresign)
	}
	u, err := s.client.PresignedGetObject(ctx, s.bucket, s.Location(key), life, nil)
	if err != nil {
		return "", s.refused(err, key)
	}
	return u.String(), nil
}
