package service

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
)

// S3Config is how to reach the S3 server of a test. Paths hold the bucket, not
// host names.
type S3Config struct {
	Endpoint  string // http://127.0.0.1:port
	Region    string
	Bucket    string // there and empty
	AccessKey string
	SecretKey string
	Dir       string // in which the server keeps its buckets
}

// S3 returns how to reach a fresh bucket on a fresh S3 server, which checks
// signatures.
func S3(tb testing.TB) S3Config {
	tb.Helper()
	server, err := program("versitygw")
	if err != nil {
		tb.Fatal(err)
	}
	c := S3Config{Region: "us-east-1", Bucket: "paddock", AccessKey: "paddock", SecretKey: word()}
	command := func(dir string, port int) ([]string, []string, error) {
		data := filepath.Join(dir, "data")
		c.Dir = data
		env := []string{"ROOT_ACCESS_KEY=" + c.AccessKey, "ROOT_SECRET_KEY=" + c.SecretKey}
		return env, []string{server, "--port", address(port), "--region", c.Region, "posix", data}, os.Mkdir(data, 0o700)
	}
	c.Endpoint = "http://" + run(tb, "s3", command, func(ctx context.Context, _ string, port int) error {
		return makeBucket(ctx, address(port), c)
	})
	return c
}

// makeBucket is also how to see that the server is ready.
func makeBucket(ctx context.Context, addr string, c S3Config) error {
	client, err := minio.New(addr, &minio.Options{
		Creds:        credentials.NewStaticV4(c.AccessKey, c.SecretKey, ""),
		Region:       c.Region,
		BucketLookup: minio.BucketLookupPath,
		MaxRetries:   1,
	})
	if err != nil {
		return err
	}
	there, err := client.BucketExists(ctx, c.Bucket)
	if err != nil || there {
		return err
	}
	return client.MakeBucket(ctx, c.Bucket, minio.MakeBucketOptions{Region: c.Region})
}
