package rootfs_test

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"net/http"
	"os"
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
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/sys/unix"

	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/platform/fail"
	"github.com/paddock-dev/paddock/internal/rootfs"
	"github.com/paddock-dev/paddock/internal/template"
)

// write makes the image of a request.
func write(t *testing.T, ctx context.Context, r rootfs.Request) (string, rootfs.Result, error) { //nolint:revive // t stands first in every test function
	t.Helper()
	im, err := rootfs.Resolve(ctx, r)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := im.Close(); err != nil {
			t.Error(err)
		}
	}()
	path := filepath.Join(r.WorkDir, "out.ext4")
	res, err := im.WriteTo(ctx, path)
	return path, res, err
}

func mustWrite(t *testing.T, r rootfs.Request) built {
	t.Helper()
	path, res, err := write(t, t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	if n := left(t, r.WorkDir); !slices.Equal(n, []string{"out.ext4"}) {
		t.Errorf("left behind: %v", n)
	}
	return open(t, path, res)
}

// noise is text that no compression makes small.
func noise(n int) string {
	r := rand.NewChaCha8([32]byte{1})
	b := make([]byte, n)
	_, _ = r.Read(b)
	return string(b)
}

func TestProgressGoesForwardThroughAllPhases(t *testing.T) {
	s := newServer(t)
	for name, cached := range map[string]bool{"kept": true, "streamed": false} {
		r := request(t, s.pushLayers(t, "app", archive(t, file("a", noise(1<<20))), archive(t, file("b", noise(1<<19)))))
		if !cached {
			r.Cache = nil
		}
		for range 2 {
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
					t.Errorf("%s: progress went back from %+v to %+v", name, last, e)
				}
				last = e
			}
			mustWrite(t, r)
			if want := []template.Phase{template.PhasePulling, template.PhaseUnpacking, template.PhaseBuildingExt4}; !slices.Equal(phases, want) {
				t.Errorf("%s: phases %v, want %v", name, phases, want)
			}
			if last.DoneBytes != last.TotalBytes || last.DoneLayers != 2 || last.TotalLayers != 2 || last.TotalBytes == 0 {
				t.Errorf("%s: last event %+v", name, last)
			}
		}
	}
}

func TestLayersMayBeCompressedAnyWay(t *testing.T) {
	s := newServer(t)
	body := strings.Repeat("much the same ", 50_000)
	plain := archive(t, file("a", body))
	for name, l := range map[string]v1.Layer{
		"zstd": mustLayer(t, plain, tarball.WithCompression(compression.ZStd), tarball.WithMediaType(types.OCILayerZStd)),
		"none": bareOf(plain),
		"gzip": mustLayer(t, plain, tarball.WithCompression(compression.GZip), tarball.WithMediaType(types.OCILayer)),
	} {
		if got := mustWrite(t, request(t, s.push(t, name, imageOf(t, runtime.GOARCH, l)))).content(t, "a"); got != body {
			t.Errorf("%s: %d bytes", name, len(got))
		}
	}
}

func mustLayer(t *testing.T, plain []byte, o ...tarball.LayerOption) v1.Layer {
	t.Helper()
	f := filepath.Join(t.TempDir(), "layer.tar")
	if err := os.WriteFile(f, plain, 0o600); err != nil {
		t.Fatal(err)
	}
	l, err := tarball.LayerFromFile(f, o...)
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
	r := request(t, ref)
	if got := mustWrite(t, r).content(t, "a"); got != "1" {
		t.Errorf("a holds %q", got)
	}
	if n := blobs.Load(); n != 3 { // the config, and two layers
		t.Errorf("%d blobs were fetched", n)
	}
	mustWrite(t, r)
	if n := blobs.Load(); n != 4 { // the config again
		t.Errorf("%d blobs were fetched for two builds", n)
	}
}

func TestTwoBuildsOfOneImageAtOnce(t *testing.T) {
	s := newServer(t)
	r := request(t, s.pushLayers(t, "app", archive(t, file("a", noise(3<<20))), archive(t, file("b", noise(2<<20)))))
	var blobs atomic.Int64
	s.set(func(_ http.ResponseWriter, q *http.Request) bool {
		if isBlob(q) {
			blobs.Add(1)
		}
		return false
	})
	var wait sync.WaitGroup
	sums := make([]string, 4)
	for i := range sums {
		wait.Go(func() {
			im, err := rootfs.Resolve(t.Context(), r)
			if err != nil {
				t.Error(err)
				return
			}
			defer im.Close()
			res, err := im.WriteTo(t.Context(), filepath.Join(r.WorkDir, "out"+string(rune('0'+i))))
			if err != nil {
				t.Error(err)
			}
			sums[i] = res.SHA256
		})
	}
	wait.Wait()
	for _, one := range sums {
		if one != sums[0] || one == "" {
			t.Errorf("sums %v", sums)
		}
	}
	if n := blobs.Load(); n != 4+2 { // the config for each, both layers once
		t.Errorf("%d blobs were fetched", n)
	}
	if n := left(t, r.WorkDir); len(n) != 4 {
		t.Errorf("left behind: %v", n)
	}
}

// TestFaultsLeaveNothing goes through what can go wrong after an image was
// found.
func TestFaultsLeaveNothing(t *testing.T) {
	big := archive(t, file("big", strings.Repeat("content ", 1<<16)), file("noise", noise(1<<19)))
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
		{name: "hostile entry", push: layers(archive(t, file("a", "1")), archive(t, file("../evil", "1"))), want: fault.LayerPath, says: `layer 2: entry "../evil"`},
		{name: "hostile tree", push: layers(archive(t, file("a", "1")), archive(t, file("a/b", "1"))), want: fault.LayerPath, says: `layer 2: entry "a/b"`},
		{name: "config lies about the archive", push: func(t *testing.T, s *server) string {
			return s.push(t, "odd", imageOf(t, runtime.GOARCH, odd(t, archive(t, file("a", "1")))))
		}, want: fault.LayerDigest, says: "the config says"},
		{name: "no archive", push: layers(bytes.Repeat([]byte("no tar "), 300)), want: fault.LayerArchive},
		{name: "an archive cut off", push: layers(big[:len(big)/2]), want: fault.LayerArchive},
		{name: "bytes behind the archive", push: layers(append(bytes.Clone(big), "more"...)), want: fault.LayerTrailing},
		{name: "other bytes than the digest says", push: layers(big), meddle: (*server).otherBytes, want: fault.LayerDigest, says: "layer 1"},
		{name: "more bytes than the manifest says", push: layers(big), meddle: func(_ *server, w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write(bytes.Repeat([]byte("x"), 1<<20))
		}, want: fault.LayerDigest, says: "layer 1"},
		{name: "layer is missing", push: layers(big), meddle: func(_ *server, w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNotFound) }, want: fault.ImageInvalid, says: "layer 1"},
		{name: "line that breaks each time", push: layers(big), meddle: truncate, want: fault.RegistryDown},
		{name: "refused while pulling", push: layers(big), meddle: func(_ *server, w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) }, want: fault.ImageDenied},
		{name: "disk too small", push: layers(big), change: func(r *rootfs.Request) { r.Free = func(string) (int64, error) { return 1 << 20, nil } }, want: fault.DiskFull, says: "1048576 are free"},
		{name: "disk cannot be asked", push: layers(big), change: func(r *rootfs.Request) { r.Free = func(string) (int64, error) { return 0, errors.New("no such disk") } }, want: fault.DataDir},
		{name: "too many bytes", push: layers(big), change: func(r *rootfs.Request) { r.Limits.FileBytes = 10 }, want: fault.TooManyBytes, says: `entry "big"`},
		{name: "too many bytes that no file has", push: layers(archive(t, file(".wh.gone", noise(3<<20)))), change: func(r *rootfs.Request) { r.Limits.FileBytes, r.Limits.Entries = 10, 1 }, want: fault.TooManyBytes, says: "when they are decompressed"},
		{name: "too many entries", push: layers(big), change: func(r *rootfs.Request) { r.Limits.Entries = 1 }, want: fault.TooManyEntries, says: `entry "noise"`},
		{name: "refused by the policy", push: layers(archive(t, device("d", 1, 3))), change: func(r *rootfs.Request) { r.Policy.Devices = rootfs.Refuse }, want: fault.LayerDevice, says: `entry "d"`},
		{name: "unfit for ext4", push: layers(archive(t, file("lost+found", "1"))), want: fault.ImageUnfit, says: `entry "lost+found"`},
		{name: "guest went away", push: layers(big), change: func(r *rootfs.Request) {
			guest := r.GuestPath
			r.Progress = func(rootfs.Event) { _ = os.Remove(guest) }
		}, want: fault.ToolMissing},
		{name: "guest changed", push: layers(big), change: func(r *rootfs.Request) {
			guest := r.GuestPath
			r.Progress = func(rootfs.Event) { _ = os.WriteFile(guest, []byte("an other"), 0o600) }
		}, want: fault.StateConflict},
		{name: "guest grew", push: layers(big), change: func(r *rootfs.Request) {
			guest := r.GuestPath
			r.Progress = func(rootfs.Event) { _ = os.WriteFile(guest, []byte("the guest, and more"), 0o600) }
		}, want: fault.StateConflict},
	} {
		for _, kept := range []bool{true, false} {
			t.Run(c.name+map[bool]string{true: ", kept", false: ", streamed"}[kept], func(t *testing.T) {
				s := newServer(t)
				r := request(t, c.push(t, s))
				if !kept {
					r.Cache = nil
				}
				if c.change != nil {
					c.change(&r)
				}
				im, err := rootfs.Resolve(t.Context(), r)
				if err != nil {
					t.Fatal(err)
				}
				defer im.Close()
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
}

func layers(list ...[]byte) func(*testing.T, *server) string {
	return func(t *testing.T, s *server) string { t.Helper(); return s.pushLayers(t, "app", list...) }
}

func TestALineThatBreaksOnceIsTriedAgain(t *testing.T) {
	s := newServer(t)
	r := request(t, s.pushLayers(t, "app", archive(t, file("a", noise(1<<20)))))
	im, err := rootfs.Resolve(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	defer im.Close()
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

// TestALayerDamagedInTheCacheIsFetchedAnew: the build begins again by itself.
func TestALayerDamagedInTheCacheIsFetchedAnew(t *testing.T) {
	s := newServer(t)
	dir := t.TempDir()
	r := request(t, s.pushLayers(t, "app", archive(t, file("a", noise(1<<20)))))
	r.Cache = cacheIn(t, dir)
	want := mustWrite(t, r).SHA256
	damaged := 0
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		if info, err := d.Info(); err != nil || info.Size() < 1<<20 {
			return err
		}
		damaged++
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			return err
		}
		_, err = f.WriteAt([]byte("damage"), 1<<19)
		return errors.Join(err, f.Close())
	})
	if err != nil || damaged != 1 {
		t.Fatalf("%d files damaged, %v", damaged, err)
	}
	if got := mustWrite(t, r).SHA256; got != want {
		t.Errorf("%s after the damage, %s before", got, want)
	}
}

// TestAFullDiskIsTold builds on a filesystem that is too small although it
// claims to have room.
func TestAFullDiskIsTold(t *testing.T) {
	s := newServer(t)
	r := request(t, s.pushBare(t, "app", archive(t, file("a", noise(3<<20))), archive(t, file("b", noise(3<<20-1)))))
	r.WorkDir = filepath.Join(t.TempDir(), "small")
	if err := os.Mkdir(r.WorkDir, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, size := range []string{"4k", "1m", "4m", "6200k"} { // in the first layer, or its spool; in the second; at the end, of 6204k
		if err := unix.Mount("tmpfs", r.WorkDir, "tmpfs", 0, "size="+size); err != nil {
			t.Fatal(err)
		}
		r.Free = func(string) (int64, error) { return 1 << 40, nil }
		_, _, err := write(t, t.Context(), r)
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
	ref := s.pushLayers(t, "app", archive(t, file("a", noise(4<<20))), archive(t, file("b", noise(4<<20))))
	for _, phase := range []template.Phase{template.PhasePulling, template.PhaseUnpacking, template.PhaseBuildingExt4} {
		r := request(t, ref)
		ctx, cancel := context.WithCancel(t.Context())
		r.Progress = func(e rootfs.Event) {
			if e.Phase == phase {
				cancel()
			}
		}
		if _, _, err := write(t, ctx, r); !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", phase, err)
		}
		if n := left(t, r.WorkDir); len(n) > 0 {
			t.Errorf("%s: left behind: %v", phase, n)
		}
	}
}

func TestASilentRegistryEndsWithTheContext(t *testing.T) {
	s := newServer(t)
	for _, kept := range []bool{true, false} {
		r := request(t, s.pushLayers(t, "app", archive(t, file("a", noise(1<<20)))))
		if !kept {
			r.Cache = nil
		}
		im, err := rootfs.Resolve(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		s.set(func(w http.ResponseWriter, r *http.Request) bool {
			if !isBlob(r) {
				return false
			}
			_, _ = w.Write([]byte("begun")) // of a length that it does not tell
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
		if err := im.Close(); err != nil {
			t.Error(err)
		}
		s.set(nil)
	}
}

// places are where a test may break a build.
var places = []string{"rootfs.pull", "rootfs.spool", "rootfs.layer", "rootfs.inject", "rootfs.compact", "rootfs.before_finish", "rootfs.before_rename"}

// TestAFaultAtEachPlaceLeavesNothing: and the next build is as if nothing was.
func TestAFaultAtEachPlaceLeavesNothing(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(2))
	few := "oci:" + layoutOf(t, archive(t, file("a", noise(1<<20))), archive(t, file("b", noise(1<<20))))
	gappy, ahead := "oci:"+layoutOf(t, gappyLayers(t)...), "oci:"+layoutOf(t, aheadLayers(t)...)
	r := request(t, few)
	r.Local = true
	want := mustWrite(t, r).SHA256
	if err := os.Remove(filepath.Join(r.WorkDir, "out.ext4")); err != nil {
		t.Fatal(err)
	}
	for _, place := range places {
		switch r.Reference = few; place {
		case "rootfs.compact":
			r.Reference = gappy
		case "rootfs.spool":
			r.Reference = ahead
		}
		disarm := fail.Arm(place, "error")
		_, _, err := write(t, t.Context(), r)
		if !errors.Is(err, fail.ErrInjected) || fail.Visits(place) == 0 {
			t.Errorf("%s: %v after %d visits", place, err, fail.Visits(place))
		}
		disarm()
		if n := left(t, r.WorkDir); len(n) > 0 {
			t.Errorf("%s: left behind: %v", place, n)
		}
	}
	r.Reference = few
	if got := mustWrite(t, r).SHA256; got != want {
		t.Errorf("%s after the faults, %s before", got, want)
	}
}

func TestSweepRemovesOnlyWhatBuildsLeft(t *testing.T) {
	work := t.TempDir()
	for _, d := range []string{"build-123/tree/etc", "layers"} {
		if err := os.MkdirAll(filepath.Join(work, d), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := rootfs.Sweep(work); err != nil {
		t.Fatal(err)
	}
	if n := left(t, work); !slices.Equal(n, []string{"layers"}) {
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
	defer im.Close()
	s.set(func(http.ResponseWriter, *http.Request) bool { t.Error("the registry was asked"); return false })
	_, err = im.WriteTo(t.Context(), filepath.Join(r.WorkDir, "out.ext4"))
	for _, word := range []string{"bytes are needed", r.WorkDir, "10 are free"} {
		if fault.Of(err) != fault.DiskFull || !strings.Contains(err.Error(), word) {
			t.Errorf("error %v lacks %q", err, word)
		}
	}
}
