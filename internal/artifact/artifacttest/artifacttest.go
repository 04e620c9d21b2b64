// Package artifacttest is what every store of artifact bytes must do. It must
// never know which store it tests.
package artifacttest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/paddock-dev/paddock/internal/artifact"
	"github.com/paddock-dev/paddock/internal/fault"
)

// Store is what the suite uses.
type Store interface {
	Put(ctx context.Context, key, path string) error
	Open(ctx context.Context, key string) (io.ReadSeekCloser, artifact.Info, error)
	Stat(ctx context.Context, key string) (artifact.Info, error)
	Remove(ctx context.Context, key string) error
	Free(ctx context.Context) (int64, error)
}

// Lister is a Store that can say what it holds.
type Lister interface {
	List(ctx context.Context, each func(key string, i artifact.Info) error) error
}

// Run tests the stores that open returns, each fresh and empty.
func Run(t *testing.T, open func(t *testing.T) Store) {
	for name, test := range map[string]func(*testing.T, Store){
		"PutThenRead":       putThenRead,
		"PutReplaces":       putReplaces,
		"PartsCanBeRead":    partsCanBeRead,
		"AbsentIsNotFound":  absentIsNotFound,
		"RemoveIsRepeated":  removeIsRepeated,
		"KeysAreChecked":    keysAreChecked,
		"CancelStoresNone":  cancelStoresNone,
		"NoFileStoresNone":  noFileStoresNone,
		"ReadersSeeOne":     readersSeeOne,
		"OpenOutlivesAPut":  openOutlivesAPut,
		"ListNamesEachKey":  listNamesEachKey,
		"FreeIsAboveNought": freeIsAboveNought,
	} {
		t.Run(name, func(t *testing.T) { test(t, open(t)) })
	}
}

func write(t *testing.T, body string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "new.ext4")
	if err := os.WriteFile(path, []byte(body), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func put(t *testing.T, s Store, key, body string) {
	t.Helper()
	if err := s.Put(t.Context(), key, write(t, body)); err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, s Store, key string) string {
	t.Helper()
	r, info, err := s.Open(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(r)
	if err := errors.Join(err, r.Close()); err != nil {
		t.Fatal(err)
	}
	if info.Size != int64(len(b)) {
		t.Errorf("info says %d bytes, %d were read", info.Size, len(b))
	}
	return string(b)
}

func putThenRead(t *testing.T, s Store) {
	body := strings.Repeat("0123456789abcdef", 1<<16)
	path := write(t, body)
	if err := s.Put(t.Context(), "rfs-1.ext4", path); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); !os.IsNotExist(err) {
		t.Errorf("the file that was put is still there: %v", err)
	}
	if got := read(t, s, "rfs-1.ext4"); got != body {
		t.Errorf("read %d bytes, others than the %d that were put", len(got), len(body))
	}
	info, err := s.Stat(t.Context(), "rfs-1.ext4")
	if err != nil || info.Size != int64(len(body)) || info.Modified.IsZero() {
		t.Errorf("stat %+v, %v", info, err)
	}
}

func putReplaces(t *testing.T, s Store) {
	put(t, s, "k", "first")
	put(t, s, "k", "second, longer")
	if got := read(t, s, "k"); got != "second, longer" {
		t.Errorf("read %q", got)
	}
}

func partsCanBeRead(t *testing.T, s Store) {
	body := make([]byte, 1<<20)
	for i := range body {
		body[i] = byte(i / 4096)
	}
	put(t, s, "k", string(body))
	r, _, err := s.Open(t.Context(), "k")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	for _, at := range []int64{500_000, 0, 1<<20 - 10} {
		if _, err := r.Seek(at, io.SeekStart); err != nil {
			t.Fatal(err)
		}
		b := make([]byte, 10)
		if _, err := io.ReadFull(r, b); err != nil || !bytes.Equal(b, body[at:at+10]) {
			t.Errorf("at %d: %v, %v", at, b, err)
		}
	}
	if end, err := r.Seek(0, io.SeekEnd); err != nil || end != 1<<20 {
		t.Errorf("end at %d, %v", end, err)
	}
}

func absentIsNotFound(t *testing.T, s Store) {
	_, err := s.Stat(t.Context(), "none")
	if !errors.Is(err, fault.ArtifactNotFound) {
		t.Errorf("stat: %v", err)
	}
	if _, _, err := s.Open(t.Context(), "none"); !errors.Is(err, fault.ArtifactNotFound) {
		t.Errorf("open: %v", err)
	}
}

func removeIsRepeated(t *testing.T, s Store) {
	put(t, s, "k", "x")
	put(t, s, "other", "y")
	for range 2 {
		if err := s.Remove(t.Context(), "k"); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.Stat(t.Context(), "k"); !errors.Is(err, fault.ArtifactNotFound) {
		t.Errorf("stat: %v", err)
	}
	if read(t, s, "other") != "y" {
		t.Error("another key was touched")
	}
}

func keysAreChecked(t *testing.T, s Store) {
	for _, key := range []string{"", ".", "..", "../x", "a/b", ".put-1", "A", "a b", "a\x00", strings.Repeat("a", 200), "/etc/passwd"} {
		path := write(t, "x")
		_, _, openErr := s.Open(t.Context(), key)
		_, statErr := s.Stat(t.Context(), key)
		for _, err := range []error{s.Put(t.Context(), key, path), s.Remove(t.Context(), key), openErr, statErr} {
			if !errors.Is(err, fault.InvalidInput) {
				t.Errorf("key %q: %v", key, err)
			}
		}
		if _, err := os.Stat(path); err != nil {
			t.Errorf("key %q: the file was taken", key)
		}
	}
}

func cancelStoresNone(t *testing.T, s Store) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	// A store that only renames may be done before it looks.
	if err := s.Put(ctx, "k", write(t, strings.Repeat("x", 1<<20))); err == nil {
		if read(t, s, "k") == "" {
			t.Error("an empty artifact was stored")
		}
		return
	} else if !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	if _, err := s.Stat(t.Context(), "k"); !errors.Is(err, fault.ArtifactNotFound) {
		t.Errorf("stat: %v", err)
	}
}

func noFileStoresNone(t *testing.T, s Store) {
	if err := s.Put(t.Context(), "k", filepath.Join(t.TempDir(), "none")); err == nil {
		t.Error("no error")
	}
	if _, err := s.Stat(t.Context(), "k"); !errors.Is(err, fault.ArtifactNotFound) {
		t.Errorf("stat: %v", err)
	}
}

// readersSeeOne: while writers replace a key, a reader gets one of the whole
// contents and never a mixture.
func readersSeeOne(t *testing.T, s Store) {
	bodies := map[string]bool{}
	var list []string
	for i := range 4 {
		b := strings.Repeat(fmt.Sprintf("%08d", i), 1<<15)
		bodies[b], list = true, append(list, b)
	}
	put(t, s, "k", list[0])
	var files []string
	for i := range 12 {
		files = append(files, write(t, list[i%4]))
	}
	var writers sync.WaitGroup
	done := make(chan struct{})
	for w := range 3 {
		writers.Go(func() {
			for i := w; i < len(files); i += 3 {
				if err := s.Put(t.Context(), "k", files[i]); err != nil {
					t.Errorf("put: %v", err)
				}
			}
		})
	}
	go func() { writers.Wait(); close(done) }()
	for ended := false; !ended; {
		select {
		case <-done:
			ended = true
		default:
		}
		r, _, err := s.Open(t.Context(), "k")
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(r)
		if err := errors.Join(err, r.Close()); err == nil && !bodies[string(b)] {
			t.Fatalf("read a mixture of %d bytes", len(b))
		}
	}
}

func openOutlivesAPut(t *testing.T, s Store) {
	put(t, s, "k", "first")
	r, _, err := s.Open(t.Context(), "k")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	put(t, s, "k", "after")
	b, err := io.ReadAll(r)
	// A store may refuse to go on, but not hand out other bytes under the old name
	// as if they were the rest of it.
	if err == nil && string(b) != "first" && string(b) != "after" {
		t.Errorf("read %q", b)
	}
}

func listNamesEachKey(t *testing.T, s Store) {
	l, ok := s.(Lister)
	if !ok {
		t.Fatal("it cannot list")
	}
	put(t, s, "rfs-1.ext4", "x")
	put(t, s, "rfs-2.ext4", "yy")
	var keys []string
	err := l.List(t.Context(), func(key string, i artifact.Info) error {
		if key == "rfs-2.ext4" && i.Size != 2 || i.Modified.IsZero() {
			t.Errorf("%s: %+v", key, i)
		}
		keys = append(keys, key)
		return nil
	})
	slices.Sort(keys)
	if err != nil || !slices.Equal(keys, []string{"rfs-1.ext4", "rfs-2.ext4"}) {
		t.Errorf("keys %v, %v", keys, err)
	}
	stop := errors.New("enough")
	if err := l.List(t.Context(), func(string, artifact.Info) error { return stop }); !errors.Is(err, stop) {
		t.Errorf("error %v", err)
	}
}

func freeIsAboveNought(t *testing.T, s Store) {
	if n, err := s.Free(t.Context()); err != nil || n <= 0 {
		t.Errorf("%d bytes, %v", n, err)
	}
}
