package rootfs_test

import (
	"strings"
	"testing"
)

// What umoci 0.4.7 is excused, each shown to be so. Where one of these tests
// fails, an umoci does better: take the excuse away.

// layers is a stack of these entries.
func layers(list ...[]entry) stack {
	var s stack
	for _, entries := range list {
		s = append(s, layer{entries, gzipd})
	}
	return s
}

func anEntry(k kind, name string, change ...func(*entry)) entry {
	e := entry{name: name, kind: k, mode: 0o755, sec: 1e9}
	for _, c := range change {
		c(&e)
	}
	return e
}

func at(sec int64) func(*entry) { return func(e *entry) { e.sec = sec } }

func attr(name, value string) func(*entry) {
	return func(e *entry) { e.xattrs = map[string]string{name: value} }
}

// plainBelief excuses nothing.
var plainBelief = believer{time: imageBelief.time, keeps: func(string, kind) bool { return true }}

func TestUmociIsExcused(t *testing.T) {
	work := workspace(t)
	acl := packACL([]aclEntry{{aclUserObj, 7, 1<<32 - 1}, {aclUser, 7, 1000}, {aclGroupObj, 5, 1<<32 - 1}, {aclMask, 7, 1<<32 - 1}, {aclOther, 5, 1<<32 - 1}})
	setgid := func(e *entry) { e.mode, e.gid = 0o2755, 50 }
	for _, c := range []struct {
		name  string
		stack stack
		path  string
		words string // in which umoci is wrong
	}{
		{"a parent that no entry describes has the time of its making", layers([]entry{anEntry(file, "a/b")}), "a", "mtime"},
		{"and the group of the directory above", layers([]entry{anEntry(dir, "a", setgid), anEntry(file, "a/b/c")}), "a/b", "mode mtime owner"},
		{"and its default ACL", layers([]entry{anEntry(dir, "a", attr(aclDefault, acl)), anEntry(file, "a/b/c")}), "a/b", "mode mtime xattr xattr"},
		{"a directory that is given such a child loses its time", layers([]entry{anEntry(dir, "a")}, []entry{anEntry(file, "a/b/c")}), "a", "mtime"},
		{"a directory in which a whiteout works from above loses its time", layers([]entry{anEntry(dir, "a"), anEntry(dir, "a/b"), anEntry(file, "a/b/c")}, []entry{anEntry(file, "a/b/d"), anEntry(file, "a/.wh..wh..opq")}), "a/b", "mtime"},
		{"a time before 1678 comes out as another", layers([]entry{anEntry(file, "a", at(-1e10))}), "a", "mtime"},
		{"a time after 2262 comes out as another", layers([]entry{anEntry(file, "a", at(1e10))}), "a", "mtime"},
		{"labels of SELinux are left out", layers([]entry{anEntry(file, "a", attr("security.selinux", "label"))}), "a", "xattr"},
	} {
		t.Run(c.name, func(t *testing.T) {
			m, err := laid(c.stack)
			if err != nil {
				t.Fatal(err)
			}
			u, err := umoci(t.Context(), work, c.stack)
			if err != nil {
				t.Fatal(err)
			}
			bad, err := u.against("umoci", m, plainBelief, noExcuse)
			if err != nil {
				t.Fatal(err)
			}
			var words []string
			for _, d := range bad {
				if d.path == c.path {
					word, _, _ := strings.Cut(d.word, " ")
					words = append(words, word)
				}
			}
			if got := strings.Join(words, " "); got != c.words {
				t.Errorf("%q differs in %q, want %q:\n%s", c.path, got, c.words, list(bad))
			}
			if left, err := u.against("umoci", m, umociBelief, u.excuses(m)); err != nil || len(left) > 0 {
				t.Errorf("not excused: %v\n%s", err, list(left))
			}
		})
	}
}

// TestUmociCannot names what umoci refuses: it is given these layers in another
// form, or not at all.
func TestUmociCannot(t *testing.T) {
	work := workspace(t)
	sparse := anEntry(file, "a", func(e *entry) {
		e.dialect, e.body = gnu, body{size: 9000, seed: 1, sparse: gnuOld, segs: []segment{{0, 10}}}
	})
	for _, c := range []struct {
		name string
		l    layer
		says string
	}{
		{"GNU's first sparse files", layer{[]entry{sparse, sparse}, gzipd}, "unknown typeflag"},
		{"global PAX headers", layer{[]entry{anEntry(file, "a")}, gzipd}, "unknown typeflag"},
		{"zstd", layer{[]entry{anEntry(file, "a"), anEntry(file, "b")}, zstdd}, "not correct mediatype"},
		{"user attributes of what is no file", layer{[]entry{anEntry(fifo, "a", attr("user.a", "b")), anEntry(file, "b")}, gzipd}, "operation not permitted"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := umociOf(t.Context(), work, stack{c.l}, byUs)
			if err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("it answers %v, want one that says %q", err, c.says)
			}
		})
	}
}
