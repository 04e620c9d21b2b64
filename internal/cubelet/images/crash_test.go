package images_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/paddock-dev/paddock/internal/cubelet/images"
	"github.com/paddock-dev/paddock/internal/hostpb"
)

// Of the program itself, when it is a host that is to be killed.
const (
	childDir     = "PADDOCK_TEST_IMAGES_DIR"
	childRequest = "PADDOCK_TEST_IMAGES_REQUEST"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(childDir); dir != "" {
		if err := child(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

func child(dir string) error {
	b, err := os.ReadFile(os.Getenv(childRequest))
	if err != nil {
		return err
	}
	var r hostpb.EnsureArtifactRequest
	if err := proto.Unmarshal(b, &r); err != nil {
		return err
	}
	_, err = images.New(images.Options{Dir: dir, Log: slog.New(slog.NewTextHandler(os.Stderr, nil)), Token: hostToken}).Ensure(context.Background(), &r)
	return err
}

// killed runs a host that is killed at a place, as by kill -9.
func killed(t *testing.T, dir, at string, r *hostpb.EnsureArtifactRequest) {
	t.Helper()
	b, err := proto.Marshal(r)
	check(t, err)
	file := t.TempDir() + "/request"
	check(t, os.WriteFile(file, b, 0o600))
	self, err := os.Executable()
	check(t, err)
	c := exec.CommandContext(t.Context(), self)
	c.Env = append(os.Environ(), childDir+"="+dir, childRequest+"="+file, "PADDOCK_FAILPOINTS="+at)
	c.Stderr = os.Stderr
	var exit *exec.ExitError
	if err := c.Run(); !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL { //nolint:forcetypeassert // it is of Linux
		t.Fatalf("the child ended: %v", err)
	}
}

// A host that is killed in the middle, again and again, fetches only what it
// lacks, and is never left with half an image.
func TestKilledInTheMiddle(t *testing.T) {
	b := picture(1, 400)
	o := newOrigin(t, b)
	dir := t.TempDir()
	for range 2 {
		killed(t, dir, "cubelet.artifact.chunk=crash@100", o.wanted(id))
	}
	h := newHolder(t, dir)
	if ids, err := h.List(); err != nil || len(ids) > 0 || len(h.parts()) != 1 {
		t.Fatalf("it holds %v, %v; there is %s", ids, err, h.files())
	}
	got, err := h.ensure(o.wanted(id))
	check(t, err)
	h.has(id, b)
	if most := missing(b) - 190*chunk + int64(len(o.manifest)); got.Wire > most {
		t.Errorf("%d bytes travelled, at most %d were missing", got.Wire, most)
	}
}

// All is there but its name.
func TestKilledAtTheEnd(t *testing.T) {
	b := picture(1, 40)
	o := newOrigin(t, b)
	dir := t.TempDir()
	killed(t, dir, "cubelet.artifact.verified=crash", o.wanted(id))
	h := newHolder(t, dir)
	got, err := h.ensure(o.wanted(id))
	check(t, err)
	h.has(id, b)
	if got.Wire != int64(len(o.manifest)) {
		t.Errorf("%+v", got)
	}
}
