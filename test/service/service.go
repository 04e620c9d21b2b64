// Package service starts the real servers that tests need: MariaDB, Redis, a
// container registry and an S3 server.
//
// Each listens on 127.0.0.1 at a free port, keeps its files in a directory of
// its own, and is gone when the test or the test process ends, however it
// ends. It must never skip a test: a missing program fails it.
package service

import "testing"

// S3Config is how to reach the S3 server of a test.
type S3Config struct {
	Endpoint  string // http://127.0.0.1:port
	Region    string
	Bucket    string // exists, is empty
	AccessKey string
	SecretKey string
}

// MariaDB returns the DSN of a fresh database, as store.Open takes it.
func MariaDB(tb testing.TB) string { tb.Helper(); tb.Fatal("unwritten"); return "" }

// Redis returns the address of a fresh Redis.
func Redis(tb testing.TB) string { tb.Helper(); tb.Fatal("unwritten"); return "" }

// Registry returns host:port of a fresh container registry that speaks HTTP.
func Registry(tb testing.TB) string { tb.Helper(); tb.Fatal("unwritten"); return "" }

// S3 returns how to reach a fresh bucket.
func S3(tb testing.TB) S3Config { tb.Helper(); tb.Fatal("unwritten"); return S3Config{} }

// File is one entry of an image made by Image.
type File struct {
	Name string // "bin/sh"; a name that ends in / is a directory
	Body string
	Mode int64  // 0: 0644, or 0755 for a directory
	Link string // a symbolic link to this, when not empty
}

// Image pushes a small image of one gzip layer for linux/amd64 and returns its
// reference: registry/name.
func Image(tb testing.TB, registry, name string, files ...File) string {
	tb.Helper()
	tb.Fatal("unwritten")
	return ""
}

// ForeignImage pushes an image that exists only for another platform
// (linux/s390x) and returns its reference.
func ForeignImage(tb testing.TB, registry, name string, files ...File) string {
	tb.Helper()
	tb.Fatal("unwritten")
	return ""
}
