package rootfs

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"math"
	"os"
	"path"
	"strings"

	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/platform/fail"
	"github.com/paddock-dev/paddock/internal/rootfs/ext4"
	"github.com/paddock-dev/paddock/internal/rootfs/tarfile"
)

// injector puts into an image what its sandboxes need, as one more layer.
type injector struct {
	*placer
	ctx  context.Context
	done []Injected
	left []string // what was not written, and why
}

// injection is what is put in.
type injection struct {
	guestPath string
	guestSum  string // sha256, in hex
	guestSize int64
	ca        []byte // certificates in PEM; empty: none
}

// inject puts in the guest, what the runtime mounts on, and the certificates.
// The image's own limits do not count for it.
func (p *placer) inject(ctx context.Context, what injection) (*injector, error) {
	if err := fail.Point("rootfs.inject"); err != nil {
		return nil, err
	}
	p.tree.limits.Entries, p.tree.limits.FileBytes = math.MaxInt64, math.MaxInt64
	p.begin()
	if err := p.settle(); err != nil { // bundles are read back
		return nil, err
	}
	i := &injector{placer: p, ctx: ctx, done: []Injected{}, left: []string{}}
	if err := i.mountPoints(); err != nil {
		return nil, err
	}
	if err := i.guest(what); err != nil {
		return nil, err
	}
	if len(what.ca) > 0 {
		if err := i.trust(what.ca); err != nil {
			return nil, err
		}
	}
	return i, nil
}

// mountPoints makes the directories that the runtime mounts on or that every
// program expects. The first three must be directories of the root itself.
func (i *injector) mountPoints() error {
	for _, d := range []struct {
		name string
		mode uint32
		real bool
	}{{"dev", 0o755, true}, {"proc", 0o755, true}, {"sys", 0o755, true}, {"etc", 0o755, false}, {"tmp", 0o1777, false}} {
		how := "created"
		if n := i.tree.lookup(root, d.name); n != 0 {
			if !d.real || i.tree.node(n).is(modeDir) {
				continue
			}
			how = "replaced"
		}
		if err := i.put(tarfile.Entry{Name: d.name, Type: tarfile.Directory, Mode: d.mode}, nil); err != nil {
			return err
		}
		i.done = append(i.done, Injected{d.name, "directory", how})
	}
	return nil
}

// guest puts the guest in, if there is one, over whatever the image has in its place.
func (i *injector) guest(what injection) (err error) {
	if what.guestPath == "" {
		return nil
	}
	dir, _ := path.Split(GuestPath)
	dir = strings.TrimSuffix(dir, "/")
	how := "created"
	if i.tree.lookup(root, dir) != 0 {
		how = "replaced"
		i.tree.hide(root, dir)
	}
	if err := i.put(tarfile.Entry{Name: dir, Type: tarfile.Directory, Mode: 0o755}, nil); err != nil {
		return err
	}
	f, err := os.Open(what.guestPath)
	if err != nil {
		return fault.Wrap(fault.ToolMissing, err, "templatecenter.guest_binary")
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	h := sha256.New()
	in := io.TeeReader(f, h)
	err = i.put(tarfile.Entry{Name: GuestPath, Mode: 0o755, Size: what.guestSize}, in)
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
		return err
	}
	more, late := io.Copy(io.Discard, in)
	if err != nil || late != nil || more > 0 || hex.EncodeToString(h.Sum(nil)) != what.guestSum {
		return fault.New(fault.StateConflict, "%s, the guest, changed during the build", what.guestPath)
	}
	i.done = append(i.done, Injected{GuestPath, "guest", how})
	return nil
}

// put lays one entry, with the time 0 and owned by root.
func (i *injector) put(e tarfile.Entry, r io.Reader) error {
	e.ModTime = epoch
	return i.entry(i.ctx, &e, e.Size, r)
}

// rewrite gives a file new contents and leaves the rest of it as it is.
func (i *injector) rewrite(n nodeID, body []byte) error {
	nd := i.tree.node(n)
	if nd.words[0] != 0 {
		i.orphans = append(i.orphans, *i.data.at(nd.words[0]))
		nd.words[0] = 0
	}
	return i.contents(n, &tarfile.Entry{Size: int64(len(body))}, int64(len(body)), strings.NewReader(string(body)))
}

// read returns the contents of a file of the tree. They must have come before
// the injection.
func (i *injector) read(n nodeID) ([]byte, error) {
	var d ext4.Data
	if at := i.tree.node(n).words[0]; at != 0 {
		d = *i.data.at(at)
	}
	return io.ReadAll(i.w.Reader(i.file, d))
}

// size returns the size of a file of the tree.
func (i *injector) size(n nodeID) int64 {
	if at := i.tree.node(n).words[0]; at != 0 {
		return i.data.at(at).Size()
	}
	return 0
}
