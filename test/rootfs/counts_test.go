package rootfs_test

import (
	"fmt"
	"reflect"
	"strings"

	"github.com/paddock-dev/paddock/internal/rootfs"
)

// counted returns what a receipt should say of the model's tree.
func (m *model) counted(devices rootfs.Rule) rootfs.Counts {
	m = m.inject()
	c := rootfs.Counts{Stripped: rootfs.Stripped{Xattrs: map[string]int64{}}}
	seen := map[*node]bool{}
	for path, n := range m.names {
		switch {
		case n.overlayWhiteout():
			c.Stripped.OverlayWhiteouts++
		case n.stripped(devices):
			c.Stripped.Devices++
		case path == "":
			countXattrs(&c, n) // all that is counted of the root
		case seen[n]:
			c.Names++
			c.HardLinks++
		default:
			c.Names++
			seen[n] = true
			countNode(&c, n)
			countXattrs(&c, n)
		}
	}
	return c
}

func countNode(c *rootfs.Counts, n *node) {
	switch n.kind {
	case file:
		c.Files++
		c.FileBytes += n.body.length()
		c.BlockBytes += n.body.blocks() * 4096
	case dir:
		c.Directories++
	case symlink:
		c.Symlinks++
	case fifo:
		c.FIFOs++
	case char, block:
		c.Devices++
	}
	if n.mode&0o6000 != 0 && n.kind != dir && n.kind != symlink {
		c.Setuid++
	}
}

func countXattrs(c *rootfs.Counts, n *node) {
	for name := range n.xattrs {
		switch {
		case imageBelief.keeps(name, n.kind):
			c.Xattrs++
			if name == capability {
				c.Capabilities++
			}
		case strings.HasPrefix(name, "user.overlay."):
			c.Stripped.Xattrs["user.overlay"]++
		default:
			space, _, _ := strings.Cut(name, ".")
			c.Stripped.Xattrs[space]++
		}
	}
}

// blocks returns how many blocks of 4 KiB are not all hole.
func (b body) blocks() int64 {
	if b.sparse == dense {
		return (b.length() + 4095) / 4096
	}
	n, next := int64(0), int64(0)
	for _, s := range b.segs {
		first, end := max(s.off/4096, next), (s.off+s.n+4095)/4096
		n += max(end-first, 0)
		next = max(end, next)
	}
	return n
}

func countsAgainst(got, want rootfs.Counts) []difference {
	if reflect.DeepEqual(got, want) {
		return nil
	}
	return []difference{{"receipt", "", "counts", fmt.Sprintf("it counts %+v, want %+v", got, want)}}
}
