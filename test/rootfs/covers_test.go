package rootfs_test

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// TestGeneratorCovers counts what the default stacks have: what never appears
// is not tested, whatever the generator means to do.
func TestGeneratorCovers(t *testing.T) {
	want := []string{
		"whiteout", "whiteout of nothing", "whiteout of a tree", "opaque directory", "opaque with lower names", "hidden beside its own layer's",
		"type change", "metadata of a directory changed", "file replaced", "same path twice in a layer",
		"hard link", "hard link to a lower layer", "hard link to a symlink", "hard link to no file", "linked name replaced later",
		"symlink of 1", "symlink of 59", "symlink of 60", "symlink of 255", "symlink of over 4000", "symlink of 4095",
		"fifo", "char device", "block device", "device with large numbers", "device 0:0", "setuid", "setgid", "sticky", "uid over 65535", "gid over 2^21",
		"nanoseconds", "before 1970", "after 2038", "after 2106", "before 1901", "after 2446", "what ext4 cannot hold in 2310",
		"user attribute", "attribute of over 4000", "capability", "access ACL", "ACL that is a mode", "default ACL", "trusted attribute", "overlay attribute",
		"sparse gnu", "sparse pax 0.0", "sparse pax 0.1", "sparse pax 1.0", "sparse of over 21 segments", "sparse all hole", "zeros",
		"name of 255", "long name pax", "long name gnu", "prefix ustar", "long link pax", "long link gnu", "name is no UTF-8", "control in a name",
		"empty layer", "duplicate layer", "implied parent", "through a symlink", "through a dangling symlink", "root entry",
		"dialect v7", "dialect ustar", "dialect gnu", "dialect pax", "tar", "tar+gzip", "tar+zstd", "eight layers", "one layer",
	}
	got := map[string]int{}
	for seed := range uint64(stacksByDefault) {
		s := generate(seed+1, false)
		cover(s, got)
	}
	for _, w := range want {
		if got[w] < 2 {
			t.Errorf("%q appears %d times in the first %d stacks", w, got[w], stacksByDefault)
		}
	}
	for _, have := range slices.Sorted(maps.Keys(got)) {
		if !slices.Contains(want, have) {
			t.Errorf("%q is counted and not asked for", have)
		}
	}
}

func cover(s stack, got map[string]int) {
	count := func(what string, when bool) {
		if when {
			got[what]++
		}
	}
	m := newModel()
	count("eight layers", len(s) == 8)
	count("one layer", len(s) == 1)
	for i, l := range s {
		m.begin()
		count("empty layer", len(l.entries) == 0)
		count("duplicate layer", len(l.entries) > 0 && slices.ContainsFunc(s[:i], func(o layer) bool { return reflect.DeepEqual(o.entries, l.entries) }))
		count(string(l.compression), true)
		for _, e := range l.entries {
			coverPlace(m, e, count)
			coverEntry(e, count)
			if err := m.apply(e); err != nil {
				panic(err)
			}
		}
	}
}

// coverPlace counts what an entry does to what is there.
func coverPlace(m *model, e entry, count func(string, bool)) {
	in, base := split(e.name)
	at, err := m.resolve(in)
	if err != nil {
		panic(err)
	}
	count("root entry", e.name == "")
	count("through a symlink", m.names[at] != nil && at != strings.ReplaceAll(strings.Trim(in, "/"), "//", "/"))
	count("through a dangling symlink", m.names[at] == nil && at != in)
	hidden, opaque, is := e.whiteout()
	path := below(at, base)
	if is {
		path = below(at, hidden)
	}
	old := m.names[path]
	inside := func(dir string, touched bool) bool {
		for p := range m.names {
			if p != dir && within(p, dir) && m.touched[p] == touched {
				return true
			}
		}
		return false
	}
	switch {
	case opaque:
		count("opaque directory", true)
		count("opaque with lower names", inside(at, false))
		count("hidden beside its own layer's", inside(at, true))
	case is:
		count("whiteout", old != nil && !m.touched[path])
		count("whiteout of nothing", old == nil)
		count("whiteout of a tree", old != nil && old.kind == dir && !m.touched[path] && inside(path, false))
		count("hidden beside its own layer's", m.touched[path])
	case e.name == "":
	default:
		made, err := m.made(path, e)
		if err != nil {
			panic(err)
		}
		count("implied parent", m.names[at] == nil)
		count("same path twice in a layer", old != nil && m.touched[path] && old.kind != dir)
		coverChange(m, path, old, made, count)
	}
}

func coverChange(m *model, path string, old, made *node, count func(string, bool)) {
	linked := 0
	for _, n := range m.names {
		if n == old {
			linked++
		}
	}
	if old != nil {
		count("type change", old.kind != made.kind)
		count("metadata of a directory changed", old.kind == dir && made.kind == dir)
		count("file replaced", old.kind == file && made.kind == file)
		count("linked name replaced later", linked > 1 && made != old)
	}
	for p, n := range m.names {
		if n != made {
			continue
		}
		count("hard link", true)
		count("hard link to a lower layer", !m.touched[p])
		count("hard link to a symlink", n.kind == symlink)
		count("hard link to no file", n.kind != symlink && n.kind != file)
	}
}

// coverEntry counts what an entry is.
func coverEntry(e entry, count func(string, bool)) {
	_, base := split(e.name)
	_, _, is := e.whiteout()
	count("dialect "+dialectNames[e.dialect], true)
	count("name of 255", len(base) == 255)
	count("long name pax", len(e.name) > 255 && e.dialect == pax)
	count("long name gnu", len(e.name) > 100 && e.dialect == gnu)
	count("prefix ustar", len(e.written()) > 100 && e.dialect == ustar)
	count("long link pax", len(e.link) > 100 && e.dialect == pax)
	count("long link gnu", len(e.link) > 100 && e.dialect == gnu)
	count("name is no UTF-8", !utf8.ValidString(e.name))
	count("control in a name", strings.ContainsAny(base, "\n\t\x01"))
	if is || e.kind == hardlink {
		return
	}
	coverKind(e, count)
	old := func(year int, before bool) bool { return e.mtime().Year() < year == before }
	count("setuid", e.mode&0o4000 != 0 && e.kind == file)
	count("setgid", e.mode&0o2000 != 0)
	count("sticky", e.mode&0o1000 != 0)
	count("uid over 65535", e.uid > 65535)
	count("gid over 2^21", e.gid > 1<<21)
	count("nanoseconds", e.nsec%1000 != 0)
	count("before 1970", e.sec < 0)
	count("before 1901", old(1901, true))
	count("after 2038", old(2039, false))
	count("after 2106", old(2107, false))
	count("after 2446", old(2447, false))
	count("what ext4 cannot hold in 2310", old(2311, false) && old(2378, true))
	for name, value := range e.xattrs {
		more := true
		if strings.HasPrefix(name, "system.") {
			_, more = foldACL(0, value)
		}
		count("user attribute", strings.HasPrefix(name, "user."))
		count("overlay attribute", strings.HasPrefix(name, "user.overlay."))
		count("attribute of over 4000", len(value) > 4000)
		count("capability", name == capability)
		count("access ACL", name == aclAccess && more)
		count("ACL that is a mode", name == aclAccess && !more)
		count("default ACL", name == aclDefault)
		count("trusted attribute", strings.HasPrefix(name, "trusted."))
	}
}

func coverKind(e entry, count func(string, bool)) {
	switch e.kind {
	case symlink:
		for _, n := range []int{1, 59, 60, 255, 4095} {
			count(fmt.Sprintf("symlink of %d", n), len(e.link) == n)
		}
		count("symlink of over 4000", len(e.link) >= 4000)
	case fifo:
		count("fifo", true)
	case char, block:
		count("char device", e.kind == char)
		count("block device", e.kind == block)
		count("device with large numbers", e.major > 255 && e.minor > 255)
		count("device 0:0", e.kind == char && e.major == 0 && e.minor == 0)
	case file:
		if e.body.sparse != dense {
			count("sparse "+sparseNames[e.body.sparse], true)
			count("sparse of over 21 segments", len(e.body.segs) > 21)
			count("sparse all hole", len(e.body.segs) == 0)
		}
		count("zeros", e.body.seed == 0)
	}
}
