package ext4

import (
	"bytes"
	"slices"
	"strings"
	"time"

	"github.com/paddock-dev/paddock/internal/fault"
)

// Node is an inode of the tree that a Writer was given.
type Node uint32

// Root is the root directory. It is there from the start.
const Root Node = 0

// lost is lost+found. It has its node from the start, so that it keeps inode
// 11, and a name at the latest when the layout is made.
const lost Node = 1

const lostName = "lost+found"

// Meta is what an inode says about itself.
type Meta struct {
	// Mode has the type and the permissions as in st_mode. An ACL in Xattrs
	// replaces permission bits, as setxattr(2) would.
	Mode     uint32
	UID, GID uint32
	// Zero Atime and Ctime are Mtime. Times outside MinTime and MaxTime are
	// moved to these, and those from 2310-04-04 to 2378-04-22 to just before.
	Mtime, Atime, Ctime time.Time
	Major, Minor        uint32 // of a device
	Target              string // of a symlink
	Data                Data   // of a regular file; its zero value is an empty file
	Xattrs              []Xattr
}

// node is a Meta in 80 bytes.
type node struct {
	size                int64
	atime, mtime, ctime stamp
	start, blocks       uint32 // contents or directory; of a symlink: its target's address
	data                uint32 // number of the Data + 1
	aux                 uint32 // device, number of a long symlink, or index of an xattr value
	uid, gid            uint32
	xattr               uint32 // number of the xattr set + 1
	links               uint32 // names; of a directory: subdirectories
	head                uint32 // of a directory: its first dirent + 1
	parent              Node   // of a directory
	mode                uint16
	ea                  bool // holds an xattr value; has no name
}

func (n *node) is(kind uint16) bool { return n.mode&modeType == kind }

// dirent is a name. Its address leads to a length byte and the name.
type dirent struct {
	name uint64
	node Node
	next uint32 // of the same directory, + 1
}

type tree struct {
	nodes   slab[node]
	dirents slab[dirent]
	text    arena
	xattrs  xattrSets
	lostSet bool // the caller added lost+found
}

func (t *tree) node(n Node) *node { return t.nodes.at(int(n)) }

func (t *tree) nameOf(d *dirent) []byte {
	return t.text.get(d.name+1, int(t.text.get(d.name, 1)[0]))
}

// start makes the root and lost+found.
func (t *tree) start(at time.Time) {
	s := stampOf(at)
	t.nodes.add(node{mode: modeDir | 0o755, atime: s, mtime: s, ctime: s})
	t.nodes.add(node{mode: modeDir | 0o700, atime: s, mtime: s, ctime: s})
}

// Add puts a new inode under the name into the directory parent. It answers
// fault.InvalidInput for a bad name, parent or meta, fault.ImageUnfit for what
// ext4 cannot hold, and fault.TooMuchMetadata for more than a writer keeps. A
// name given twice is found by Layout.
func (w *Writer) Add(parent Node, name string, m Meta) (Node, error) {
	if err := w.mayGrow(parent, name); err != nil {
		return 0, err
	}
	nd, err := w.encode(name, m)
	if err != nil {
		return 0, err
	}
	n := lost
	switch { // nothing is kept of an entry that is refused
	case parent == Root && name == lostName:
		if !nd.is(modeDir) {
			return 0, fault.New(fault.ImageUnfit, "/%s: ext4 needs this name for a directory", lostName)
		}
		if w.tree.lostSet {
			return 0, fault.New(fault.InvalidInput, "/%s: the name is there twice", lostName)
		}
		w.tree.lostSet = true
		*w.tree.node(lost) = nd
	case w.tree.nodes.n >= maxNodes:
		return 0, fault.New(fault.ImageUnfit, "%.200q: more than %d inodes", name, maxNodes)
	default:
		if err := w.claim(name, m.Data, &nd); err != nil {
			return 0, err
		}
		n = Node(w.tree.nodes.add(nd))
	}
	w.tree.link(parent, name, n)
	return n, nil
}

// maxNodes keeps all numbers of inodes, and of entries, in 32 bits.
const maxNodes = 1 << 30

// SetRoot replaces what the root directory says about itself.
func (w *Writer) SetRoot(m Meta) error {
	if w.layout != nil {
		return fault.New(fault.Bug, "the tree of an image changes after its layout")
	}
	nd, err := w.encode("/", m)
	if err != nil {
		return err
	}
	if !nd.is(modeDir) {
		return fault.New(fault.InvalidInput, "/: the root of an image must be a directory")
	}
	old := w.tree.node(Root)
	nd.head, nd.links = old.head, old.links
	*old = nd
	return nil
}

// Link gives target, which is no directory, one more name.
func (w *Writer) Link(parent Node, name string, target Node) error {
	if err := w.mayGrow(parent, name); err != nil {
		return err
	}
	if int(target) >= w.tree.nodes.n || w.tree.node(target).is(modeDir) {
		return fault.New(fault.InvalidInput, "%.200q: a hard link must lead to an entry that is no directory", name)
	}
	if parent == Root && name == lostName {
		return fault.New(fault.ImageUnfit, "/%s: ext4 needs this name for a directory", lostName)
	}
	if w.tree.node(target).links >= maxLinks {
		return fault.New(fault.ImageUnfit, "%.200q: a file has at most %d names on ext4", name, maxLinks)
	}
	w.tree.link(parent, name, target)
	return nil
}

func (w *Writer) mayGrow(parent Node, name string) error {
	switch {
	case w.layout != nil:
		return fault.New(fault.Bug, "the tree of an image changes after its layout")
	case name == "" || name == "." || name == ".." || strings.ContainsAny(name, "/\x00"):
		return fault.New(fault.InvalidInput, "%.200q cannot be the name of a directory entry", name)
	case len(name) > maxNameLen:
		return fault.New(fault.ImageUnfit, "%.200q: a name has at most %d bytes on ext4", name, maxNameLen)
	case int(parent) >= w.tree.nodes.n || !w.tree.node(parent).is(modeDir):
		return fault.New(fault.InvalidInput, "%.200q: its parent is not a directory of this image", name)
	case parent == lost && !w.tree.lostSet:
		return fault.New(fault.InvalidInput, "%.200q: add lost+found first", name)
	case w.tree.dirents.n >= maxNodes:
		return fault.New(fault.ImageUnfit, "%.200q: more than %d names", name, maxNodes)
	case w.tree.memory() > treeMemory+treePerName*int64(w.tree.dirents.n):
		return fault.New(fault.TooMuchMetadata, "%.200q: names, targets and xattrs take more than %d bytes and %d for each name", name, treeMemory, treePerName)
	}
	return nil
}

// Memory that a tree may take. The longest names fit; what only few entries of
// an image can have is long targets, and xattrs that no other entry has.
const (
	treeMemory  = 32 << 20
	treePerName = 352
)

// memory is about how many bytes the tree takes.
func (t *tree) memory() int64 {
	const nodeSize, direntSize = 80, 16
	return int64(t.nodes.n)*nodeSize + int64(t.dirents.n)*direntSize + t.text.size() + t.xattrs.kept
}

func (t *tree) link(parent Node, name string, n Node) {
	dir, nd := t.node(parent), t.node(n)
	at, b := t.text.room(1 + len(name))
	b[0] = byte(copy(b[1:], name))
	dir.head = uint32(t.dirents.add(dirent{name: at, node: n, next: dir.head})) + 1
	if nd.is(modeDir) {
		nd.parent = parent
		dir.links++
		return
	}
	nd.links++
}

// encode checks m and packs it.
func (w *Writer) encode(name string, m Meta) (node, error) {
	if m.Mode&^(modeType|modePerm) != 0 {
		return node{}, fault.New(fault.InvalidInput, "%.200q: mode %o has bits that no inode has", name, m.Mode)
	}
	if m.Atime.IsZero() {
		m.Atime = m.Mtime
	}
	if m.Ctime.IsZero() {
		m.Ctime = m.Mtime
	}
	nd := node{
		mode: uint16(m.Mode), uid: m.UID, gid: m.GID,
		atime: stampOf(m.Atime), mtime: stampOf(m.Mtime), ctime: stampOf(m.Ctime),
	}
	if err := w.encodeKind(name, m, &nd); err != nil {
		return node{}, err
	}
	set, mode, err := w.tree.xattrs.intern(name, nd.mode, m.Xattrs)
	if err != nil {
		return node{}, err
	}
	nd.xattr, nd.mode = set, mode
	return nd, nil
}

func (w *Writer) encodeKind(name string, m Meta, nd *node) error {
	kind := uint16(m.Mode & modeType)
	if kind != modeRegular && m.Data != (Data{}) || kind != modeSymlink && m.Target != "" || kind != modeChar && kind != modeBlock && m.Major|m.Minor != 0 {
		return fault.New(fault.InvalidInput, "%.200q: contents, target or device number on an entry of another type", name)
	}
	switch kind {
	case modeDir, modeRegular, modeFIFO, modeSocket:
	case modeChar, modeBlock:
		if m.Major >= 1<<12 || m.Minor >= 1<<20 {
			return fault.New(fault.ImageUnfit, "%.200q: device %d:%d: ext4 holds 12 bits of major and 20 of minor", name, m.Major, m.Minor)
		}
		nd.aux = m.Minor&0xFF | m.Major<<8 | m.Minor&^0xFF<<12
	case modeSymlink:
		if m.Target == "" || strings.IndexByte(m.Target, 0) >= 0 {
			return fault.New(fault.InvalidInput, "%.200q: the target of a symlink is empty or holds a zero byte", name)
		}
		if len(m.Target) > maxTargetLen {
			return fault.New(fault.ImageUnfit, "%.200q: the target of a symlink has at most %d bytes on ext4", name, maxTargetLen)
		}
		at := w.tree.text.put(m.Target)
		nd.size, nd.start, nd.blocks = int64(len(m.Target)), uint32(at>>32), uint32(at)
	default:
		return fault.New(fault.InvalidInput, "%.200q: mode %o names no file type", name, m.Mode)
	}
	return nil
}

func (t *tree) target(nd *node) []byte {
	return t.text.get(uint64(nd.start)<<32|uint64(nd.blocks), int(nd.size))
}

// path returns the path of directory n, for messages.
func (t *tree) path(n Node) string {
	var parts []string
	for ; n != Root && len(parts) < 64; n = t.node(n).parent {
		parts = append(parts, string(t.childName(t.node(n).parent, n)))
	}
	slices.Reverse(parts)
	return "/" + strings.Join(parts, "/")
}

func (t *tree) childName(dir, n Node) []byte {
	for i := t.node(dir).head; i != 0; {
		d := t.dirents.at(int(i - 1))
		if d.node == n {
			return t.nameOf(d)
		}
		i = d.next
	}
	return []byte("?")
}

// sortKey orders a directory: by hash where it has an htree, else by name.
type sortKey struct {
	major, minor uint32
	dirent       uint32
}

// sortDir puts the names of directory n in their order on disk, and finds a
// name that is there twice. keys is room to work in.
func (t *tree) sortDir(n Node, seed *[4]uint32, keys []sortKey) ([]sortKey, error) {
	keys = keys[:0]
	dir := t.node(n)
	for i := dir.head; i != 0; {
		keys = append(keys, sortKey{dirent: i - 1})
		i = t.dirents.at(int(i - 1)).next
	}
	name := func(k sortKey) []byte { return t.nameOf(t.dirents.at(int(k.dirent))) }
	if t.linearSize(dir) > blockSize {
		for i := range keys {
			keys[i].major, keys[i].minor = nameHash(seed, name(keys[i]))
		}
	}
	slices.SortFunc(keys, func(a, b sortKey) int {
		if a.major != b.major {
			return compare(a.major, b.major)
		}
		if a.minor != b.minor {
			return compare(a.minor, b.minor)
		}
		return bytes.Compare(name(a), name(b))
	})
	for i, k := range keys {
		if i > 0 && bytes.Equal(name(keys[i-1]), name(k)) {
			return keys, fault.New(fault.InvalidInput, "%s holds the name %.200q twice", t.path(n), name(k))
		}
		t.dirents.at(int(k.dirent)).next = 0
		if i > 0 {
			t.dirents.at(int(keys[i-1].dirent)).next = k.dirent + 1
		}
	}
	if len(keys) > 0 {
		dir.head = keys[0].dirent + 1
	}
	return keys, nil
}

func compare(a, b uint32) int {
	if a < b {
		return -1
	}
	return 1
}
