package rootfs_test

import (
	"encoding/binary"
	"errors"
	"maps"
	"slices"
	"strings"
)

// errInvalid is what an entry is that no honest layer has at its place.
var errInvalid = errors.New("not applicable here")

// node is an inode of the model.
type node struct {
	entry
	implied bool // a directory that no entry described
}

// model lays layers over each other in the simplest way there is: a map of
// paths. It is the third opinion, and the generator's memory.
type model struct {
	names   map[string]*node // by path; "" is the root
	touched map[string]bool  // by the current layer, or above what it touched
}

func newModel() *model {
	return &model{names: map[string]*node{"": {entry: entry{kind: dir, mode: 0o755}}}}
}

// clone shares the nodes: nobody changes one.
func (m *model) clone() *model {
	return &model{maps.Clone(m.names), maps.Clone(m.touched)}
}

func (m *model) begin() { m.touched = map[string]bool{} }

// laid returns what a stack makes, or errInvalid.
func laid(s stack) (*model, error) {
	m := newModel()
	for _, l := range s {
		m.begin()
		for _, e := range l.entries {
			if err := m.apply(e); err != nil {
				return nil, err
			}
		}
	}
	return m, nil
}

// resolve returns the directory that a path leads to, with links followed as
// within the image. It need not be there.
func (m *model) resolve(path string) (string, error) {
	var at []string
	todo := strings.Split(path, "/")
	for links := 0; len(todo) > 0; {
		one := todo[0]
		todo = todo[1:]
		switch one {
		case "", ".":
			continue
		case "..":
			at = at[:max(len(at)-1, 0)]
			continue
		}
		next := append(slices.Clone(at), one)
		n := m.names[strings.Join(next, "/")]
		if n == nil || n.kind == dir {
			at = next
			continue
		}
		if links++; n.kind != symlink || links > 40 || len(one) > 255 {
			return "", errInvalid
		}
		if strings.HasPrefix(n.link, "/") {
			at = nil
		}
		todo = append(strings.Split(n.link, "/"), todo...)
	}
	for _, one := range at {
		if len(one) > 255 || strings.HasPrefix(one, ".wh.") {
			return "", errInvalid
		}
	}
	return strings.Join(at, "/"), nil
}

func below(dir, name string) string { return strings.TrimPrefix(dir+"/"+name, "/") }

func within(path, dir string) bool { return dir == "" || strings.HasPrefix(path, dir+"/") }

// apply lays one entry over what is there, or answers errInvalid and changes
// nothing.
func (m *model) apply(e entry) error {
	in, base := split(e.name)
	at, err := m.resolve(in)
	if err != nil {
		return err
	}
	if e.name == "" {
		if e.kind != dir {
			return errInvalid
		}
		m.names[""] = &node{entry: e}
		return nil
	}
	if hidden, opaque, is := e.whiteout(); is {
		if opaque {
			m.remove(func(path string) bool { return within(path, at) && path != at })
		} else {
			m.remove(func(path string) bool { return path == below(at, hidden) || within(path, below(at, hidden)) })
		}
		return nil
	}
	path := below(at, base)
	made, err := m.made(path, e)
	if err != nil {
		return err
	}
	for up := at; up != "" && m.names[up] == nil; up, _ = split(up) {
		m.names[up] = &node{entry: entry{kind: dir, mode: 0o755}, implied: true}
	}
	if old := m.names[path]; old != nil && made.kind != dir {
		maps.DeleteFunc(m.names, func(p string, _ *node) bool { return within(p, path) })
	}
	m.names[path] = made
	for ; path != ""; path, _ = split(path) {
		m.touched[path] = true
	}
	return nil
}

// remove hides what lower layers have.
func (m *model) remove(hidden func(path string) bool) {
	maps.DeleteFunc(m.names, func(path string, _ *node) bool { return hidden(path) && !m.touched[path] })
}

// made returns the node that an entry puts at a path.
func (m *model) made(path string, e entry) (*node, error) {
	made := &node{entry: e}
	if e.kind == hardlink {
		in, base := split(e.link)
		old := m.names[path]
		delete(m.names, path) // the link takes its place, so no way leads through it
		at, err := m.resolve(in)
		if old != nil {
			m.names[path] = old
		}
		if err != nil {
			return nil, err
		}
		target := below(at, base)
		made = m.names[target]
		if made == nil || made.kind == dir || target == path || within(target, path) {
			return nil, errInvalid
		}
	}
	if path == "lost+found" && made.kind != dir {
		return nil, errInvalid // ext4 needs that name for a directory
	}
	// A layer that says two things of one path is refused.
	if old := m.names[path]; old != nil && m.touched[path] && old.kind != made.kind {
		return nil, errInvalid
	}
	return made, nil
}

const (
	aclAccess  = "system.posix_acl_access"
	aclDefault = "system.posix_acl_default"
	capability = "security.capability"
)

// aclEntry is one line of a POSIX ACL as setxattr(2) takes it.
type aclEntry struct {
	tag, perm uint16
	id        uint32
}

const (
	aclUserObj  = 1
	aclUser     = 2
	aclGroupObj = 4
	aclGroup    = 8
	aclMask     = 16
	aclOther    = 32
)

func packACL(list []aclEntry) string {
	b := binary.LittleEndian.AppendUint32(nil, 2)
	for _, e := range list {
		b = binary.LittleEndian.AppendUint16(b, e.tag)
		b = binary.LittleEndian.AppendUint16(b, e.perm)
		b = binary.LittleEndian.AppendUint32(b, e.id)
	}
	return string(b)
}

// foldACL returns the mode of a file that is given an ACL, and whether the ACL
// says more than that mode.
func foldACL(mode uint32, acl string) (folded uint32, more bool) {
	group, mask := uint32(0), uint32(8)
	folded = mode &^ 0o777
	for b := []byte(acl[4:]); len(b) >= 8; b = b[8:] {
		perm := uint32(binary.LittleEndian.Uint16(b[2:]))
		switch binary.LittleEndian.Uint16(b) {
		case aclUserObj:
			folded |= perm << 6
		case aclGroupObj:
			group = perm
		case aclMask:
			mask = perm
		case aclOther:
			folded |= perm
		default:
			more = true
		}
	}
	if mask < 8 {
		return folded | mask<<3, true
	}
	return folded | group<<3, more
}
