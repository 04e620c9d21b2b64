package tarfile_test

import (
	"bytes"
	"io"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/paddock-dev/paddock/internal/rootfs/tarfile"
)

type (
	entryOf = tarfile.Entry
	seg     = tarfile.Segment
	xattr   = tarfile.Xattr
)

var (
	epoch    = time.Unix(0, 0).UTC()
	anyNames = tarfile.Limits{AbsoluteNames: true}
)

// Every form of an entry that is accepted, and what is read of it.
func TestEntries(t *testing.T) {
	n200 := strings.Repeat("d/", 50) + strings.Repeat("n", 100)
	for name, c := range map[string]struct {
		archive []byte
		want    entryOf
		body    string
	}{
		"v7 file":            {entry("a", 0, "hi", v7), entryOf{Name: "a", Size: 2}, "hi"},
		"v7 directory":       {entry("a/", 0, "", v7), entryOf{Name: "a", Type: tarfile.Directory}, ""},
		"contiguous":         {entry("a", '7', "hi"), entryOf{Name: "a", Size: 2}, "hi"},
		"full name":          {entry(strings.Repeat("n", 100), '0', ""), entryOf{Name: strings.Repeat("n", 100)}, ""},
		"prefix":             {entry("b", '0', "", prefix("x/a")), entryOf{Name: "x/a/b"}, ""},
		"full prefix":        {entry("b", '0', "", prefix(strings.Repeat("p", 155))), entryOf{Name: strings.Repeat("p", 155) + "/b"}, ""},
		"star's prefix":      {entry("b", '0', "", star, prefix("x/a")), entryOf{Name: "x/a/b"}, ""},
		"full star's prefix": {entry("b", '0', "", prefix(strings.Repeat("p", 131)), star), entryOf{Name: strings.Repeat("p", 131) + "/b"}, ""},
		"no prefix in gnu":   {entry("b", '0', "", gnu, prefix("14000000000")), entryOf{Name: "b"}, ""},
		"no prefix in v7":    {entry("b", '0', "", at(257, "\x00\x00\x00\x00\x00\x00\x00\x00"), prefix("p")), entryOf{Name: "b"}, ""},
		"numbers": {
			entry("a", '0', "", mode("104755 "), uid("  1750\x00junk"), gid("0001751\x00"), mtime(" 14000000000")),
			entryOf{Name: "a", Mode: 0o4755, UID: 1000, GID: 1001, ModTime: time.Unix(0o14000000000, 0)},
			"",
		},
		"base 256": {
			entry("a", '0', "", gnu, uid(binary(8, 0xFF, 0xFF, 0xFF, 0xFF)), gid(binary(8, 0x01, 0, 0)), mtime("\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFE")),
			entryOf{Name: "a", UID: 1<<32 - 1, GID: 65536, ModTime: time.Unix(-2, 0)},
			"",
		},
		"size in base 256":  {entry("a", '0', "hi", gnu, size(binary(12, 2))), entryOf{Name: "a", Size: 2}, "hi"},
		"blank numbers":     {entry("a", '0', "", mode("        "), uid(strings.Repeat("\x00", 8)), size(strings.Repeat("\x00", 12))), entryOf{Name: "a", Mode: 0}, ""},
		"long name":         {join(long("./"+n200), entry("a", '0', "hi", gnu)), entryOf{Name: n200, Size: 2}, "hi"},
		"long name and NUL": {join(long("b\x00c"), entry("a", '0', "", gnu)), entryOf{Name: "b"}, ""},
		"long target":       {join(longLink(n200), long("b"), entry("a", '2', "", gnu)), entryOf{Name: "b", Type: tarfile.Symlink, Linkname: n200}, ""},
		"long hard link":    {join(long("b"), longLink("./"+n200), entry("a", '1', "", gnu)), entryOf{Name: "b", Type: tarfile.Link, Linkname: n200}, ""},
		"PAX names":         {join(pax("path", "b\nc/", "linkpath", "../x\n"), entry("a", '2', "")), entryOf{Name: "b\nc", Type: tarfile.Symlink, Linkname: "../x\n"}, ""},
		"PAX numbers": {
			join(pax("uid", "4294967295", "gid", "65536", "size", "2", "mtime", "1.5", "comment", "", "ctime", "x"), entry("a", '0', "hi", size("00000000777"), uid("???"))),
			entryOf{Name: "a", UID: 1<<32 - 1, GID: 65536, Size: 2, ModTime: time.Unix(1, 5e8)},
			"hi",
		},
		"last of two records": {join(pax("path", "x", "path", "y", "uid", "7", "uid", ""), entry("a", '0', "")), entryOf{Name: "y"}, ""},
		"xattrs": {
			join(pax("SCHILY.xattr.user.b", "\x00\n=", "SCHILY.xattr.user.a", "", "LIBARCHIVE.xattr.user.b", "AAo9", "LIBARCHIVE.xattr.user.c%3D%25", "YQ=="), entry("a", '5', "")),
			entryOf{Name: "a", Type: tarfile.Directory, Xattrs: []xattr{{"user.a", []byte{}}, {"user.b", []byte("\x00\n=")}, {"user.c=%", []byte("a")}}},
			"",
		},
		"xattrs of a link": {join(pax("SCHILY.xattr.user.a", "1"), entry("a", '1', "", target("b"))), entryOf{Name: "a", Type: tarfile.Link, Linkname: "b"}, ""},
		"global": {
			join(global("uid", "5", "gid", "6", "mtime", "9", "comment", "c"), global("gid", ""), pax("uid", ""), entry("a", '0', "", gid("0000007"))),
			entryOf{Name: "a", GID: 7, ModTime: time.Unix(9, 0)},
			"",
		},
		"character device":   {entry("a", '3', "", device("0000005", "0000001")), entryOf{Name: "a", Type: tarfile.CharDevice, Major: 5, Minor: 1}, ""},
		"block device":       {join(pax("SCHILY.devmajor", "8", "SCHILY.devminor", "1048575"), entry("a", '4', "")), entryOf{Name: "a", Type: tarfile.BlockDevice, Major: 8, Minor: 1048575}, ""},
		"device in base 256": {entry("a", '3', "", gnu, device(binary(8, 1, 0), binary(8, 0xFF, 0xFF, 0xFF, 0xFF))), entryOf{Name: "a", Type: tarfile.CharDevice, Major: 256, Minor: 1<<32 - 1}, ""},
		"no device":          {entry("a", '0', "", device("junk", "junk")), entryOf{Name: "a"}, ""},
		"FIFO":               {entry("a", '6', ""), entryOf{Name: "a", Type: tarfile.FIFO}, ""},
		"hard link":          {entry("./a", '1', "", target("./b//c")), entryOf{Name: "a", Type: tarfile.Link, Linkname: "b/c"}, ""},
		"symbolic link":      {entry("a", '2', "", target("/../b/")), entryOf{Name: "a", Type: tarfile.Symlink, Linkname: "/../b/"}, ""},
		"longest target":     {join(pax("linkpath", strings.Repeat("t", 4095)), entry("a", '2', "")), entryOf{Name: "a", Type: tarfile.Symlink, Linkname: strings.Repeat("t", 4095)}, ""},
		"root":               {entry("./", '5', ""), entryOf{Type: tarfile.Directory}, ""},
		"root as dot":        {entry(".", '5', ""), entryOf{Type: tarfile.Directory}, ""},
		"root as slashes":    {entry("//", '5', ""), entryOf{Type: tarfile.Directory}, ""},
		"dots and slashes":   {entry(".//a/./b//", '5', ""), entryOf{Name: "a/b", Type: tarfile.Directory}, ""},
		"dotted names":       {entry("...", '0', ""), entryOf{Name: "..."}, ""},
		"no UTF-8":           {entry("\xFF\xFE", '0', ""), entryOf{Name: "\xFF\xFE"}, ""},
		"signed checksum":    {signed("\xE9"), entryOf{Name: "\xE9"}, ""},
		"old sparse":         {oldSparse("abcd", 100, ranges(10, 2, 20, 2, 100, 0)), entryOf{Name: "sparse", Size: 100, Segments: []seg{{10, 2}, {20, 2}}}, "abcd"},
		"old sparse, touching": {
			oldSparse("abcdef", 9, ranges(0, 1, 1, 1, 2, 1, 4, 1), ranges(5, 0, 5, 1, 8, 1)),
			entryOf{Name: "sparse", Size: 9, Segments: []seg{{0, 3}, {4, 2}, {8, 1}}},
			"abcdef",
		},
		"old sparse, blocks": {
			oldSparse(strings.Repeat("x", 30), 100, ranges(0, 1, 2, 1, 4, 1, 6, 1), ranges(evens(8, 21)...), ranges(evens(50, 5)...)),
			entryOf{Name: "sparse", Size: 100, Segments: append(segs(0, 25), segs(50, 5)...)},
			strings.Repeat("x", 30),
		},
		"all hole": {oldSparse("", 1<<33-1, ranges(1<<33-1, 0)), entryOf{Name: "sparse", Size: 1<<33 - 1, Segments: []seg{}}, ""},
		"sparse 0.0": {
			join(pax("GNU.sparse.size", "100", "GNU.sparse.numblocks", "2", "GNU.sparse.offset", "5", "GNU.sparse.numbytes", "2", "GNU.sparse.offset", "100", "GNU.sparse.numbytes", "0"), entry("a", '0', "hi")),
			entryOf{Name: "a", Size: 100, Segments: []seg{{5, 2}}},
			"hi",
		},
		"sparse 0.1": {
			join(pax("path", "GNUSparseFile.1/a", "GNU.sparse.name", "./b", "GNU.sparse.major", "0", "GNU.sparse.minor", "1", "GNU.sparse.size", "100", "GNU.sparse.numblocks", "2", "GNU.sparse.map", "5,1,9,1"), entry("a", '0', "hi")),
			entryOf{Name: "b", Size: 100, Segments: []seg{{5, 1}, {9, 1}}},
			"hi",
		},
		"sparse 1.0": {
			join(pax("GNU.sparse.name", "b", "GNU.sparse.major", "1", "GNU.sparse.minor", "0", "GNU.sparse.realsize", "100"), entry("a", '0', string(padded("2\n5\n1\n9\n1\n"))+"hi")),
			entryOf{Name: "b", Size: 100, Segments: []seg{{5, 1}, {9, 1}}},
			"hi",
		},
		"sparse 1.0, no data": {
			join(pax("GNU.sparse.major", "1", "GNU.sparse.minor", "0", "GNU.sparse.realsize", "100"), entry("a", '0', string(padded("0\n")))),
			entryOf{Name: "a", Size: 100, Segments: []seg{}},
			"",
		},
		"sparse 1.0, PAX size": {
			join(pax("size", "513", "GNU.sparse.major", "1", "GNU.sparse.minor", "0", "GNU.sparse.realsize", "9"), entry("a", '0', string(padded("1\n8\n1\n"))+"h", size("0"))),
			entryOf{Name: "a", Size: 9, Segments: []seg{{8, 1}}},
			"h",
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := one(t, join(c.archive, end), tarfile.Limits{})
			if c.want.ModTime.IsZero() {
				c.want.ModTime = epoch
			}
			c.want.ModTime = c.want.ModTime.UTC()
			if c.want.Mode == 0 && name != "blank numbers" {
				c.want.Mode = 0o644
			}
			if !reflect.DeepEqual(*got.Entry, c.want) || got.body != c.body {
				t.Errorf("got  %+v %q\nwant %+v %q", *got.Entry, got.body, c.want, c.body)
			}
		})
	}
}

// signed is an entry whose checksum is over signed bytes.
func signed(name string) []byte {
	b := entry(name, '0', "")
	sum := 0
	copy(b[148:], "        ")
	for _, c := range b[:512] {
		sum += int(int8(c))
	}
	copy(b[148:], []byte{byte('0' + sum>>12&7), byte('0' + sum>>9&7), byte('0' + sum>>6&7), byte('0' + sum>>3&7), byte('0' + sum&7), 0, ' '})
	return b
}

// evens are n ranges of one byte from start on, with holes of one byte.
func evens(start, n int) (out []int) {
	for _, s := range segs(start, n) {
		out = append(out, int(s.Offset), 1)
	}
	return out
}

func segs(start, n int) (out []seg) {
	for i := range n {
		out = append(out, seg{Offset: int64(start + 2*i), Length: 1})
	}
	return out
}

func TestTimes(t *testing.T) {
	for value, want := range map[string]time.Time{
		"0": epoch, "1": time.Unix(1, 0), "-1": time.Unix(-1, 0), "1.": time.Unix(1, 0), "007.5": time.Unix(7, 5e8),
		"1.000000001": time.Unix(1, 1), "-1.25": time.Unix(-2, 75e7), "-0.1": time.Unix(-1, 9e8),
		"1.9999999999999999999999": time.Unix(1, 999999999), "1.0000000009": time.Unix(1, 0), "-1.0000000009": time.Unix(-1, 0),
		"72057594037927936": time.Unix(1<<56, 0), "-72057594037927936": time.Unix(-1<<56, 0),
		"1." + strings.Repeat("3", 9000): time.Unix(1, 333333333),
	} {
		got := one(t, join(pax("mtime", value), entry("a", '0', "")), tarfile.Limits{})
		if !got.ModTime.Equal(want) {
			t.Errorf("%.30s: got %v, want %v", value, got.ModTime, want)
		}
	}
}

// Absolute names are taken when the limits say so, and then are like others.
func TestAbsoluteNames(t *testing.T) {
	got := one(t, entry("///a/b", '1', "", target("//c")), anyNames)
	if got.Name != "a/b" || got.Linkname != "c" {
		t.Errorf("%q leads to %q", got.Name, got.Linkname)
	}
	if got := one(t, entry("/", '5', ""), anyNames); got.Name != "" {
		t.Errorf("the root is %q", got.Name)
	}
}

// An archive may end at any of these places.
func TestEnds(t *testing.T) {
	a, zero := entry("a", '0', "hi"), make([]byte, 512)
	for name, archive := range map[string][]byte{
		"two blocks": join(a, zero, zero), "one block": join(a, zero), "no block": a, "in the padding": a[:800], "behind the contents": a[:514],
		"a full record": join(a, make([]byte, 10240)),
	} {
		if got := one(t, archive, tarfile.Limits{}); got.body != "hi" {
			t.Errorf("%s: %q", name, got.body)
		}
	}
	for name, archive := range map[string][]byte{"nothing": nil, "one block": zero, "two blocks": end, "a global header": join(global("comment", "c"), end)} {
		if list, err := readAll(bytes.NewReader(archive), tarfile.Limits{}); len(list) > 0 || err != nil {
			t.Errorf("%s: %v, %v", name, list, err)
		}
	}
}

// What was not read is left, whatever it is read from.
func TestSkipping(t *testing.T) {
	big := strings.Repeat("0123456789", 10000)
	archive := join(entry("a", '0', big), oldSparse("abc", 10, ranges(0, 3)), entry("b", '0', "hi"), end)
	for name, src := range map[string]io.Reader{
		"reader": struct{ io.Reader }{bytes.NewReader(archive)}, "discarder": bufioReader(archive), "byte by byte": &crumbs{data: archive, n: 1}, "in pieces": &crumbs{data: archive, n: 700},
	} {
		r := tarfile.NewReader(src, tarfile.Limits{})
		for i, want := range []string{"a", "sparse", "b"} {
			e, err := r.Next()
			if err != nil || e.Name != want {
				t.Fatalf("%s: entry %d is %v, %v", name, i, e, err)
			}
			part := make([]byte, i)
			if _, err := io.ReadFull(r, part); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
		if _, err := r.Next(); err != io.EOF { //nolint:errorlint // the contract is the bare value
			t.Errorf("%s: %v", name, err)
		}
		if n, err := r.Read(make([]byte, 1)); n != 0 || err != io.EOF { //nolint:errorlint // as above
			t.Errorf("%s: %d, %v", name, n, err)
		}
		if err := r.Finish(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// The bytes of an entry stay as they are while the archive is read on.
func TestEntriesAreTheCallers(t *testing.T) {
	var parts [][]byte
	for _, s := range []string{"a", "b", "c"} {
		parts = append(parts, pax("path", "p"+s, "linkpath", "l"+s, "SCHILY.xattr.user."+s, s), entry("x", '2', ""))
	}
	list, err := readAll(bytes.NewReader(join(parts...)), tarfile.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	for i, s := range []string{"a", "b", "c"} {
		e := list[i]
		if e.Name != "p"+s || e.Linkname != "l"+s || e.Xattrs[0].Name != "user."+s || string(e.Xattrs[0].Value) != s {
			t.Errorf("%+v", e.Entry)
		}
	}
}
