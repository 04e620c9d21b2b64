package rootfs_test

import (
	"errors"
	"io/fs"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"

	"github.com/paddock-dev/paddock/internal/fault"
)

// kept returns the bytes of layers in a cache.
func kept(t *testing.T, dir string) (n int64) {
	t.Helper()
	err := filepath.WalkDir(filepath.Join(dir, "blobs"), func(_ string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if err == nil {
			n += info.Size()
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// TestCachedLayersMakeRoomForABuild: a disk that old layers fill is not full.
// When they would not be enough they stay.
func TestCachedLayersMakeRoomForABuild(t *testing.T) {
	s, dir := newServer(t), t.TempDir()
	old := request(t, s.pushLayers(t, "old", archive(t, file("a", noise(2<<20)))))
	old.Cache = cacheIn(t, dir)
	mustWrite(t, old)
	was := kept(t, dir)

	r := request(t, s.pushLayers(t, "new", archive(t, file("b", noise(1<<20+1)))))
	r.Cache = old.Cache
	r.Free = func(string) (int64, error) { return 0, nil }
	_, _, err := write(t, t.Context(), r)
	said := regexp.MustCompile(`about (\d+) bytes`).FindStringSubmatch(errors.Join(err, errors.New("")).Error())
	if !errors.Is(err, fault.DiskFull) || said == nil || kept(t, dir) != was {
		t.Fatalf("with nothing free: %v; %d of %d cached bytes are left", err, kept(t, dir), was)
	}
	need, err := strconv.ParseInt(said[1], 10, 64)
	if err != nil {
		t.Fatal(err)
	}

	r.Free = func(string) (int64, error) { return need - was/2 + was - kept(t, dir), nil }
	if _, _, err := write(t, t.Context(), r); err != nil {
		t.Errorf("half a cached layer was short: %v", err)
	}
}
