package rootfs_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/rootfs"
	"github.com/paddock-dev/paddock/internal/rootfs/blobcache"
)

// built is an image of ours.
type built struct {
	path    string
	devices rootfs.Rule // of the policy
	rootfs.Result
}

// buildStack makes the image of a stack below work.
func buildStack(ctx context.Context, work string, s stack, devices rootfs.Rule) (built, error) {
	layout := filepath.Join(work, "oci")
	defer os.RemoveAll(layout)
	if err := s.writeLayout(layout, byUs); err != nil {
		return built{}, err
	}
	return build(ctx, work, source{reference: "oci:" + layout + ":latest", devices: devices})
}

// source is an image, and how to come by it.
type source struct {
	reference string
	devices   rootfs.Rule
	insecure  []string
	cache     *blobcache.Cache
}

// build makes the image of a reference.
func build(ctx context.Context, work string, from source) (b built, err error) {
	scratch, guest := filepath.Join(work, "scratch"), filepath.Join(work, "guest")
	if err := os.MkdirAll(scratch, 0o755); err != nil {
		return built{}, err
	}
	if err := os.WriteFile(guest, []byte(guestBody), 0o755); err != nil {
		return built{}, err
	}
	im, err := rootfs.Resolve(ctx, rootfs.Request{
		Reference: from.reference, Local: true, InsecureRegistries: from.insecure, Cache: from.cache,
		GuestPath: guest, WorkDir: scratch, Policy: rootfs.Policy{Devices: from.devices},
	})
	if err != nil {
		return built{}, err
	}
	defer func() { err = errors.Join(err, im.Close()) }()
	b.path, b.devices = filepath.Join(work, "image.ext4"), from.devices
	if b.Result, err = im.WriteTo(ctx, b.path); err != nil {
		return b, err
	}
	left, err := os.ReadDir(scratch)
	if len(left) > 0 {
		err = fmt.Errorf("%v is left in the work directory", left)
	}
	return b, err
}

func faultName(err error) string { return fault.Of(err).Name }
