package service_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"

	"github.com/paddock-dev/paddock/test/service"
)

// child is set in the process that TestKilled starts.
const child = "PADDOCK_SERVICE_TEST_CHILD"

func TestMariaDBsAreApart(t *testing.T) {
	one, two := service.MariaDB(t), service.MariaDB(t)
	if one == two {
		t.Fatalf("both tests got %s", one)
	}
	if server(t, one) != server(t, two) {
		t.Errorf("one process started two servers: %s, %s", one, two)
	}
	dial(t, server(t, one))
}

func TestOwnMariaDBStopsAndStarts(t *testing.T) {
	own := service.OwnMariaDB(t)
	addr := server(t, own.DSN)
	if addr == server(t, service.MariaDB(t)) {
		t.Fatal("the server is shared with other tests")
	}
	dial(t, addr)
	own.Stop(t)
	if c, err := net.Dial("tcp", addr); err == nil {
		t.Errorf("it still answers after its stop: %v", errors.Join(c.Close()))
	}
	own.Start(t)
	dial(t, addr)
}

func TestRedis(t *testing.T) {
	c := dial(t, service.Redis(t))
	if _, err := io.WriteString(c, "SET a b\r\nGET a\r\n"); err != nil {
		t.Fatal(err)
	}
	var got [12]byte
	if _, err := io.ReadFull(c, got[:]); err != nil || string(got[:]) != "+OK\r\n$1\r\nb\r\n" {
		t.Errorf("got %q, %v", got, err)
	}
}

func TestImages(t *testing.T) {
	registry := service.Registry(t)
	files := []service.File{{Name: "etc/"}, {Name: "etc/motd", Body: "hello\n"}, {Name: "etc/link", Link: "motd"}}

	one := pull(t, service.Image(t, registry, "one:v1", files...))
	config, err := one.ConfigFile()
	if err != nil || config.OS != "linux" || config.Architecture != "amd64" {
		t.Errorf("image is for %s/%s, %v", config.OS, config.Architecture, err)
	}
	same := pull(t, service.Image(t, registry, "other:v2", files...))
	if a, b := digest(t, one), digest(t, same); a != b {
		t.Errorf("equal files make two images: %s, %s", a, b)
	}
	foreign, err := pull(t, service.ForeignImage(t, registry, "foreign", files...)).ConfigFile()
	if err != nil || foreign.Architecture != "s390x" {
		t.Errorf("foreign image is for %s, %v", foreign.Architecture, err)
	}
	ref, err := name.ParseReference(service.ForeignIndex(t, registry, "index", files...), name.Insecure)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := remote.Image(ref, remote.WithPlatform(v1.Platform{OS: "linux", Architecture: "amd64"})); err == nil {
		t.Error("the foreign index has a variant for amd64")
	}
}

func TestS3ChecksSignatures(t *testing.T) {
	c := service.S3(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	put := func(secret string) error {
		client, err := minio.New(strings.TrimPrefix(c.Endpoint, "http://"), &minio.Options{Creds: credentials.NewStaticV4(c.AccessKey, secret, ""), Region: c.Region, MaxRetries: 1})
		if err != nil {
			t.Fatal(err)
		}
		_, err = client.PutObject(ctx, c.Bucket, "a/b", strings.NewReader("x"), 1, minio.PutObjectOptions{})
		return err
	}
	if err := put(c.SecretKey); err != nil {
		t.Error(err)
	}
	if err := put("wrong"); err == nil {
		t.Error("a wrong secret was accepted")
	}
}

// TestMissingProgram runs TestRedis in a process that can find no program.
func TestMissingProgram(t *testing.T) {
	cmd := exec.Command(os.Args[0], "-test.run=^TestRedis$")
	cmd.Dir = t.TempDir()
	cmd.Env = []string{"PATH=" + t.TempDir(), "TMPDIR=" + t.TempDir()}
	out, err := cmd.CombinedOutput()
	if _, err := exec.LookPath("/usr/sbin/redis-server"); err == nil {
		t.Fatal("redis-server lies where this test looks for nothing")
	}
	if err == nil || !bytes.Contains(out, []byte("make setup")) {
		t.Errorf("a missing program does not fail the test with its remedy: %v: %s", err, out)
	}
}

// TestKilled kills a test process in the middle: its servers and their files go.
func TestKilled(t *testing.T) {
	if os.Getenv(child) != "" {
		hold(t)
	}
	tmp := t.TempDir()
	cmd := exec.Command(os.Args[0], "-test.run=^TestKilled$")
	cmd.Env = append(os.Environ(), child+"=1", "TMPDIR="+tmp)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	var addrs []string
	for len(addrs) < 2 && lines.Scan() {
		if addr, ok := strings.CutPrefix(lines.Text(), "listens "); ok {
			addrs = append(addrs, addr)
		}
	}
	if err := errors.Join(lines.Err(), cmd.Process.Signal(syscall.SIGKILL)); err != nil || len(addrs) < 2 {
		t.Fatalf("listening: %v, %v", addrs, err)
	}
	if err := cmd.Wait(); err == nil {
		t.Fatal("it was not killed")
	}
	eventually(t, "the servers and their files are gone", func() bool {
		left, err := filepath.Glob(filepath.Join(tmp, "paddock-*"))
		for _, addr := range addrs {
			if c, err := net.Dial("tcp", addr); err == nil {
				_ = c.Close()
				return false
			}
		}
		return err == nil && len(left) == 0
	})
}

// hold starts servers and waits to be killed.
func hold(t *testing.T) {
	for _, addr := range []string{server(t, service.MariaDB(t)), service.Redis(t)} {
		if _, err := os.Stdout.WriteString("listens " + addr + "\n"); err != nil {
			t.Fatal(err)
		}
	}
	<-t.Context().Done()
}

func server(t *testing.T, dsn string) string {
	t.Helper()
	_, rest, ok := strings.Cut(dsn, "@tcp(")
	addr, _, ok2 := strings.Cut(rest, ")")
	if !ok || !ok2 {
		t.Fatalf("dsn %s", dsn)
	}
	return addr
}

func dial(t *testing.T, addr string) net.Conn {
	t.Helper()
	c, err := net.DialTimeout("tcp", addr, 5*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func pull(t *testing.T, reference string) v1.Image {
	t.Helper()
	ref, err := name.ParseReference(reference, name.Insecure)
	if err != nil {
		t.Fatal(err)
	}
	img, err := remote.Image(ref)
	if err != nil {
		t.Fatal(err)
	}
	return img
}

func digest(t *testing.T, img v1.Image) string {
	t.Helper()
	d, err := img.Digest()
	if err != nil {
		t.Fatal(err)
	}
	return d.String()
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !ok(); {
		if time.Now().After(deadline) {
			t.Fatalf("not within 30 s: %s", what)
		}
		<-time.After(50 * time.Millisecond)
	}
}
