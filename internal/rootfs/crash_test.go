package rootfs_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"

	"github.com/paddock-dev/paddock/internal/rootfs"
)

// The test program is also the program that is killed: with an image in its
// environment it builds that instead of testing.
func TestMain(m *testing.M) {
	if ref := os.Getenv("ROOTFS_BUILD"); ref != "" {
		runtime.GOMAXPROCS(2) // so that there is a spool
		sum, err := buildOnce(ref, os.Getenv("ROOTFS_GUEST"), os.Getenv("ROOTFS_WORK"))
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(3)
		}
		fmt.Println(sum)
		return
	}
	os.Exit(m.Run())
}

func buildOnce(ref, guest, work string) (string, error) {
	ctx := context.Background()
	im, err := rootfs.Resolve(ctx, rootfs.Request{Reference: ref, Local: true, GuestPath: guest, WorkDir: work})
	if err != nil {
		return "", err
	}
	defer im.Close()
	res, err := im.WriteTo(ctx, filepath.Join(work, "out.ext4"))
	return res.SHA256, err
}

// TestAKillAtEachPlaceLeavesWhatSweepRemoves: and never half an image.
func TestAKillAtEachPlaceLeavesWhatSweepRemoves(t *testing.T) {
	few := layoutOf(t, archive(t, file("a", noise(1<<20))), archive(t, file("b", noise(1<<20))))
	gappy, ahead := layoutOf(t, gappyLayers(t)...), layoutOf(t, aheadLayers(t)...)
	guest := request(t, "none").GuestPath
	work := t.TempDir()
	run := func(place string) (string, error) {
		c := exec.Command(os.Args[0])
		dir := few
		switch place {
		case "rootfs.compact":
			dir = gappy
		case "rootfs.spool":
			dir = ahead
		}
		c.Env = append(os.Environ(), "ROOTFS_BUILD=oci:"+dir, "ROOTFS_GUEST="+guest, "ROOTFS_WORK="+work)
		if place != "" {
			c.Env = append(c.Env, "PADDOCK_FAILPOINTS="+place+"=crash")
		}
		c.Stderr = os.Stderr
		out, err := c.Output()
		return strings.TrimSpace(string(out)), err
	}
	want, err := run("")
	if err != nil || len(want) != 64 {
		t.Fatalf("%q, %v", want, err)
	}
	if err := os.Remove(filepath.Join(work, "out.ext4")); err != nil {
		t.Fatal(err)
	}
	for _, place := range places {
		_, err := run(place)
		var exit *exec.ExitError
		if !asExit(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
			t.Errorf("%s: the program was not killed: %v", place, err)
		}
		if err := rootfs.Sweep(work); err != nil {
			t.Error(err)
		}
		if n := left(t, work); len(n) > 0 {
			t.Errorf("%s: left behind: %v", place, n)
		}
	}
	if got, err := run(""); err != nil || got != want {
		t.Errorf("%q, %v after the kills, %q before", got, err, want)
	}
}

// aheadLayers are two of which the upper one is read long before the lower one
// is, so that it must be spooled.
func aheadLayers(t *testing.T) [][]byte {
	t.Helper()
	return [][]byte{archive(t, file("a", noise(32<<20))), archive(t, file("b", noise(1<<20)))}
}

// layoutOf is an OCI layout with one image.
func layoutOf(t *testing.T, layers ...[]byte) string {
	t.Helper()
	var list []v1.Layer
	for _, l := range layers {
		list = append(list, bareOf(l))
	}
	dir := filepath.Join(t.TempDir(), "layout")
	if _, err := layout.Write(dir, mutate.AppendManifests(empty.Index, mutate.IndexAddendum{Add: imageOf(t, runtime.GOARCH, list...)})); err != nil {
		t.Fatal(err)
	}
	return dir
}

func asExit(err error, to **exec.ExitError) bool {
	e, ok := err.(*exec.ExitError) //nolint:errorlint // of Output, never wrapped
	*to = e
	return ok
}
