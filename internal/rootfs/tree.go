package rootfs

import (
	"hash/maphash"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/rootfs/ext4"
)

// The types of a mode, and the bits that give a program its owner's rights.
const (
	modeType    = unix.S_IFMT
	modeFIFO    = unix.S_IFIFO
	modeChar    = unix.S_IFCHR
	modeDir     = unix.S_IFDIR
	modeBlock   = unix.S_IFBLK
	modeRegular = unix.S_IFREG
	modeSymlink = unix.S_IFLNK
	modeSetID   = unix.S_ISUID | unix.S_ISGID
)

// nodeID is a node of a tree, nameID a name. 0 is none.
type (
	nodeID uint32
	nameID uint32
)

const root nodeID = 1

// node is what an inode will be. Its three words mean, by type:
//
//	directory  first name, its own name, depth<<16 | bytes of its path
//	regular    number of its contents
//	symlink    address of the target (two words), bytes of it
//	device     major, minor
type node struct {
	seconds int64
	nanos   uint32
	uid     uint32
	gid     uint32
	names   uint32 // that lead to it; without any it is no part of the image
	xattrs  uint32
	made    ext4.Node // in the image, once it is there
	words   [3]uint32
	mode    uint16
	layer   uint16 // that brought it
	cleared uint16 // of a directory: the layer that last hid what lay in it
}

func (n *node) is(kind uint16) bool { return n.mode&modeType == kind }

// name is one name in a directory. It is never forgotten, so that a name that
// is taken again keeps its place in the image.
type name struct {
	text   uint64 // address; a byte with the length comes before the text
	dir    nodeID
	node   nodeID // 0: nothing has the name at present
	next   nameID // of the same directory
	chain  nameID // of the same bucket
	layer  uint16 // the last layer that named it, or something below it
	listed bool   // in its directory's list
}

// tree is the files of an image while layers are laid over each other. It
// takes about 130 bytes an entry and its names, whatever the layers hold.
type tree struct {
	nodes slab[node]
	names slab[name]
	text  arena
	attrs xattrTable

	seed    maphash.Seed
	buckets []nameID

	layer   uint16 // that is being laid over the others
	limits  Limits
	policy  Policy
	entries int64 // met so far, and directories that no entry named
}

func newTree(l Limits, p Policy) *tree {
	t := &tree{seed: maphash.MakeSeed(), buckets: make([]nameID, 1<<10), limits: l.filled(), policy: p.filled()}
	t.nodes.add(node{mode: modeDir | 0o755, names: 1})
	return t
}

func (t *tree) node(n nodeID) *node { return t.nodes.at(uint32(n)) }
func (t *tree) name(n nameID) *name { return t.names.at(uint32(n)) }

func (t *tree) textOf(n *name) []byte {
	return t.text.get(n.text+1, int(t.text.get(n.text, 1)[0]))
}

// bucket places a name in the table. It differs from run to run, so nothing may
// depend on the order of buckets.
func (t *tree) bucket(dir nodeID, text string) int {
	h := maphash.String(t.seed, text) + uint64(dir)*0x9E3779B97F4A7C15
	h ^= h >> 29
	return int(h & uint64(len(t.buckets)-1))
}

// find returns a name of a directory, though nothing may have it at present.
func (t *tree) find(dir nodeID, text string) nameID {
	for id := t.buckets[t.bucket(dir, text)]; id != 0; {
		n := t.name(id)
		if n.dir == dir && string(t.textOf(n)) == text {
			return id
		}
		id = n.chain
	}
	return 0
}

// lookup returns what has the name in a directory, or 0.
func (t *tree) lookup(dir nodeID, text string) nodeID {
	if id := t.find(dir, text); id != 0 {
		return t.name(id).node
	}
	return 0
}

// bind gives n the name, which nothing may have. It answers the faults of
// keep, and fault.LayerPath for a name or path that becomes too long or deep.
func (t *tree) bind(dir nodeID, text string, n nodeID) (nameID, error) {
	id := t.find(dir, text)
	if id == 0 {
		var err error
		if id, err = t.newName(dir, text); err != nil {
			return 0, err
		}
	}
	d, nm, nd := t.node(dir), t.name(id), t.node(n)
	if !nm.listed {
		nm.next, nm.listed = nameID(d.words[0]), true
		d.words[0] = uint32(id)
	}
	nm.node = n
	nd.names++
	if nd.is(modeDir) {
		nd.words[1] = uint32(id)
	}
	return id, nil
}

// newName adds a name to a directory. The text may come from a symlink, of
// which no reader has looked at the parts.
func (t *tree) newName(dir nodeID, text string) (nameID, error) {
	if len(text) > mostName {
		return 0, fault.New(fault.LayerPath, "the name %.200q has %d bytes; at most %d are taken", text, len(text), mostName)
	}
	depth, size := t.extent(dir)
	if depth+1 > t.limits.Depth || size+1+len(text) > t.limits.PathBytes {
		return 0, fault.New(fault.LayerPath, "with links resolved its path has %d names and %d bytes; at most %d names and %d bytes are taken", depth+1, size+1+len(text), t.limits.Depth, t.limits.PathBytes)
	}
	at, err := t.keep(string([]byte{byte(len(text))}) + text)
	if err != nil {
		return 0, err
	}
	if t.names.n > len(t.buckets) {
		t.grow()
	}
	b := t.bucket(dir, text)
	id := nameID(t.names.add(name{text: at, dir: dir, chain: t.buckets[b]}))
	t.buckets[b] = id
	return id, nil
}

// extent returns how deep a directory lies and how long its path is.
func (t *tree) extent(dir nodeID) (depth, size int) {
	w := t.node(dir).words[2]
	return int(w >> 16), int(w & 0xFFFF)
}

// What names and link targets of an image may take: more than those of images
// that people use, and 200,000 of the longest names.
const (
	textBytes    = 32 << 20
	textPerEntry = 96
)

// keep keeps a name or a target, or answers fault.TooMuchMetadata.
func (t *tree) keep(s string) (uint64, error) {
	if t.text.total+int64(len(s)) > textBytes+textPerEntry*t.entries {
		return 0, fault.New(fault.TooMuchMetadata, "the image's names and link targets take over %d bytes and %d for each entry", textBytes, textPerEntry)
	}
	return t.text.put(s), nil
}

func (t *tree) grow() {
	t.buckets = make([]nameID, 2*len(t.buckets))
	for id := nameID(1); uint32(id) < t.names.end(); id++ {
		n := t.name(id)
		b := t.bucket(n.dir, string(t.textOf(n)))
		n.chain, t.buckets[b] = t.buckets[b], id
	}
}

// unbind takes a name from what has it, with everything below.
func (t *tree) unbind(id nameID) {
	nm := t.name(id)
	nd := t.node(nm.node)
	nm.node = 0
	if nd.names--; !nd.is(modeDir) {
		return
	}
	for child := nameID(nd.words[0]); child != 0; child = t.name(child).next {
		if t.name(child).node != 0 {
			t.unbind(child)
		}
	}
}

// clear hides what lower layers have in dir, and keeps what this one named. A
// directory is walked once a layer, however often it is cleared.
func (t *tree) clear(dir nodeID) {
	d := t.node(dir)
	if d.cleared == t.layer {
		return
	}
	d.cleared = t.layer
	id := nameID(d.words[0])
	d.words[0] = 0
	for id != 0 {
		nm := t.name(id)
		next := nm.next
		if nm.node != 0 && nm.layer != t.layer {
			t.unbind(id)
		}
		if nm.listed = nm.node != 0; nm.listed {
			nm.next, d.words[0] = nameID(d.words[0]), uint32(id)
			if t.node(nm.node).is(modeDir) {
				t.clear(nm.node)
			}
		}
		id = next
	}
}

// touch notes that this layer named id and so every directory above it.
func (t *tree) touch(id nameID) {
	for id != 0 {
		nm := t.name(id)
		if nm.layer == t.layer {
			return
		}
		nm.layer = t.layer
		id = nameID(t.node(nm.dir).words[1])
	}
}

// parent returns the directory above dir. The root's is the root.
func (t *tree) parent(dir nodeID) nodeID {
	if own := nameID(t.node(dir).words[1]); own != 0 {
		return t.name(own).dir
	}
	return root
}

// path returns the path of a name from the root.
func (t *tree) path(id nameID) string {
	var parts []string
	for id != 0 {
		nm := t.name(id)
		parts = append(parts, string(t.textOf(nm)))
		id = nameID(t.node(nm.dir).words[1])
	}
	slices.Reverse(parts)
	return strings.Join(parts, "/")
}

// target returns where a symlink leads.
func (t *tree) target(n *node) string {
	return string(t.text.get(uint64(n.words[0])<<32|uint64(n.words[1]), int(n.words[2])))
}

// newDir adds a directory that lies in dir under a name of so many bytes.
func (t *tree) newDir(dir nodeID, text string, n node) nodeID {
	depth, size := t.extent(dir)
	n.words = [3]uint32{2: uint32(depth+1)<<16 | uint32(size+1+len(text))}
	return nodeID(t.nodes.add(n))
}
