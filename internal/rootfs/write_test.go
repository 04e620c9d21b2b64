package rootfs_test

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-containerregistry/pkg/compression"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"golang.org/x/sys/unix"

	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/rootfs"
	"github.com/paddock-dev/paddock/internal/template"
)

func build(t *testing.T, r rootfs.Request) (string, rootfs.Result, error) {
	t.Helper()
	return buildWith(t, t.Context(), r)
}

func buildWith(t *testing.T, ctx context.Context, r rootfs.Request) (string, rootfs.Result, error) { //nolint:revive // t stands first in every test function
	t.Helper()
	im, err := rootfs.Resolve(ctx, r)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(r.WorkDir, "out.ext4")
	res, err := im.WriteTo(ctx, path)
	return path, res, err
}

// inside runs one command of debugfs on an image and returns what it prints.
func inside(t *testing.T, image, command string) string {
	t.Helper()
	for _, p := range []string{"debugfs", "/usr/sbin/debugfs", "/sbin/debugfs"} {
		if program, err := exec.LookPath(p); err == nil {
			var out bytes.Buffer
			c := exec.Command(program, "-R", command, image)
			c.Stdout = &out
			if err := c.Run(); err != nil {
				t.Fatalf("%s: %v", command, err)
			}
			return out.String()
		}
	}
	t.Fatal("debugfs of e2fsprogs is missing")
	return ""
}

func TestAnImageBecomesAFilesystem(t *testing.T) {
	s := newServer(t)
	base := archive(t, dir("bin"), file("bin/app", "#!app"), symlink("sbin", "bin"), file("etc/old", "1"), file(".paddock/guest", "an impostor"))
	next := archive(t, file("etc/.wh.old", ""), file("etc/new", "2"), file("empty", ""))
	r := request(t, s.pushLayers(t, "app", base, next))
	var mu sync.Mutex
	var phases []template.Phase
	var last rootfs.Event
	r.Progress = func(e rootfs.Event) {
		mu.Lock()
		defer mu.Unlock()
		if len(phases) == 0 || phases[len(phases)-1] != e.Phase {
			phases = append(phases, e.Phase)
		}
		if e.DoneBytes < last.DoneBytes || e.DoneLayers < last.DoneLayers {
			t.Errorf("progress went back from %+v to %+v", last, e)
		}
		last = e
	}
	path, res, err := build(t, r)
	if err != nil {
		t.Fatal(err)
	}
	if want := []template.Phase{template.PhasePulling, template.PhaseUnpacking, template.PhaseBuildingExt4}; !slices.Equal(phases, want) {
		t.Errorf("phases %v, want %v", phases, want)
	}
	if last.DoneBytes != last.TotalBytes || last.DoneLayers != 2 || last.TotalLayers != 2 || last.TotalBytes == 0 {
		t.Errorf("last event %+v", last)
	}
	info, err := os.Stat(path)
	if err != nil || info.Size() != res.SizeBytes || info.Size()%(2<<20) != 0 {
		t.Errorf("size %d, result says %d, %v", info.Size(), res.SizeBytes, err)
	}
	if sum, err := exec.Command("sha256sum", path).Output(); err != nil || !strings.HasPrefix(string(sum), res.SHA256+" ") {
		t.Errorf("sha256 %s, result says %s, %v", sum, res.SHA256, err)
	}
	for name, want := range map[string]string{"/bin/app": "#!app", "/etc/new": "2", "/empty": "", "/.paddock/guest": "the guest"} {
		if got := inside(t, path, "cat "+name); got != want {
			t.Errorf("%s holds %q, want %q", name, got, want)
		}
	}
	if got := inside(t, path, "ls -p /etc"); strings.Contains(got, "/old/") {
		t.Errorf("hidden entry is there: %s", got)
	}
	if got := inside(t, path, "stat /.paddock/guest"); !strings.Contains(got, "Mode:  0755") || !strings.Contains(got, "User:     0   Group:     0") {
		t.Errorf("guest: %s", got)
	}
	for _, d := range []string{"proc", "sys", "dev", "tmp"} {
		if got := inside(t, path, "stat /"+d); !strings.Contains(got, "Type: directory") {
			t.Errorf("/%s is no directory", d)
		}
	}
	if n := left(t, r.WorkDir); !slices.Equal(n, []string{"out.ext4"}) {
		t.Errorf("left behind: %v", n)
	}
}

// TestTheKeyNamesTheFilesystem: uuid and hash seed come from the content key,
// so they are equal for equal input and differ for another guest.
func TestTheKeyNamesTheFilesystem(t *testing.T) {
	s := newServer(t)
	ref := s.pushLayers(t, "app", archive(t, file("a", "1")))
	super := func(guest string) string {
		r := request(t, ref)
		if err := os.WriteFile(r.GuestPath, []byte(guest), 0o600); err != nil {
			t.Fatal(err)
		}
		path, _, err := build(t, r)
		if err != nil {
			t.Fatal(err)
		}
		var lines []string
		for _, l := range strings.Split(inside(t, path, "stats -h"), "\n") {
			if strings.HasPrefix(l, "Filesystem UUID") || strings.HasPrefix(l, "Directory Hash Seed") || strings.HasPrefix(l, "Block size") || strings.HasPrefix(l, "Block count") {
				lines = append(lines, strings.Join(strings.Fields(l), " "))
			}
		}
		return strings.Join(lines, "\n")
	}
	a, b, other := super("g1"), super("g1"), super("g2")
	if a != b || a == other || !strings.Contains(a, "Block size: 4096") || strings.Count(a, "\n") != 3 {
		t.Errorf("superblocks:\n%s\n\n%s\n\n%s", a, b, other)
	}
}

func TestLayersMayBeCompressedAnyWay(t *testing.T) {
	s := newServer(t)
	plain := archive(t, file("a", strings.Repeat("much the same ", 5000)))
	for name, l := range map[string]v1.Layer{
		"zstd": mustLayer(t, plain, tarball.WithCompression(compression.ZStd)),
		"none": mustLayer(t, plain, tarball.WithCompression(compression.None)),
		"gzip": mustLayer(t, plain, tarball.WithCompression(compression.GZip)),
	} {
		path, _, err := build(t, request(t, s.push(t, name, imageOf(t, runtime.GOARCH, l))))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if got := inside(t, path, "cat /a"); len(got) != 14*5000 {
			t.Errorf("%s: %d bytes", name, len(got))
		}
	}
}

func mustLayer(t *testing.T, plain []byte, o tarball.LayerOption) v1.Layer {
	t.Helper()
	f := filepath.Join(t.TempDir(), "layer.tar")
	if err := os.WriteFile(f, plain, 0o600); err != nil {
		t.Fatal(err)
	}
	l, err := tarball.LayerFromFile(f, o)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func TestTheSameLayerTwiceIsFetchedOnce(t *testing.T) {
	s := newServer(t)
	one, two := archive(t, file("a", "1")), archive(t, file("a", "2"))
	ref := s.pushLayers(t, "twice", one, two, one)
	var blobs atomic.Int64
	s.set(func(_ http.ResponseWriter, r *http.Request) bool {
		if isBlob(r) {
			blobs.Add(1)
		}
		return false
	})
	path, _, err := build(t, request(t, ref))
	if err != nil {
		t.Fatal(err)
	}
	if got := inside(t, path, "cat /a"); got != "1" {
		t.Errorf("a holds %q", got)
	}
	if n := blobs.Load(); n != 3 { // the config, and two layers
		t.Errorf("%d blobs were fetched", n)
	}
}

func TestManyFilesFit(t *testing.T) {
	s := newServer(t)
	entries := make([]tar.Header, 5_000)
	for i := range entries {
		entries[i] = file(fmt.Sprintf("d%d/%s%d", i%100, strings.Repeat("n", 60), i), "x")
	}
	path, res, err := build(t, request(t, s.pushLayers(t, "many", archive(t, entries...))))
	if err != nil {
		t.Fatal(err)
	}
	if res.Entries < 5_000 || inside(t, path, "cat /"+entries[4_999].Name) != "x" {
		t.Errorf("result %+v", res)
	}
}

// noise is text that no compression makes small.
func noise(n int) string {
	r := rand.NewChaCha8([32]byte{1})
	b := make([]byte, n)
	_, _ = r.Read(b)
	return string(b)
}

// TestFaultsLeaveNothing goes through what can go wrong after an image was
// found.
func TestFaultsLeaveNothing(t *testing.T) {
	big := archive(t, file("big", strings.Repeat("content ", 1<<16)))
	truncate := func(_ *server, w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "100000")
		_, _ = w.Write([]byte("short"))
		panic(http.ErrAbortHandler)
	}
	for _, c := range []struct {
		name   string
		push   func(*testing.T, *server) string
		meddle func(s *server, w http.ResponseWriter, r *http.Request)
		change func(*rootfs.Request)
		want   *fault.Code
		says   string
	}{
		{name: "hostile entry", push: layers(archive(t, file("a", "1")), archive(t, file("../evil", "1"))), want: fault.ImageHostile, says: `layer 2: entry "../evil"`},
		{name: "config lies about the archive", push: func(t *testing.T, s *server) string {
			return s.push(t, "odd", imageOf(t, runtime.GOARCH, odd(t, archive(t, file("a", "1")))))
		}, want: fault.ImageInvalid, says: "the config says"},
		{name: "no archive", push: layers(bytes.Repeat([]byte("no tar "), 300)), want: fault.ImageInvalid},
		{name: "other bytes than the digest says", push: layers(big), meddle: (*server).otherBytes, want: fault.ImageInvalid, says: "layer 1"},
		{name: "more bytes than the manifest says", push: layers(big), meddle: func(_ *server, w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write(bytes.Repeat([]byte("x"), 1<<20))
		}, want: fault.ImageInvalid, says: "larger"},
		{name: "layer is missing", push: layers(big), meddle: func(_ *server, w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNotFound) }, want: fault.ImageInvalid, says: "lacks a layer"},
		{name: "line that breaks each time", push: layers(big), meddle: truncate, want: fault.RegistryDown},
		{name: "refused while pulling", push: layers(big), meddle: func(_ *server, w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) }, want: fault.ImageDenied},
		{name: "disk too small", push: layers(big), change: func(r *rootfs.Request) { r.Free = func(string) (int64, error) { return 1 << 20, nil } }, want: fault.DiskFull, says: "1048576 are free"},
		{name: "disk cannot be asked", push: layers(big), change: func(r *rootfs.Request) { r.Free = func(string) (int64, error) { return 0, errors.New("no such disk") } }, want: fault.DataDir},
		{name: "too many entries", push: layers(big), change: func(r *rootfs.Request) { r.Limits.Bytes = 10 }, want: fault.ImageHostile},
		{name: "guest went away", push: layers(big), change: func(r *rootfs.Request) {
			guest := r.GuestPath
			r.Progress = func(e rootfs.Event) {
				if e.Phase == template.PhaseUnpacking {
					_ = os.Remove(guest)
				}
			}
		}, want: fault.ToolMissing},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newServer(t)
			r := request(t, c.push(t, s))
			if c.change != nil {
				c.change(&r)
			}
			im, err := rootfs.Resolve(t.Context(), r)
			if err != nil {
				t.Fatal(err)
			}
			if c.meddle != nil {
				s.set(func(w http.ResponseWriter, r *http.Request) bool {
					if isBlob(r) {
						c.meddle(s, w, r)
						return true
					}
					return false
				})
			}
			_, err = im.WriteTo(t.Context(), filepath.Join(r.WorkDir, "out.ext4"))
			if fault.Of(err) != c.want || !strings.Contains(err.Error(), c.says) {
				t.Errorf("error %v, want %s saying %q", err, c.want.Name, c.says)
			}
			if n := left(t, r.WorkDir); len(n) > 0 {
				t.Errorf("left behind: %v", n)
			}
		})
	}
}

func layers(list ...[]byte) func(*testing.T, *server) string {
	return func(t *testing.T, s *server) string { t.Helper(); return s.pushLayers(t, "app", list...) }
}

func TestALineThatBreaksOnceIsTriedAgain(t *testing.T) {
	s := newServer(t)
	r := request(t, s.pushLayers(t, "app", archive(t, file("a", strings.Repeat("1", 1<<20)))))
	im, err := rootfs.Resolve(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	var broken atomic.Bool
	s.set(func(w http.ResponseWriter, r *http.Request) bool {
		if !isBlob(r) || broken.Swap(true) {
			return false
		}
		w.Header().Set("Content-Length", "1000000")
		_, _ = w.Write([]byte("short"))
		panic(http.ErrAbortHandler)
	})
	if _, err := im.WriteTo(t.Context(), filepath.Join(r.WorkDir, "out.ext4")); err != nil || !broken.Load() {
		t.Errorf("error %v, broken %t", err, broken.Load())
	}
}

// TestAFullDiskIsTold builds on a filesystem that is too small although it
// claims to have room.
func TestAFullDiskIsTold(t *testing.T) {
	s := newServer(t)
	r := request(t, s.pushLayers(t, "app", archive(t, file("a", noise(12<<20))), archive(t, file("b", noise(12<<20-1)))))
	r.WorkDir = filepath.Join(t.TempDir(), "small")
	if err := os.Mkdir(r.WorkDir, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, size := range []string{"4m", "30m", "42m"} { // while pulling, while unpacking, while making the file
		if err := unix.Mount("tmpfs", r.WorkDir, "tmpfs", 0, "size="+size); err != nil {
			t.Fatal(err)
		}
		r.Free = func(string) (int64, error) { return 1 << 40, nil }
		_, _, err := build(t, r)
		n := left(t, r.WorkDir)
		if err := unix.Unmount(r.WorkDir, 0); err != nil {
			t.Fatal(err)
		}
		if fault.Of(err) != fault.DiskFull {
			t.Errorf("%s: %v", size, err)
		}
		if len(n) > 0 {
			t.Errorf("%s: left behind: %v", size, n)
		}
	}
}

func TestACancelEndsEachPhaseAndLeavesNothing(t *testing.T) {
	s := newServer(t)
	ref := s.pushLayers(t, "app", archive(t, file("a", noise(4<<20))))
	for _, phase := range []template.Phase{template.PhasePulling, template.PhaseUnpacking, template.PhaseBuildingExt4} {
		r := request(t, ref)
		ctx, cancel := context.WithCancel(t.Context())
		r.Progress = func(e rootfs.Event) {
			if e.Phase == phase {
				cancel()
			}
		}
		if _, _, err := buildWith(t, ctx, r); !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", phase, err)
		}
		if n := left(t, r.WorkDir); len(n) > 0 {
			t.Errorf("%s: left behind: %v", phase, n)
		}
	}
}

func TestASilentRegistryEndsWithTheContext(t *testing.T) {
	s := newServer(t)
	r := request(t, s.pushLayers(t, "app", archive(t, file("a", "1"))))
	im, err := rootfs.Resolve(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	s.set(func(w http.ResponseWriter, r *http.Request) bool {
		if !isBlob(r) {
			return false
		}
		w.Header().Set("Content-Length", "1000")
		_, _ = w.Write([]byte("begun"))
		_ = http.NewResponseController(w).Flush()
		cancel()
		<-r.Context().Done()
		return true
	})
	if _, err := im.WriteTo(ctx, filepath.Join(r.WorkDir, "out.ext4")); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	if n := left(t, r.WorkDir); len(n) > 0 {
		t.Errorf("left behind: %v", n)
	}
}

func TestSweepRemovesOnlyWhatBuildsLeft(t *testing.T) {
	work := t.TempDir()
	for _, d := range []string{"build-123/tree/etc", "other"} {
		if err := os.MkdirAll(filepath.Join(work, d), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := rootfs.Sweep(work); err != nil {
		t.Fatal(err)
	}
	if n := left(t, work); !slices.Equal(n, []string{"other"}) {
		t.Errorf("left: %v", n)
	}
}

func TestTheRoomIsCheckedBeforeAnythingIsFetched(t *testing.T) {
	s := newServer(t)
	r := request(t, s.pushLayers(t, "app", archive(t, file("a", "1"))))
	r.Free = func(string) (int64, error) { return 10, nil }
	im, err := rootfs.Resolve(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	s.set(func(http.ResponseWriter, *http.Request) bool { t.Error("the registry was asked"); return false })
	_, err = im.WriteTo(t.Context(), filepath.Join(r.WorkDir, "out.ext4"))
	for _, word := range []string{"bytes are needed", r.WorkDir, "10 are free"} {
		if fault.Of(err) != fault.DiskFull || !strings.Contains(err.Error(), word) {
			t.Errorf("error %v lacks %q", err, word)
		}
	}
}
