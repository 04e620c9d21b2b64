package artifact_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/paddock-dev/paddock/internal/artifact"
	"github.com/paddock-dev/paddock/internal/artifact/artifacttest"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/platform/config"
	"github.com/paddock-dev/paddock/test/service"
)

func openDir(t *testing.T, path string) *artifact.Dir {
	t.Helper()
	d, err := artifact.OpenDir(path)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestDir(t *testing.T) {
	artifacttest.Run(t, func(t *testing.T) artifacttest.Store { return openDir(t, t.TempDir()) })
}

// TestDirOnAnotherFilesystem: a file cannot be renamed in, so it is copied.
func TestDirOnAnotherFilesystem(t *testing.T) {
	artifacttest.Run(t, func(t *testing.T) artifacttest.Store {
		return openDir(t, mounted(t, "64m"))
	})
}

func mounted(t *testing.T, size string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "store")
	if err := os.Mkdir(path, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", path, "tmpfs", 0, "size="+size); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(path, 0); err != nil {
			t.Error(err)
		}
	})
	return path
}

func TestAFullDirectoryStoresNothing(t *testing.T) {
	path := mounted(t, "1m")
	d := openDir(t, path)
	file := filepath.Join(t.TempDir(), "big")
	if err := os.WriteFile(file, make([]byte, 2<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := d.Put(t.Context(), "k", file); !errors.Is(err, fault.DiskFull) || !strings.Contains(err.Error(), path) {
		t.Errorf("error %v", err)
	}
	if n := names(t, path); len(n) > 0 {
		t.Errorf("left behind: %v", n)
	}
	if _, err := os.Stat(file); err != nil {
		t.Errorf("the file is gone although it was not stored: %v", err)
	}
}

func names(t *testing.T, path string) []string {
	t.Helper()
	list, err := os.ReadDir(path)
	if err != nil {
		t.Fatal(err)
	}
	var n []string
	for _, e := range list {
		if e.Name() != ".store-id" { // a store is never without it
			n = append(n, e.Name())
		}
	}
	return n
}

// TestOpenDirRemovesWhatACrashLeft, but not what another process writes now.
func TestOpenDirRemovesWhatACrashLeft(t *testing.T) {
	path := t.TempDir()
	for _, n := range []string{".put-dead", ".put-live", "rfs-1.ext4"} {
		if err := os.WriteFile(filepath.Join(path, n), []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	live, err := os.Open(filepath.Join(path, ".put-live"))
	if err != nil {
		t.Fatal(err)
	}
	defer live.Close()
	if err := unix.Flock(int(live.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	openDir(t, path)
	if n := names(t, path); !slices.Equal(n, []string{".put-live", "rfs-1.ext4"}) {
		t.Errorf("left: %v", n)
	}
}

// TestALostDirectoryIsNoLostArtifact: an unmounted store cannot tell.
func TestALostDirectoryIsNoLostArtifact(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store")
	d := openDir(t, path)
	if err := os.RemoveAll(path); err != nil {
		t.Fatal(err)
	}
	_, err := d.Stat(t.Context(), "k")
	_, _, openErr := d.Open(t.Context(), "k")
	_, freeErr := d.Free(t.Context())
	_, nameErr := d.Identity(t.Context())
	for _, err := range []error{err, openErr, freeErr, nameErr, d.Remove(t.Context(), "k")} {
		if !errors.Is(err, fault.StoreUnavailable) {
			t.Errorf("error %v", err)
		}
	}
}

func TestADirectoryThatCannotBeMade(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := artifact.OpenDir(filepath.Join(file, "store")); !errors.Is(err, fault.DataDir) {
		t.Errorf("error %v", err)
	}
}

func s3Config(c service.S3Config) config.S3 {
	return config.S3{Endpoint: c.Endpoint, Bucket: c.Bucket, AccessKey: config.Secret(c.AccessKey), SecretKey: config.Secret(c.SecretKey), Region: c.Region, PathStyle: true}
}

func openS3(t *testing.T, c config.S3) *artifact.S3 {
	t.Helper()
	s, err := artifact.NewS3(c)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestS3(t *testing.T) {
	artifacttest.Run(t, func(t *testing.T) artifacttest.Store { return openS3(t, s3Config(service.S3(t))) })
}

func TestS3WithAPrefix(t *testing.T) {
	c := s3Config(service.S3(t))
	other := openS3(t, c)
	c.Prefix = "a/b"
	artifacttest.Run(t, func(t *testing.T) artifacttest.Store {
		s := openS3(t, c)
		if err := s.List(t.Context(), func(key string, _ artifact.Info) error { return s.Remove(t.Context(), key) }); err != nil {
			t.Fatal(err)
		}
		return s
	})
	if err := other.List(t.Context(), func(key string, _ artifact.Info) error { t.Errorf("%s is outside the prefix", key); return nil }); err != nil {
		t.Fatal(err)
	}
}

func TestAPresignedLinkNeedsNoKey(t *testing.T) {
	s := openS3(t, s3Config(service.S3(t)))
	file := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(file, []byte("content"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := s.Put(t.Context(), "k", file); err != nil {
		t.Fatal(err)
	}
	link, err := s.Presign(t.Context(), "k", time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, link, nil)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if b, err := io.ReadAll(answer.Body); err != nil || string(b) != "content" {
		t.Errorf("status %d, %q, %v", answer.StatusCode, b, err)
	}
	for _, life := range []time.Duration{0, artifact.MaxPresign + 1} {
		if _, err := s.Presign(t.Context(), "k", life); !errors.Is(err, fault.InvalidInput) {
			t.Errorf("life %s: %v", life, err)
		}
	}
}

// TestAnS3OutageIsNoLoss: no server, no bucket and a wrong key all say "cannot
// tell".
func TestAnS3OutageIsNoLoss(t *testing.T) {
	good := s3Config(service.S3(t))
	away, noBucket, wrongKey := good, good, good
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	away.Endpoint = "http://" + l.Addr().String()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	noBucket.Bucket = "nobody-made-this"
	wrongKey.SecretKey = "wrong"
	for name, c := range map[string]config.S3{"away": away, "no bucket": noBucket, "wrong key": wrongKey} {
		t.Run(name, func(t *testing.T) {
			s := openS3(t, c)
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			_, statErr := s.Stat(ctx, "k")
			_, _, openErr := s.Open(ctx, "k")
			file := filepath.Join(t.TempDir(), "f")
			if err := os.WriteFile(file, []byte("x"), 0o600); err != nil {
				t.Fatal(err)
			}
			for what, err := range map[string]error{"stat": statErr, "open": openErr, "put": s.Put(ctx, "k", file)} {
				if !errors.Is(err, fault.StoreUnavailable) {
					t.Errorf("%s: %v", what, err)
				}
				if err != nil && strings.Contains(err.Error(), "wrong") && name == "wrong key" {
					t.Errorf("%s tells the secret: %v", what, err)
				}
			}
			if _, err := os.Stat(file); err != nil {
				t.Errorf("the file is gone although it was not stored: %v", err)
			}
		})
	}
}

// A directory has one name, whoever opens it and wherever it is: of several who
// come at once one gives it. Without it, or with another's word, it has none.
func TestADirectoryHasOneName(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store")
	seen := make([]string, 8)
	var all sync.WaitGroup
	for i := range seen {
		all.Go(func() {
			d, err := artifact.OpenDir(path)
			if err == nil {
				seen[i], err = d.Identity(t.Context())
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if slices.Sort(seen); seen[0] != seen[7] || !strings.HasPrefix(seen[0], "dir:store-") {
		t.Fatalf("names: %v", seen)
	}
	moved := filepath.Join(t.TempDir(), "moved")
	if err := os.Rename(path, moved); err != nil {
		t.Fatal(err)
	}
	if name, err := openDir(t, moved).Identity(t.Context()); err != nil || name != seen[0] {
		t.Errorf("moved: %q, %v", name, err)
	}
	if name, err := openDir(t, path).Identity(t.Context()); err != nil || name == seen[0] {
		t.Errorf("a new one: %q, %v", name, err)
	}
	if n := names(t, path); len(n) > 0 {
		t.Errorf("left: %v", n)
	}
	if err := os.WriteFile(filepath.Join(path, ".store-id"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := openDir(t, path).Identity(t.Context()); !errors.Is(err, fault.StoreUnavailable) {
		t.Errorf("an empty name: %v", err)
	}
}
