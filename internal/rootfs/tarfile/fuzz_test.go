package tarfile_test

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/rootfs/tarfile"
)

// seeds are small archives of every format.
func seeds(f *testing.F) {
	files, err := filepath.Glob(filepath.Join(golden, "*.tar.gz"))
	if err != nil || len(files) == 0 {
		f.Fatal(files, err)
	}
	for _, file := range files {
		data, err := unpacked(file)
		if err != nil {
			f.Fatal(err)
		}
		if data = bytes.TrimRight(data, "\x00"); len(data) < 16<<10 {
			f.Add(join(data, make([]byte, -len(data)&511), end))
		}
	}
	a := entry("a", '0', "hi")
	f.Add(join(a, make([]byte, 512), a))
	f.Add(join(long("./b"), longLink("c"), entry("a", '1', "", gnu), end))
	f.Add(join(pax("path", "b", "size", "2", "mtime", "-1.5", "SCHILY.xattr.user.a", "1", "LIBARCHIVE.xattr.user.a", "MQ"), a, end))
	f.Add(join(global("uid", "5", "mtime", "7"), entry("a", '3', "", device("5", "1"), star, prefix("p")), end))
	f.Add(join(oldSparse("123456", 100, ranges(0, 1, 2, 1, 4, 1, 6, 1), ranges(8, 2)), end))
	f.Add(join(sparse00(2, 5, 1, 9, 1), a, end))
	f.Add(join(sparse01("2", "5,1,9,1", "GNU.sparse.name", "b"), a, end))
	f.Add(join(sparse10("GNU.sparse.name", "b"), entry("a", '0', string(padded("2\n5\n1\n9\n1\n"))+"hi"), end))
	f.Add(entry("a", '0', "", gnu, uid(binary(8, 1, 0, 0)), mtime("\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFE")))
}

// mend gives every block that could be a header its right checksum: without
// it nearly all that a fuzzer makes ends at the first header.
func mend(archive []byte) []byte {
	archive = slices.Clone(archive)
	for b := archive; len(b) >= 512; b = b[512:] {
		// Contents and blocks of zeros have no NUL and space in this place.
		if b[154] != 0 || b[155] != ' ' {
			continue
		}
		sum := 8 * int(' ')
		for i, c := range b[:512] {
			if i < 148 || i >= 156 {
				sum += int(c)
			}
		}
		copy(b[148:], fmt.Sprintf("%06o", sum))
	}
	return archive
}

// Whatever it reads, the reader ends, refuses with a code of layers, keeps what
// it promises of an entry, and gives and holds no more than it was given.
func FuzzReader(f *testing.F) {
	seeds(f)
	f.Fuzz(func(t *testing.T, archive []byte) { bounded(t, mend(archive)) })
}

func bounded(t *testing.T, archive []byte) {
	t.Helper()
	l := tarfile.Limits{Path: 300, Depth: 20, Name: 200, Xattrs: 4, XattrBytes: 500, HeaderBytes: 4096, Segments: 50}
	codes := []*fault.Code{fault.LayerArchive, fault.LayerPath, fault.LayerRoot, fault.LayerLink, fault.LayerType, fault.LayerXattr, fault.LayerTrailing}
	list, err := readAll(bytes.NewReader(archive), l)
	if err != nil && (!slices.Contains(codes, fault.Of(err)) || len(err.Error()) > 2000) {
		t.Fatal(err)
	}
	stored, held := 0, 0
	for _, e := range list {
		stored += len(e.body)
		held += 512 + len(e.Name) + len(e.Linkname) + 16*len(e.Segments)
		for _, x := range e.Xattrs {
			held += len(x.Name) + len(x.Value)
		}
		promises(t, l, e)
	}
	if stored > len(archive) || held > 8*len(archive) {
		t.Fatalf("%d bytes stored, %d held, of an archive of %d", stored, held, len(archive))
	}
	n, skipped := skipAll(archive)
	if err == nil && (skipped != nil || n != len(list)) {
		t.Fatalf("%d entries when skipped, %v; %d when read", n, skipped, len(list))
	}
}

// promises holds an entry against what Entry says.
func promises(t *testing.T, l tarfile.Limits, e read) {
	t.Helper()
	name := e.Name
	if name != "" && path.Clean("/" + name)[1:] != name || len(name) > l.Path || strings.Count(name, "/") >= l.Depth || name == "" && e.Type != tarfile.Directory {
		t.Fatalf("the name %q of a %v", name, e.Type)
	}
	switch e.Type {
	case tarfile.Link:
		if path.Clean("/" + e.Linkname)[1:] != e.Linkname || e.Linkname == "" || e.Xattrs != nil {
			t.Fatalf("%+v", e.Entry)
		}
	case tarfile.Symlink:
		if e.Linkname == "" || len(e.Linkname) > 4095 || strings.Contains(e.Linkname, "\x00") {
			t.Fatalf("%+v", e.Entry)
		}
	default:
		if e.Linkname != "" {
			t.Fatalf("%+v", e.Entry)
		}
	}
	if e.Mode&^0o7777 != 0 || e.Type != tarfile.Regular && (e.Size != 0 || e.body != "" || e.Segments != nil) || e.Size < 0 || e.Segments == nil && int64(len(e.body)) != e.Size {
		t.Fatalf("%+v", e.Entry)
	}
	end, total := int64(-1), int64(0)
	for _, s := range e.Segments {
		if s.Offset <= end || s.Length <= 0 || s.Offset+s.Length > e.Size {
			t.Fatalf("%+v", e.Entry)
		}
		end = s.Offset + s.Length
		total += s.Length
	}
	if e.Segments != nil && total != int64(len(e.body)) {
		t.Fatalf("%+v", e.Entry)
	}
	if !slices.IsSortedFunc(e.Xattrs, func(a, b xattr) int { return strings.Compare(a.Name, b.Name) }) || len(e.Xattrs) > l.Xattrs {
		t.Fatalf("%+v", e.Entry)
	}
}

// Where both accept an archive, archive/tar reads the same tree. It does not
// apply global headers, device numbers of SCHILY and xattrs of LIBARCHIVE.
func FuzzDifferential(f *testing.F) {
	seeds(f)
	f.Fuzz(func(t *testing.T, archive []byte) { differential(t, mend(archive)) })
}

// differential returns how many entries both readers agreed on.
func differential(t *testing.T, archive []byte) (agreed int) {
	t.Helper()
	ours := tarfile.NewReader(bytes.NewReader(archive), tarfile.Limits{AbsoluteNames: true})
	theirs := tar.NewReader(bytes.NewReader(archive))
	globals := map[string]string{}
	for {
		e, err := ours.Next()
		h, theirErr := nextOf(theirs, globals)
		if errors.Is(err, io.EOF) != errors.Is(theirErr, io.EOF) && (err == nil || errors.Is(err, io.EOF)) && (theirErr == nil || errors.Is(theirErr, io.EOF)) {
			t.Fatalf("%+v, %v; archive/tar has %+v, %v", e, err, h, theirErr)
		}
		if err != nil || theirErr != nil {
			return agreed
		}
		compare(t, e, h, globals)
		if !sameContents(t, e, ours, theirs) {
			return agreed
		}
		agreed++
	}
}

// nextOf is the next entry that is no global header; of those it keeps the
// records.
func nextOf(r *tar.Reader, globals map[string]string) (*tar.Header, error) {
	for {
		h, err := r.Next()
		if err != nil || h.Typeflag != tar.TypeXGlobalHeader {
			return h, err
		}
		maps.Copy(globals, h.PAXRecords)
	}
}

var flags = map[tarfile.Type]string{
	tarfile.Regular: "07S", tarfile.Link: "1", tarfile.Symlink: "2", tarfile.CharDevice: "3",
	tarfile.BlockDevice: "4", tarfile.Directory: "5", tarfile.FIFO: "6",
}

func compare(t *testing.T, e *tarfile.Entry, h *tar.Header, globals map[string]string) {
	t.Helper()
	var diff []string
	differ := func(what string, ours, theirs any) {
		if ours != theirs {
			diff = append(diff, fmt.Sprintf("%s %#v, %#v", what, ours, theirs))
		}
	}
	differ("name", e.Name, path.Clean("/" + h.Name)[1:])
	differ("mode", e.Mode, uint32(h.Mode)&0o7777)
	differ("type", true, strings.IndexByte(flags[e.Type], h.Typeflag) >= 0)
	switch e.Type {
	case tarfile.Regular:
		differ("size", e.Size, h.Size)
	case tarfile.Link:
		differ("target", e.Linkname, path.Clean("/" + h.Linkname)[1:])
	case tarfile.Symlink:
		differ("target", e.Linkname, h.Linkname)
	case tarfile.CharDevice, tarfile.BlockDevice:
		if h.PAXRecords["SCHILY.devmajor"] == "" && h.PAXRecords["SCHILY.devminor"] == "" {
			differ("device", [2]int64{int64(e.Major), int64(e.Minor)}, [2]int64{h.Devmajor, h.Devminor})
		}
	}
	if _, set := globals["uid"]; !set {
		differ("uid", int(e.UID), h.Uid)
	}
	if _, set := globals["gid"]; !set {
		differ("gid", int(e.GID), h.Gid)
	}
	if _, set := globals["mtime"]; !set {
		differ("time", true, e.ModTime.Equal(h.ModTime))
	}
	ours := map[string]string{}
	for _, x := range e.Xattrs {
		if _, theirs := h.PAXRecords["SCHILY.xattr."+x.Name]; theirs {
			ours["SCHILY.xattr."+x.Name] = string(x.Value)
		}
	}
	for k, v := range h.PAXRecords {
		if strings.HasPrefix(k, "SCHILY.xattr.") && e.Type != tarfile.Link {
			differ(k, ours[k], v)
		}
	}
	if diff != nil {
		t.Fatalf("ours, archive/tar's: %q\n%+v\n%+v", diff, e, h)
	}
}

// sameContents compares what is in the file, unless it is too large, and says
// whether it could be read.
func sameContents(t *testing.T, e *tarfile.Entry, ours, theirs io.Reader) bool {
	t.Helper()
	if e.Size > 1<<20 {
		return true
	}
	stored, err := io.ReadAll(ours)
	want, theirErr := io.ReadAll(theirs)
	if err != nil || theirErr != nil {
		return false
	}
	got := stored
	if e.Segments != nil {
		got = make([]byte, e.Size)
		for _, s := range e.Segments {
			stored = stored[copy(got[s.Offset:s.Offset+s.Length], stored):]
		}
	}
	if !bytes.Equal(got, want) {
		t.Fatalf("%q: contents %.100q, archive/tar has %.100q", e.Name, got, want)
	}
	return true
}

// Archives put together at random, then tampered with, are read as archive/tar
// reads them, or refused by one of the two.
func TestRandomArchives(t *testing.T) {
	agreed := 0
	for seed := range uint64(1000) {
		rnd := rand.New(rand.NewPCG(seed, 7))
		var archive []byte
		for range 1 + rnd.IntN(4) {
			for range rnd.IntN(3) * rnd.IntN(2) {
				archive = append(archive, pick(rnd, before)(rnd)...)
			}
			archive = append(archive, pick(rnd, entries)(rnd)...)
		}
		archive = append(archive, end[:512*rnd.IntN(3)]...)
		for range rnd.IntN(4) * rnd.IntN(2) {
			archive[rnd.IntN(len(archive))] = pick(rnd, []byte("\x00\x01 /.,-=\n0178LKSxg\x80\xff"))
		}
		archive = mend(archive)
		if bounded(t, archive); t.Failed() {
			t.Fatalf("seed %d", seed)
		}
		if agreed += differential(t, archive); t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
	if agreed < 700 {
		t.Errorf("only %d entries were read by both: the test tests nothing", agreed)
	}
}

func pick[T any](rnd *rand.Rand, list []T) T { return list[rnd.IntN(len(list))] }

func some(rnd *rand.Rand) string {
	if rnd.IntN(4) > 0 {
		return pick(rnd, []string{"a", "./b", "c//d", "/e", "\xFF", strings.Repeat("n", 99), strings.Repeat("d/", 40) + "e"})
	}
	return pick(rnd, []string{"..", ".", "", "a/", "./", "1", "-1", "1.5", "100"})
}

// record is a PAX record whose value mostly fits its key.
func record(rnd *rand.Rand) []string {
	i := rnd.IntN(len(keys))
	value := pick(rnd, fitting[i])
	if rnd.IntN(6) == 0 {
		value = some(rnd)
	}
	return []string{keys[i], value}
}

var before = []func(*rand.Rand) []byte{
	func(r *rand.Rand) []byte { return long(some(r)) },
	func(r *rand.Rand) []byte { return longLink(some(r)) },
	func(r *rand.Rand) []byte { return global(record(r)...) },
	func(r *rand.Rand) []byte { return pax(record(r)...) },
	func(r *rand.Rand) []byte { return pax(append(record(r), record(r)...)...) },
	func(r *rand.Rand) []byte { return sparse00(2, r.IntN(9), r.IntN(3), 9+r.IntN(9), r.IntN(3)) },
	func(r *rand.Rand) []byte { return sparse01("2", fmt.Sprintf("%d,1,%d,1", r.IntN(9), r.IntN(90))) },
	func(r *rand.Rand) []byte { return sparse10(record(r)...) },
}

var (
	keys = []string{
		"path", "linkpath", "size", "uid", "gid", "mtime", "comment", "SCHILY.xattr.user.a", "LIBARCHIVE.xattr.user.a", "GNU.sparse.name", "SCHILY.devmajor",
	}
	fitting = [][]string{
		{"a", "b/c", "./d"},
		{"x", "../y"},
		{"2", "0"},
		{"0", "65536", "4294967295", ""},
		{"0", "3000000", ""},
		{"1", "-1.5", "1.123456789123", "0.1", ""},
		{"", "x"},
		{"", "1"},
		{"", "MQ"},
		{"s", "./t/u"},
		{"1"},
	}
)

var entries = []func(*rand.Rand) []byte{
	func(r *rand.Rand) []byte {
		return entry(some(r), pick(r, []byte("\x0001234567VS")), "", pick(r, formats), target(some(r)), device("0000007", "0000003"))
	},
	func(r *rand.Rand) []byte {
		return entry(some(r), pick(r, []byte("\x000071")), "hi", pick(r, formats), prefix("p"))
	},
	func(r *rand.Rand) []byte {
		return entry(some(r), '0', string(padded(fmt.Sprintf("2\n%d\n1\n%d\n1\n", r.IntN(9), r.IntN(90))))+"hi", pick(r, formats))
	},
	func(r *rand.Rand) []byte { return oldSparse("abc", 20, ranges(r.IntN(9), 1, 9+r.IntN(9), 2)) },
	func(r *rand.Rand) []byte {
		return oldSparse("abcdefgh", 60, ranges(0, 1, 2, 1, 4, 1, 6, 1), ranges(8+r.IntN(9), r.IntN(5), 30, r.IntN(4)))
	},
	func(r *rand.Rand) []byte {
		return entry(some(r), '0', "hi", gnu, uid(binary(8, 1, 0, 0)), mtime(pick(r, []string{"\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFE", binary(12, 1, 2, 3, 4, 5)})))
	},
}

var formats = []edit{ustar, gnu, star, at(257, strings.Repeat("\x00", 8))}
