package ext4_test

import (
	"encoding/binary"
	"fmt"
	"io"
	"sort"
	"strings"
	"testing"
	"time"

	"github.com/paddock-dev/paddock/internal/rootfs/ext4"
)

func node(path string, mode uint32, change func(*ext4.Meta)) item {
	it := item{path: path, meta: ext4.Meta{Mode: mode, Mtime: noon}}
	if mode&0o170000 == 0o100000 {
		it.body, it.size = text(path)
	}
	if change != nil {
		change(&it.meta)
	}
	return it
}

func symlink(path, target string) item {
	return node(path, 0o120777, func(m *ext4.Meta) { m.Target = target })
}

func device(path string, kind, major, minor uint32) item {
	return node(path, kind|0o600, func(m *ext4.Meta) { m.Major, m.Minor = major, minor })
}

func xattrs(path string, list ...ext4.Xattr) item {
	return node(path, 0o100644, func(m *ext4.Meta) { m.Xattrs = list })
}

func attr(name, value string) ext4.Xattr { return ext4.Xattr{Name: name, Value: []byte(value)} }

// acl makes an ACL as getxattr(2) gives it, from tag, permissions and id.
func acl(entries ...[3]uint32) []byte {
	out := binary.LittleEndian.AppendUint32(nil, 2)
	for _, e := range entries {
		out = binary.LittleEndian.AppendUint16(out, uint16(e[0]))
		out = binary.LittleEndian.AppendUint16(out, uint16(e[1]))
		out = binary.LittleEndian.AppendUint32(out, e[2])
	}
	return out
}

const noID = 0xFFFFFFFF

var fullACL = acl([3]uint32{1, 7, noID}, [3]uint32{2, 5, 4_000_000_000}, [3]uint32{4, 4, noID}, [3]uint32{8, 7, 70000}, [3]uint32{0x10, 6, noID}, [3]uint32{0x20, 1, noID})

var fileCap = string([]byte{1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0})

func TestEdges(t *testing.T) {
	t.Parallel()
	for name, items := range map[string][]item{
		"nothing":       nil,
		"one file":      {file("a", 0o600, "a")},
		"one empty":     {file("a", 0o600, "")},
		"the root":      {{path: "", meta: ext4.Meta{Mode: 0o041777, UID: 7, GID: 70000, Mtime: noon, Xattrs: []ext4.Xattr{attr("user.root", "r")}}}, dir("d")},
		"lost+found":    {dir("lost+found"), file("lost+found/found", 0o600, "x"), dir("lost+found/dir")},
		"deep":          deep(300),
		"names":         names(),
		"hard links":    hardLinks(),
		"special files": specials(),
		"modes":         modes(),
		"owners":        owners(),
		"times":         times(),
		"symlinks":      symlinks(1, 2, 57, 58, 59, 60, 61, 62, 63, 64, 100, 1023, 1024, 4000, 4092, 4093, 4094, 4095),
		"xattrs":        someXattrs(),
		"acls":          acls(),
		"sparse":        sparseFiles(),
		"sizes":         sizes(),
		"directories":   directories(),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path, _ := write(t, items, testOptions)
			check(t, path, items)
		})
	}
}

func deep(n int) []item {
	var items []item
	path := strings.Repeat("d", 12)
	for range n {
		items = append(items, dir(path))
		path += "/" + strings.Repeat("d", 12)
	}
	return append(items, file(path, 0o644, "deep"))
}

func names() []item {
	items := []item{dir("n")}
	for n := 1; n <= 255; n++ {
		items = append(items, file("n/"+strings.Repeat("x", n), 0o644, ""))
	}
	for _, name := range []string{"\xff\xfe", "é", "日本語", " ", "-", "...", "a\nb", "\x01", "\\", "*", "A", "a", strings.Repeat("\xff", 255)} {
		items = append(items, file(name, 0o644, name))
	}
	for c := 1; c < 256; c++ {
		if c != '/' {
			items = append(items, file("n/c-"+string([]byte{byte(c)}), 0o644, ""))
		}
	}
	return items
}

func hardLinks() []item {
	items := []item{
		dir("d"), file("d/a", 0o644, "shared"),
		{path: "b", link: "d/a"},
		{path: "c", link: "b"},
		symlink("s", "d/a"),
		{path: "s2", link: "s"},
		device("dev", 0o020000, 1, 3),
		{path: "dev2", link: "dev"},
		symlink("long", strings.Repeat("l", 300)),
		{path: "d/long2", link: "long"},
		file("empty", 0o644, ""),
		{path: "d/empty2", link: "empty"},
	}
	for i := range 3000 {
		items = append(items, item{path: fmt.Sprintf("d/link-%d", i), link: "d/a"})
	}
	return items
}

func specials() []item {
	items := []item{node("fifo", 0o010644, nil), node("socket", 0o140755, nil)}
	for i, d := range [][2]uint32{{0, 0}, {1, 3}, {255, 255}, {256, 0}, {0, 256}, {8, 1048575}, {4095, 1048575}, {259, 65536}} {
		items = append(items, device(fmt.Sprintf("c%d", i), 0o020000, d[0], d[1]), device(fmt.Sprintf("b%d", i), 0o060000, d[0], d[1]))
	}
	return items
}

func modes() []item {
	var items []item
	for _, m := range []uint32{0, 0o777, 0o4755, 0o2755, 0o1777, 0o7777, 0o111} {
		items = append(items, node(fmt.Sprintf("f%o", m), 0o100000|m, nil), node(fmt.Sprintf("d%o", m), 0o040000|m, nil))
	}
	return items
}

func owners() []item {
	var items []item
	for _, id := range []uint32{0, 1, 65534, 65535, 65536, 4_000_000, 3_000_000_000, 4_294_967_294} {
		items = append(items, node(fmt.Sprintf("o%d", id), 0o100644, func(m *ext4.Meta) { m.UID, m.GID = id, id-min(id, 1) }))
	}
	return items
}

func times() []item {
	var items []item
	for i, at := range []time.Time{
		ext4.MinTime, ext4.MaxTime, time.Unix(-1, 999999999), time.Unix(-1, 0), time.Unix(0, 0), time.Unix(0, 1), time.Unix(-1<<31+1, 5),
		time.Unix(1<<31-1, 999999999), time.Unix(1<<31, 0), time.Unix(1<<32-1, 1), time.Unix(1<<32, 1), time.Unix(3<<31, 7), time.Unix(1<<33, 0),
		time.Date(2040, 1, 1, 0, 0, 0, 42, time.UTC), time.Date(2200, 1, 1, 0, 0, 0, 0, time.UTC), time.Unix(-86400, 0),
		time.Unix(5<<31-1, 999999999), time.Unix(5<<31, 0), time.Unix(5<<31+12345, 6), time.Unix(6<<31-1, 999999999), time.Unix(6<<31, 0),
		time.Unix(-1<<40, 0), time.Unix(1<<40, 0), ext4.MinTime.Add(-1), ext4.MaxTime.Add(1), time.Date(9999, 12, 31, 0, 0, 0, 0, time.UTC),
	} {
		items = append(items, node(fmt.Sprintf("t%d", i), 0o100644, func(m *ext4.Meta) {
			m.Mtime, m.Atime, m.Ctime = at, noon.Add(time.Duration(i)), noon.Add(-time.Duration(i)*time.Hour)
		}))
	}
	return items
}

func symlinks(lengths ...int) []item {
	var items []item
	for _, n := range lengths {
		items = append(items, symlink(fmt.Sprintf("l%d", n), strings.Repeat("0123456789", 410)[:n]))
	}
	return items
}

func someXattrs() []item {
	items := []item{
		xattrs("capability", attr("security.capability", fileCap)),
		xattrs("empty", attr("user.empty", "")),
		xattrs("two", attr("user.b", "2"), attr("user.a", "1")),
		xattrs("order", attr("user.zz", "1"), attr("user.a", "2"), attr("trusted.overlay.opaque", "y"), attr("security.ima", "\x03sum"), attr("user.bb", "3")),
		xattrs("body full", attr("user.0123456", strings.Repeat("v", 64))),
		xattrs("body over", attr("user.0123456", strings.Repeat("v", 65))),
		xattrs("block", attr("user.v", strings.Repeat("v", 2500))),
		xattrs("block full", attr("user.v", strings.Repeat("f", 4040))),
		xattrs("block and body", attr("user.v", strings.Repeat("v", 4040)), attr("user.small", "s")),
		xattrs("one inode", attr("user.v", strings.Repeat("v", 4041))),
		xattrs("largest", attr("user.v", strings.Repeat("w", 65536))),
		xattrs("same again", attr("user.other", strings.Repeat("w", 65536))),
		xattrs("several", attr("user.a", strings.Repeat("a", 5000)), attr("user.b", strings.Repeat("b", 9000)), attr("user.c", strings.Repeat("c", 3000)), attr("user.d", "d")),
		xattrs("strange", attr("user.\xc3\xa9\xff", "non-ascii"), attr("user."+strings.Repeat("n", 250), "long name")),
		node("dir", 0o040755, func(m *ext4.Meta) { m.Xattrs = []ext4.Xattr{attr("user.dir", "d"), attr("trusted.x", "t")} }),
		node("link", 0o120777, func(m *ext4.Meta) { m.Target, m.Xattrs = "t", []ext4.Xattr{attr("trusted.x", "t")} }),
		node("long link", 0o120777, func(m *ext4.Meta) {
			m.Target, m.Xattrs = strings.Repeat("t", 100), []ext4.Xattr{attr("trusted.x", strings.Repeat("t", 200))}
		}),
		node("fast link and block", 0o120777, func(m *ext4.Meta) {
			m.Target, m.Xattrs = "fast", []ext4.Xattr{attr("trusted.x", strings.Repeat("t", 200))}
		}),
		node("fast link and inode", 0o120777, func(m *ext4.Meta) {
			m.Target, m.Xattrs = "t", []ext4.Xattr{attr("trusted.x", strings.Repeat("t", 9000))}
		}),
		node("device", 0o020600, func(m *ext4.Meta) {
			m.Major, m.Xattrs = 5, []ext4.Xattr{attr("trusted.x", strings.Repeat("t", 200))}
		}),
	}
	var many []ext4.Xattr
	for i := range 100 {
		many = append(many, attr(fmt.Sprintf("user.many-%02d", i), fmt.Sprint(i)))
	}
	items = append(items, xattrs("many", many...))
	for i := range 2100 { // more than may share a block
		items = append(items, xattrs(fmt.Sprintf("shared-%d", i), attr("user.shared", strings.Repeat("s", 300))))
	}
	for i := range 1500 { // and a value that they share by another way
		items = append(items, xattrs(fmt.Sprintf("large-%d", i), attr("user.large", strings.Repeat("w", 65536))))
	}
	for n := range 70 {
		items = append(items, xattrs(fmt.Sprintf("len-%d", n), attr("user.len", strings.Repeat("l", n))))
	}
	return items
}

func acls() []item {
	access := ext4.Xattr{Name: "system.posix_acl_access", Value: fullACL}
	byDefault := ext4.Xattr{Name: "system.posix_acl_default", Value: fullACL}
	masked := acl([3]uint32{1, 6, noID}, [3]uint32{4, 6, noID}, [3]uint32{0x10, 4, noID}, [3]uint32{0x20, 0, noID})
	plain := acl([3]uint32{1, 7, noID}, [3]uint32{4, 5, noID}, [3]uint32{0x20, 0, noID})
	return []item{
		node("access", 0o100761, func(m *ext4.Meta) { m.Xattrs = []ext4.Xattr{access} }),
		node("both", 0o042761, func(m *ext4.Meta) { m.Xattrs = []ext4.Xattr{byDefault, access, attr("user.x", "y")} }),
		node("default", 0o040700, func(m *ext4.Meta) { m.Xattrs = []ext4.Xattr{byDefault} }),
		node("masked", 0o100640, func(m *ext4.Meta) { m.Xattrs = []ext4.Xattr{{Name: access.Name, Value: masked}} }),
		node("plain default", 0o040700, func(m *ext4.Meta) { m.Xattrs = []ext4.Xattr{{Name: byDefault.Name, Value: plain}} }),
	}
}

// sparseFile has the stored segments filled, and zeros elsewhere.
func sparseFile(path string, size int64, segs ...ext4.Segment) item {
	if segs == nil {
		segs = []ext4.Segment{}
	}
	it := item{path: path, meta: ext4.Meta{Mode: 0o100644, Mtime: noon}, size: size, segs: segs}
	it.body = filled{size, segs, func(i int) byte { return byte(i%250) + 1 }}.reader
	return it
}

// filled is a file with holes whose segment i is full of one byte.
type filled struct {
	size int64
	segs []ext4.Segment
	fill func(i int) byte
}

func (f filled) reader() io.Reader { return io.NewSectionReader(f, 0, f.size) }

func (f filled) ReadAt(p []byte, off int64) (int, error) {
	clear(p)
	end := off + int64(len(p))
	i := sort.Search(len(f.segs), func(i int) bool { return f.segs[i].Offset+f.segs[i].Length > off })
	for ; i < len(f.segs) && f.segs[i].Offset < end; i++ {
		s := f.segs[i]
		part := p[max(s.Offset-off, 0):min(s.Offset+s.Length-off, int64(len(p)))]
		for k := range part {
			part[k] = f.fill(i)
		}
	}
	return len(p), nil
}

func sparseFiles() []item {
	every := func(step, length int64, n int) (segs []ext4.Segment) {
		for i := range int64(n) {
			segs = append(segs, ext4.Segment{Offset: i * step, Length: length})
		}
		return segs
	}
	items := []item{
		sparseFile("all hole", 1<<20), sparseFile("hole of 1", 1),
		sparseFile("start", 1<<20, ext4.Segment{Offset: 0, Length: 10}),
		sparseFile("end", 1<<20, ext4.Segment{Offset: 1<<20 - 10, Length: 10}),
		sparseFile("middle", 1<<20, ext4.Segment{Offset: 5000, Length: 10000}),
		sparseFile("one block twice", 1<<20, ext4.Segment{Offset: 4096, Length: 10}, ext4.Segment{Offset: 5000, Length: 10}),
		sparseFile("touching", 1<<20, ext4.Segment{Offset: 4096, Length: 4096}, ext4.Segment{Offset: 8192, Length: 4096}),
		sparseFile("across", 1<<20, ext4.Segment{Offset: 4000, Length: 200}, ext4.Segment{Offset: 8100, Length: 200}),
		sparseFile("whole", 8192, ext4.Segment{Offset: 0, Length: 8192}),
		sparseFile("with empty", 8192, ext4.Segment{Offset: 0, Length: 0}, ext4.Segment{Offset: 10, Length: 5}, ext4.Segment{Offset: 8192, Length: 0}),
		sparseFile("past 256K", 2<<20, ext4.Segment{Offset: 100, Length: 300000}, ext4.Segment{Offset: 900001, Length: 700000}),
	}
	for _, n := range []int{3, 4, 5, 6, 339, 340, 341, 1360, 1361, 2000} {
		items = append(items, sparseFile(fmt.Sprintf("extents-%d", n), int64(n)*8192, every(8192, 4096, n)...))
	}
	return items
}

func sizes() []item {
	var items []item
	for i, n := range []int64{1, 4095, 4096, 4097, 65535, 65536, 65537, 262143, 262144, 262145, 1 << 20, 3<<20 + 5} {
		items = append(items, item{path: fmt.Sprintf("s%d", n), meta: ext4.Meta{Mode: 0o100644, Mtime: noon}, body: pattern(uint64(i), n), size: n})
	}
	zeros := func(n int64) func() io.Reader {
		return func() io.Reader { return io.LimitReader(zeroReader{}, n) }
	}
	for _, n := range []int64{1, 4096, 100000, 1 << 20} {
		items = append(items, item{path: fmt.Sprintf("z%d", n), meta: ext4.Meta{Mode: 0o100644, Mtime: noon}, body: zeros(n), size: n})
	}
	return items
}

type zeroReader struct{}

func (zeroReader) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// directories has sizes around every boundary: a full block, one name more,
// and an htree.
func directories() []item {
	return directoriesOf(0, 1, 2, 120, 126, 127, 128, 129, 130, 253, 254, 255, 256, 257, 1000)
}

func directoriesOf(sizes ...int) []item {
	var items []item
	for _, n := range sizes {
		top := fmt.Sprintf("d%d", n)
		items = append(items, dir(top))
		for i := range n {
			items = append(items, file(fmt.Sprintf("%s/name-of-a-file-%08d", top, i), 0o644, ""))
		}
	}
	return items
}
