package ext4_test

import (
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/paddock-dev/paddock/internal/rootfs/ext4"
)

// debugfs runs commands on an image and returns what each printed.
func debugfs(t testing.TB, image string, commands []string) []string {
	t.Helper()
	script := filepath.Join(t.TempDir(), "commands")
	must(t, os.WriteFile(script, []byte(strings.Join(commands, "\n")+"\n"), 0o600))
	out, err := run(t, tool("debugfs"), "-f", script, image)
	if err != nil {
		t.Fatalf("debugfs: %v\n%s", err, out)
	}
	parts := strings.Split(out, "debugfs: ")[1:]
	if len(parts) != len(commands) {
		t.Fatalf("debugfs answered %d of %d commands:\n%s", len(parts), len(commands), out)
	}
	for i := range parts {
		_, parts[i], _ = strings.Cut(parts[i], "\n") // the command again
	}
	return parts
}

// byDebugfs returns what debugfs says about the paths of items, in the words
// of the other readers: from stat, ea_list, ea_get, and cat or dump.
func byDebugfs(t testing.TB, image string, items []item) map[string]view {
	t.Helper()
	var ask []string
	for _, it := range items {
		ask = append(ask, fmt.Sprintf("stat %q", "/"+it.path), fmt.Sprintf("ea_list %q", "/"+it.path))
	}
	said := debugfs(t, image, ask)
	out, scratch, more := map[string]view{}, t.TempDir(), []string(nil)
	type wanted struct{ path, word, file string }
	var files []wanted
	want := func(command, path, word string) {
		file := filepath.Join(scratch, strconv.Itoa(len(files)))
		files = append(files, wanted{path, word, file})
		more = append(more, fmt.Sprintf(command, "/"+path, file))
	}
	for i, it := range items {
		v, slow := statView(t, said[2*i])
		out[it.path] = v
		if v["size"] != "" {
			want("dump %q %s", it.path, "sum")
		}
		if slow {
			want("dump %q %s", it.path, "target")
		}
		for _, m := range regexp.MustCompile(`(?m)^  (.*) \(\d+\)( =.*)?$`).FindAllStringSubmatch(said[2*i+1], -1) {
			want("ea_get -f %[2]s %[1]q "+m[1], it.path, "xattr "+m[1])
		}
	}
	if more != nil {
		debugfs(t, image, more)
	}
	for _, w := range files {
		b, err := os.ReadFile(w.file)
		must(t, err)
		switch w.word {
		case "sum":
			b = []byte(fmt.Sprintf("%x", sha256.Sum256(b)))[:24]
		case "target":
		case "xattr system.posix_acl_access", "xattr system.posix_acl_default":
			b = asKernel(b)
			fallthrough
		default:
			b = fmt.Appendf(nil, "%d:%x", len(b), sha256.Sum256(b))
		}
		out[w.path][w.word] = string(b)
	}
	return out
}

// asKernel gives entries of an ACL that are for no certain user or group the id
// that the kernel gives them: debugfs gives them 0.
func asKernel(acl []byte) []byte {
	for e := acl[4:]; len(e) >= 8; e = e[8:] {
		if tag := e[0]; tag != 2 && tag != 8 {
			copy(e[4:8], "\xff\xff\xff\xff")
		}
	}
	return acl
}

var (
	statHead  = regexp.MustCompile(`Type: (.*?) +Mode: +0?([0-7]+)`)
	statOwner = regexp.MustCompile(`User: *(-?\d+) +Group: *(-?\d+) .*Size: (\d+)`)
	statLinks = regexp.MustCompile(`Links: (\d+) `)
	statTime  = regexp.MustCompile(`(?m)^ *([acm]time): 0x([0-9a-f]+):([0-9a-f]+) `)
	statDev   = regexp.MustCompile(`Device major/minor number: (\d+):(\d+)`)
	statFast  = regexp.MustCompile(`Fast link dest: "(.*)"`)
)

// statView reads what stat printed. slow says that it is a symlink whose
// target lies in a block.
func statView(t testing.TB, text string) (v view, slow bool) {
	t.Helper()
	find := func(re *regexp.Regexp) []string {
		m := re.FindStringSubmatch(text)
		if m == nil {
			t.Fatalf("no %s in:\n%s", re, text)
		}
		return m
	}
	head, owner := find(statHead), find(statOwner)
	kind := map[string]uint64{
		"regular": 0o100000, "directory": 0o040000, "symlink": 0o120000, "character special": 0o020000,
		"block special": 0o060000, "FIFO": 0o010000, "socket": 0o140000,
	}[head[1]]
	perm, err := strconv.ParseUint(head[2], 8, 32)
	must(t, err)
	v = view{
		"mode": fmt.Sprintf("%o", kind|perm), "links": find(statLinks)[1],
		"owner": fmt.Sprintf("%d:%d", uint32(number(t, owner[1])), uint32(number(t, owner[2]))), // they are printed signed
	}
	for _, m := range statTime.FindAllStringSubmatch(text, -1) {
		low, err := strconv.ParseUint(m[2], 16, 32)
		must(t, err)
		extra, err := strconv.ParseUint(m[3], 16, 32)
		must(t, err)
		v[m[1]] = stamp(int64(int32(uint32(low)))+int64(extra&3)<<32, int64(extra>>2))
	}
	switch head[1] {
	case "regular":
		v["size"] = owner[3]
	case "character special", "block special":
		m := find(statDev)
		v["device"] = fmt.Sprintf("%d:%d", number(t, m[1]), number(t, m[2]))
	case "symlink":
		m := statFast.FindStringSubmatch(text)
		if slow = m == nil; !slow {
			v["target"] = m[1]
		}
	}
	return v, slow
}

func TestDebugfs(t *testing.T) {
	t.Parallel()
	// It prints the letters of this one's name as numbers.
	plain := slices.DeleteFunc(someXattrs()[:21], func(it item) bool { return it.path == "strange" })
	for name, items := range map[string][]item{
		"hard links": hardLinks()[:40], "special files": specials(), "modes": modes(), "owners": owners(), "times": times(),
		"symlinks": symlinks(1, 58, 59, 60, 61, 4095), "xattrs": plain, "acls": acls(), "sparse": sparseFiles(), "sizes": sizes(),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path, _ := write(t, items, testOptions)
			differ(t, "debugfs", expected(t, items), byDebugfs(t, path, items))
			sameExtents(t, path, items)
		})
	}
}

var extentLine = regexp.MustCompile(`(?m)^ *(\d+)/ *(\d+) +\d+/ *\d+ +(\d+) - +(\d+) +(\d+)`)

// sameExtents compares the maps of files that debugfs prints with ours.
func sameExtents(t *testing.T, path string, items []item) {
	t.Helper()
	im := open(t, path)
	var ask []string
	var want [][]ext4.Segment
	for _, it := range items {
		s, err := im.Lookup(it.path)
		must(t, err)
		if it.body == nil || !s.IsRegular() {
			continue
		}
		var segs []ext4.Segment
		must(t, im.Extents(s, func(g ext4.Segment) error { segs = append(segs, g); return nil }))
		ask, want = append(ask, fmt.Sprintf("ex %q", "/"+it.path)), append(want, segs)
	}
	if ask == nil {
		return
	}
	for i, text := range debugfs(t, path, ask) {
		var got []ext4.Segment
		for _, m := range extentLine.FindAllStringSubmatch(text, -1) {
			if m[1] == m[2] { // a leaf
				from := number(t, m[3])
				got = append(got, ext4.Segment{Offset: from * 4096, Length: (number(t, m[4]) - from + 1) * 4096})
			}
		}
		if !slices.Equal(got, want[i]) {
			t.Errorf("%s: debugfs says %v, our reader %v", ask[i], got, want[i])
		}
	}
}
