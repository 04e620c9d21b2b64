package rootfs

import (
	"fmt"
	"strings"

	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/rootfs/tarfile"
)

const (
	markPrefix = ".wh."
	markOpaque = ".wh..wh..opq"
	markMeta   = ".wh..wh." // at the root: what a union filesystem kept for itself
)

// begin starts the next layer.
func (t *tree) begin() { t.layer++ }

// apply lays one entry of the current layer over the tree. It returns the node
// that waits for the entry's contents, or 0 when nobody does. Every fault
// names the entry: fault.LayerRoot, LayerPath, LayerLink, LayerWhiteout,
// LayerDuplicate, LayerDevice, LayerSetuid, LayerCapability, LayerXattr,
// TooManyEntries, TooManyBytes.
func (t *tree) apply(e *tarfile.Entry) (nodeID, error) {
	n, err := t.lay(e)
	if err != nil {
		return 0, fmt.Errorf("entry %.200q: %w", e.Name, err)
	}
	return n, nil
}

func (t *tree) lay(e *tarfile.Entry) (nodeID, error) {
	if err := t.count(); err != nil {
		return 0, err
	}
	if e.Name == "" {
		return 0, t.layRoot(e)
	}
	dir, base := splitPath(e.Name)
	if mark, err := t.layMark(e.Name, dir, base); err != nil || mark {
		return 0, err
	}
	if err := t.policy.judge(e); err != nil {
		return 0, err
	}
	at, err := t.resolve(dir)
	if err != nil {
		return 0, err
	}
	in, err := t.makeDirs(at)
	if err != nil {
		return 0, err
	}
	return t.layAt(in, base, e)
}

// layRoot takes what the root says of itself.
func (t *tree) layRoot(e *tarfile.Entry) error {
	if e.Type != tarfile.Directory {
		return fault.New(fault.LayerRoot, "the root of the image would be no directory")
	}
	return t.describe(root, e)
}

// layMark obeys an entry whose name is a whiteout. It says whether it was one.
func (t *tree) layMark(full, dir, base string) (bool, error) {
	switch {
	case strings.HasPrefix(full, markMeta) && full != markOpaque && !strings.HasPrefix(full, markOpaque+"/"):
		return true, nil
	case strings.HasPrefix(dir, markPrefix) || strings.Contains(dir, "/"+markPrefix):
		return true, fault.New(fault.LayerWhiteout, "it lies in a directory whose name is a whiteout's")
	case !strings.HasPrefix(base, markPrefix):
		return false, nil
	}
	hidden := base[len(markPrefix):]
	if hidden == "" || hidden == "." || hidden == ".." {
		return true, fault.New(fault.LayerWhiteout, "it hides %q, which names nothing in its directory", hidden)
	}
	at, err := t.resolve(dir)
	switch {
	case err != nil:
		return true, err
	case t.blocked(at):
		return true, fault.New(fault.LayerWhiteout, "%.200q, in which it lies, is no directory", at.missing[0])
	case len(at.missing) > 0: // nothing is there to be hidden
	case base == markOpaque:
		t.clear(at.dir)
	default:
		t.hide(at.dir, hidden)
	}
	return true, nil
}

// hide removes what lower layers have under a name.
func (t *tree) hide(dir nodeID, text string) {
	id := t.find(dir, text)
	if id == 0 || t.name(id).node == 0 {
		return
	}
	nm := t.name(id)
	switch {
	case nm.layer != t.layer:
		t.unbind(id)
	case t.node(nm.node).is(modeDir):
		t.clear(nm.node)
	}
}

// layAt puts the entry under a name of a directory, over what has the name.
func (t *tree) layAt(in nodeID, base string, e *tarfile.Entry) (nodeID, error) {
	id := t.find(in, base)
	var old nodeID
	named := false // by this layer too
	if id != 0 {
		old, named = t.name(id).node, t.name(id).layer == t.layer
	}
	if old != 0 && e.Type == tarfile.Directory && t.node(old).is(modeDir) {
		t.touch(id)
		return 0, t.describe(old, e)
	}
	var was uint16
	if old != 0 {
		was = t.node(old).mode & modeType
		t.unbind(id)
	}
	n, err := t.make(in, base, e)
	if err != nil {
		return 0, err
	}
	if old != 0 && named && !t.node(n).is(was) {
		return 0, fault.New(fault.LayerDuplicate, "the layer has it as %s and as %s", kindName(was), kindName(t.node(n).mode))
	}
	if id, err = t.bind(in, base, n); err != nil {
		return 0, err
	}
	t.touch(id)
	if e.Type != tarfile.Regular {
		n = 0
	}
	return n, nil
}

// make returns what e puts into a directory: a new node, or an old one that
// gets one more name.
func (t *tree) make(in nodeID, base string, e *tarfile.Entry) (nodeID, error) {
	n := node{mode: modeRegular, layer: t.layer}
	switch e.Type {
	case tarfile.Link:
		return t.linked(e)
	case tarfile.Regular:
	case tarfile.Directory:
		made := t.newDir(in, base, node{mode: modeDir, layer: t.layer})
		return made, t.describe(made, e)
	case tarfile.Symlink:
		n.mode = modeSymlink
		if err := t.aim(&n, e.Linkname); err != nil {
			return 0, err
		}
	case tarfile.CharDevice, tarfile.BlockDevice:
		n.mode = modeChar
		if e.Type == tarfile.BlockDevice {
			n.mode = modeBlock
		}
		n.words = [3]uint32{e.Major, e.Minor}
	case tarfile.FIFO:
		n.mode = modeFIFO
	default:
		return 0, fault.New(fault.LayerType, "type %d", e.Type)
	}
	made := nodeID(t.nodes.add(n))
	return made, t.describe(made, e)
}

func (t *tree) aim(n *node, target string) error {
	if target == "" || strings.IndexByte(target, 0) >= 0 || len(target) > mostPath-1 {
		return fault.New(fault.LayerPath, "it is a symlink to %.200q, of %d bytes; 1 to %d without a zero byte are taken", target, len(target), mostPath-1)
	}
	at, err := t.keep(target)
	n.words = [3]uint32{uint32(at >> 32), uint32(at), uint32(len(target))}
	return err
}

// linked returns what a hard link leads to.
func (t *tree) linked(e *tarfile.Entry) (nodeID, error) {
	dir, base := splitPath(e.Linkname)
	at, err := t.resolve(dir)
	if err != nil {
		return 0, err
	}
	var n nodeID
	if len(at.missing) == 0 {
		n = t.lookup(at.dir, base)
	}
	switch {
	case e.Linkname == "" || n != 0 && t.node(n).is(modeDir):
		return 0, fault.New(fault.LayerLink, "it is a hard link to %.200q, which is a directory", e.Linkname)
	case n == 0:
		return 0, fault.New(fault.LayerLink, "it is a hard link to %.200q, which is not there, or is what the link would replace", e.Linkname)
	}
	return n, nil
}

// describe gives a node what the entry says of it.
func (t *tree) describe(id nodeID, e *tarfile.Entry) error {
	set, err := t.attrs.intern(e)
	if err != nil {
		return err
	}
	n := t.node(id)
	n.seconds, n.nanos = e.ModTime.Unix(), uint32(e.ModTime.Nanosecond())
	n.uid, n.gid, n.xattrs = e.UID, e.GID, set
	perm := uint16(e.Mode & 0o7777)
	if n.is(modeSymlink) {
		perm = 0o777
	}
	n.mode = n.mode&modeType | perm
	return nil
}

// kindName is what people call a type.
func kindName(mode uint16) string {
	switch mode & modeType {
	case modeDir:
		return "a directory"
	case modeRegular:
		return "a file"
	case modeSymlink:
		return "a symlink"
	case modeChar, modeBlock:
		return "a device"
	}
	return "a named pipe"
}
