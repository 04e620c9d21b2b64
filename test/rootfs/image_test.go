package rootfs_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/paddock-dev/paddock/internal/rootfs"
	"github.com/paddock-dev/paddock/internal/rootfs/ext4"
)

const guestBody = "stands for the guest"

// inject lays what every image is given over the layers: the guest, and what
// the runtime mounts on.
func (m *model) inject() *model {
	m = m.clone()
	m.begin()
	put := func(name string, k kind, mode uint32) {
		if err := m.apply(entry{name: name, kind: k, mode: mode, body: body{text: guestBody}}); err != nil {
			panic(fmt.Sprintf("%s cannot be injected: %v", name, err))
		}
	}
	for name, mode := range map[string]uint32{"dev": 0o755, "proc": 0o755, "sys": 0o755, "etc": 0o755, "tmp": 0o1777} {
		mountedOn := name != "etc" && name != "tmp"
		if old := m.names[name]; old == nil || mountedOn && old.kind != dir {
			put(name, dir, mode)
		}
	}
	m.touched = map[string]bool{}
	_ = m.apply(entry{name: ".wh..paddock", kind: file}) // nothing of it may stay
	put(".paddock", dir, 0o755)
	put(".paddock/guest", file, 0o755)
	return m
}

// imageBelief is what an image of ours is known to leave out:
//   - times that ext4 cannot hold are moved to the nearest that it can;
//   - attributes that mean nothing in a sandbox, or cannot be on such an entry.
var imageBelief = believer{
	time: func(t time.Time) time.Time {
		lost, found := time.Date(2310, 4, 4, 16, 10, 40, 0, time.UTC), time.Date(2378, 4, 22, 19, 24, 48, 0, time.UTC)
		switch {
		case t.Before(ext4.MinTime):
			return ext4.MinTime
		case t.After(ext4.MaxTime):
			return ext4.MaxTime
		case !t.Before(lost) && t.Before(found): // the kernel reads these as others
			return lost.Add(-1)
		}
		return t
	},
	keeps: func(name string, k kind) bool {
		user := strings.HasPrefix(name, "user.") && !strings.HasPrefix(name, "user.overlay.") && (k == file || k == dir)
		return user || name == capability || name == aclAccess || name == aclDefault
	},
}

// stripped says whether the policy keeps a node out of an image. An overlay
// mount over the image would take a character device 0:0 for a whiteout, so no
// image has one.
func (n *node) stripped(devices rootfs.Rule) bool {
	return (n.kind == char || n.kind == block) && devices == rootfs.Strip || n.overlayWhiteout()
}

func (n *node) overlayWhiteout() bool { return n.kind == char && n.major == 0 && n.minor == 0 }

// ours returns the tree that an image of the model's has: with ext4's own
// directory for repairs, and without what the policy strips.
func (m *model) ours(devices rootfs.Rule) (tree, map[string]*node, error) {
	m = m.inject()
	if m.names["lost+found"] == nil {
		m.names["lost+found"] = &node{entry: entry{kind: dir, mode: 0o700}}
	}
	maps.DeleteFunc(m.names, func(_ string, n *node) bool { return n.stripped(devices) })
	nodes, err := m.nodes(imageBelief)
	return grouped(nodes), m.names, err
}

// noExcuse is for those that must get everything right.
func noExcuse(_, _ string) bool { return false }

// quietCheck is what e2fsck prints about an image in which it finds nothing.
var quietCheck = regexp.MustCompile(`^(e2fsck \d.*|Pass \d[A-Z]?: .*|[^ ]+: \d+/\d+ files \(.*\), \d+/\d+ blocks|)$`)

func fsck(ctx context.Context, image string) []difference {
	out, err := run(ctx, "e2fsck", "-fn", image)
	if err != nil {
		return []difference{{"e2fsck", "", "", err.Error()}}
	}
	var bad []difference
	for line := range strings.Lines(out) {
		if !quietCheck.MatchString(strings.TrimSuffix(line, "\n")) {
			bad = append(bad, difference{"e2fsck", "", "", line})
		}
	}
	return bad
}

// imageAgainst holds an image against the model: e2fsck, the kernel, our own
// reader, and debugfs for some entries.
func imageAgainst(ctx context.Context, work string, b built, m *model) ([]difference, error) {
	image := b.path
	want, nodes, err := m.ours(b.devices)
	if err != nil {
		return nil, err
	}
	bad := append(fsck(ctx, image), countsAgainst(b.Receipt.Counts, m.counted(b.devices))...)
	err = mounted(ctx, image, filepath.Join(work, "mount"), func(at string) error {
		got, err := kernelNodes(at)
		bad = append(bad, said("kernel", want, nodes, got)...)
		return err
	})
	if err != nil {
		return append(bad, difference{"kernel", "", "", err.Error()}), nil //nolint:nilerr // it is told as a difference
	}
	got, err := readImage(ctx, image)
	if err != nil {
		return append(bad, difference{"reader", "", "", err.Error()}), nil //nolint:nilerr // it is told as a difference
	}
	bad = append(bad, said("reader", want, nodes, got)...)
	more, err := debugfsAgainst(ctx, work, image, want, got)
	return append(bad, more...), err
}

func said(who string, want tree, nodes map[string]*node, got map[string]inode) []difference {
	return append(differences(who, want, grouped(got), noExcuse), lostHoles(who, nodes, got)...)
}

func readImage(ctx context.Context, image string) (nodes map[string]inode, err error) {
	f, err := os.Open(image)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return nil, err
	}
	im, err := ext4.Open(f, size)
	if err != nil {
		return nil, err
	}
	if _, err := im.Verify(ctx); err != nil {
		return nil, err
	}
	return readerNodes(ctx, im)
}

// lostHoles lists the holes of sparse files that an image stores.
func lostHoles(who string, nodes map[string]*node, got map[string]inode) []difference {
	var out []difference
	for path, n := range nodes {
		if n.kind != file || n.body.sparse == dense {
			continue
		}
		for _, want := range n.body.holes() {
			if !slices.ContainsFunc(got[path].holes, func(h hole) bool { return h.off <= want.off && h.end >= want.end }) {
				out = append(out, difference{who, path, "holes", fmt.Sprintf("the hole %v is stored; its holes are %v", want, got[path].holes)})
			}
		}
	}
	return out
}

// holes returns what of a sparse file takes no block of 4 KiB.
func (b body) holes() []hole {
	var out []hole
	at := int64(0)
	for _, s := range append(slices.Clone(b.segs), segment{b.size, 0}) {
		off, end := (at+4095)/4096*4096, s.off/4096*4096
		if s.n == 0 {
			end = s.off
		}
		if off < end {
			out = append(out, hole{off, end})
		}
		at = s.off + s.n
	}
	return out
}
