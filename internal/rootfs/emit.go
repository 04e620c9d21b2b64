package rootfs

import (
	"fmt"
	"time"

	"github.com/paddock-dev/paddock/internal/rootfs/ext4"
)

// Counts is what an image has, and what was kept out of it. Hard links count
// as names only.
type Counts struct {
	Names       int64 `json:"names"` // below the root
	Files       int64 `json:"files"`
	Directories int64 `json:"directories"` // below the root
	Symlinks    int64 `json:"symlinks"`
	Devices     int64 `json:"devices"`
	FIFOs       int64 `json:"fifos"`
	HardLinks   int64 `json:"hard_links"`  // names beyond the first of a file
	FileBytes   int64 `json:"file_bytes"`  // sizes of files, holes included
	BlockBytes  int64 `json:"block_bytes"` // what files take, in whole blocks

	Setuid       int64 `json:"setuid"`       // set-id bits that were kept
	Capabilities int64 `json:"capabilities"` // file capabilities that were kept
	Xattrs       int64 `json:"xattrs"`       // attributes that were kept

	Stripped Stripped `json:"stripped"`
}

// Stripped counts what the policy kept out of an image.
type Stripped struct {
	Devices          int64            `json:"devices"`
	FIFOs            int64            `json:"fifos"`
	OverlayWhiteouts int64            `json:"overlay_whiteouts"`
	Setuid           int64            `json:"setuid"`
	Capabilities     int64            `json:"capabilities"`
	Xattrs           map[string]int64 `json:"xattrs"` // by kind
}

// emitter gives the merged tree to the image.
type emitter struct {
	*placer
	counts Counts
}

// emit adds every name to the image, in the order in which names first came:
// so what a layer brought keeps its inode numbers, whatever later layers
// bring. It answers fault.ImageUnfit for what ext4 cannot hold.
func (p *placer) emit() (Counts, error) {
	e := &emitter{placer: p}
	e.counts.Stripped.Xattrs = map[string]int64{}
	m := e.meta(p.tree.node(root))
	e.counts.Directories = 0 // the root is not counted
	if err := p.w.SetRoot(m); err != nil {
		return e.counts, fmt.Errorf("entry %q: %w", "/", err)
	}
	for id := nameID(1); uint32(id) < p.tree.names.end(); id++ {
		if p.tree.name(id).node == 0 {
			continue
		}
		if err := e.add(id); err != nil {
			return e.counts, fmt.Errorf("entry %.200q: %w", p.tree.path(id), err)
		}
	}
	return e.counts, nil
}

// add adds a name, unless it is there: a directory may have been needed before
// its turn.
func (e *emitter) add(id nameID) error {
	t := e.tree
	nm := t.name(id)
	n := t.node(nm.node)
	if n.is(modeDir) && n.made != 0 {
		return nil
	}
	if t.policy.stripped(n) {
		e.strip(n)
		return nil
	}
	parent, err := e.directory(nm.dir)
	if err != nil {
		return err
	}
	e.counts.Names++
	text := string(t.textOf(nm))
	if n.made != 0 {
		e.counts.HardLinks++
		return e.w.Link(parent, text, n.made)
	}
	n.made, err = e.w.Add(parent, text, e.meta(n))
	return err
}

// directory returns a directory of the image, added first if need be.
func (e *emitter) directory(dir nodeID) (ext4.Node, error) {
	n := e.tree.node(dir)
	if dir == root {
		return ext4.Root, nil
	}
	if n.made == 0 {
		if err := e.add(nameID(n.words[1])); err != nil {
			return 0, err
		}
	}
	return n.made, nil
}

func (e *emitter) strip(n *node) {
	switch s := &e.counts.Stripped; {
	case overlayWhiteout(n):
		s.OverlayWhiteouts++
	case n.is(modeFIFO):
		s.FIFOs++
	default:
		s.Devices++
	}
}

// meta is what the image says about a node, which it counts.
func (e *emitter) meta(n *node) ext4.Meta {
	m := ext4.Meta{
		Mode: uint32(n.mode), UID: n.uid, GID: n.gid,
		Mtime: time.Unix(n.seconds, int64(n.nanos)).UTC(),
	}
	c := &e.counts
	switch n.mode & modeType {
	case modeDir:
		c.Directories++
	case modeRegular:
		c.Files++
		if n.words[0] != 0 {
			m.Data = *e.data.at(n.words[0])
			c.FileBytes += m.Data.Size()
			c.BlockBytes += m.Data.Blocks() * blockSize
		}
	case modeSymlink:
		c.Symlinks++
		m.Target = e.tree.target(n)
	case modeFIFO:
		c.FIFOs++
	default:
		c.Devices++
		m.Major, m.Minor = n.words[0], n.words[1]
	}
	e.privileges(n, &m)
	return m
}

// privileges sets attributes and set-id bits as the policy says.
func (e *emitter) privileges(n *node, m *ext4.Meta) {
	c, p := &e.counts, e.tree.policy
	if n.mode&modeSetID != 0 && !n.is(modeDir) {
		if p.Setuid == Strip {
			m.Mode &^= modeSetID
			c.Stripped.Setuid++
		} else {
			c.Setuid++
		}
	}
	set := e.tree.attrs.get(n.xattrs)
	for _, as := range set.stripped {
		c.Stripped.Xattrs[as]++
	}
	m.Xattrs = set.list
	if rest, caps := withoutCaps(set.list); caps && p.Capabilities == Strip {
		m.Xattrs = rest
		c.Stripped.Capabilities++
	} else if caps {
		c.Capabilities++
	}
	c.Xattrs += int64(len(m.Xattrs))
}
