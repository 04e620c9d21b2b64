package rootfs

import (
	"strings"

	"github.com/paddock-dev/paddock/internal/fault"
)

const (
	maxFollowed = 40   // symlinks on the way to one directory, as in Linux
	maxSteps    = 4096 // names on that way
)

// place is where a path leads: a directory, and the names below it that are no
// directories yet.
type place struct {
	dir     nodeID
	missing []string
}

// resolve follows a path of directories as a process within the image would:
// symlinks are followed, absolute ones begin at the root of the image, and
// nothing leads out of it. Names that are not there are taken as they are
// written, so that ".." after them goes back. It answers fault.LayerPath for a
// path without an end.
func (t *tree) resolve(path string) (place, error) {
	p := place{dir: root}
	steps, followed := 0, 0
	for path != "" {
		var one string
		one, path, _ = strings.Cut(path, "/")
		if steps++; steps > maxSteps {
			return p, fault.New(fault.LayerPath, "over %d names lead to its directory", maxSteps)
		}
		next := t.step(&p, one)
		if next == 0 {
			continue
		}
		nd := t.node(next)
		if !nd.is(modeSymlink) {
			p.missing = append(p.missing, one) // what is there is no directory
			continue
		}
		if followed++; followed > maxFollowed {
			return p, fault.New(fault.LayerPath, "over %d symlinks lead to its directory", maxFollowed)
		}
		target := t.target(nd)
		if strings.HasPrefix(target, "/") {
			p.dir = root
		}
		path = target + "/" + path
	}
	return p, nil
}

// step takes one name of a path. It returns what has that name if p cannot go
// into it.
func (t *tree) step(p *place, one string) nodeID {
	switch {
	case one == "" || one == ".":
	case one == ".." && len(p.missing) > 0:
		p.missing = p.missing[:len(p.missing)-1]
	case one == "..":
		p.dir = t.parent(p.dir)
	case len(p.missing) > 0:
		p.missing = append(p.missing, one)
	default:
		next := t.lookup(p.dir, one)
		if next == 0 {
			p.missing = append(p.missing, one)
		} else if t.node(next).is(modeDir) {
			p.dir = next
		} else {
			return next
		}
	}
	return 0
}

// blocked says whether something that is no directory lies on the way.
func (t *tree) blocked(p place) bool {
	return len(p.missing) > 0 && t.lookup(p.dir, p.missing[0]) != 0
}

// makeDirs makes what is missing of p, owned by root and without a time, and
// returns the last directory.
func (t *tree) makeDirs(p place) (nodeID, error) {
	if t.blocked(p) {
		return 0, fault.New(fault.LayerPath, "%.200q, in which it lies, is no directory", p.missing[0])
	}
	for _, text := range p.missing {
		if err := t.count(); err != nil {
			return 0, err
		}
		made := t.newDir(p.dir, text, node{mode: modeDir | 0o755, layer: t.layer})
		id, err := t.bind(p.dir, text, made)
		if err != nil {
			return 0, err
		}
		t.touch(id)
		p.dir = made
	}
	return p.dir, nil
}

// follow returns the name at the end of a path, with a symlink there followed
// too; 0 when nothing is there.
func (t *tree) follow(path string) (nameID, error) {
	for range maxFollowed {
		dir, base := splitPath(path)
		p, err := t.resolve(dir)
		if err != nil || len(p.missing) > 0 {
			return 0, err
		}
		id := t.find(p.dir, base)
		if id == 0 || t.name(id).node == 0 {
			return 0, nil
		}
		n := t.node(t.name(id).node)
		if !n.is(modeSymlink) {
			return id, nil
		}
		if path = t.target(n); !strings.HasPrefix(path, "/") {
			path = t.path(nameID(t.node(p.dir).words[1])) + "/" + path
		}
		path = strings.TrimRight(path, "/")
	}
	return 0, nil
}

// splitPath divides a path at its last name.
func splitPath(path string) (dir, base string) {
	i := strings.LastIndexByte(path, '/')
	return path[:i+1], path[i+1:]
}
