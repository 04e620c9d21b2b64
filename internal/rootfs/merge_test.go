package rootfs_test

import (
	"archive/tar"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/rootfs"
)

type stack [][]tar.Header

// longest is a name that a file system just takes.
var longest = strings.Repeat("n", 255)

func (s stack) archives(t *testing.T) [][]byte {
	t.Helper()
	var out [][]byte
	for _, l := range s {
		out = append(out, archive(t, l...))
	}
	return out
}

func TestLayersAreLaidOverEachOther(t *testing.T) {
	for _, c := range []struct {
		name   string
		layers stack
		want   []string
	}{
		{"no layers", stack{}, nil},
		{"an empty layer", stack{{file("a", "1")}, {}, {file("b", "2")}}, []string{"a = 1", "b = 2"}},
		{"a file is replaced", stack{{file("a", "1")}, {file("a", "2")}}, []string{"a = 2"}},
		{"the last of one layer wins", stack{{file("a", "1"), file("a", "2")}}, []string{"a = 2"}},
		{"the same layer twice", stack{{file("a", "1")}, {file("a", "2")}, {file("a", "1")}}, []string{"a = 1"}},
		{"parents that were left out are made", stack{{file("a/b/c", "1")}}, []string{"a/", "a/b/", "a/b/c = 1"}},
		{"leading ./ and / mean the root", stack{{dir("./"), file("./a", "1"), file("/b", "2")}}, []string{"a = 1", "b = 2"}},

		{"a whiteout hides", stack{{file("a/x", "1"), file("a/y", "2")}, {file("a/.wh.x", "")}}, []string{"a/", "a/y = 2"}},
		{"a whiteout hides a tree", stack{{file("a/b/c", "1"), file("d", "1")}, {file(".wh.a", "")}}, []string{"d = 1"}},
		{"a whiteout of nothing is nothing", stack{{file("d", "1")}, {file("q/.wh.a", ""), file(".wh.z", "")}}, []string{"d = 1"}},
		{"a whiteout spares its own layer, after", stack{{file("a", "1")}, {file("a", "2"), file(".wh.a", "")}}, []string{"a = 2"}},
		{"a whiteout spares its own layer, before", stack{{file("a", "1")}, {file(".wh.a", ""), file("a", "2")}}, []string{"a = 2"}},
		{"a whiteout of its own layer's file alone", stack{{file("a", "2"), file(".wh.a", "")}}, []string{"a = 2"}},
		{"a whiteout beside its own layer's tree hides the rest", stack{{file("a/old", "1")}, {file("a/new", "2"), file(".wh.a", "")}}, []string{"a/", "a/new = 2"}},
		{"a whiteout of any type", stack{{file("a", "1"), file("b", "1"), file("c", "1")}, {dir(".wh.a"), symlink(".wh.b", "x"), hardlink(".wh.c", "b")}}, nil},
		{"what was hidden comes back new", stack{{file("a/x", "1")}, {file(".wh.a", "")}, {file("a/y", "2")}}, []string{"a/", "a/y = 2"}},
		{"a whiteout of a name hidden before", stack{{file("a", "1")}, {file(".wh.a", "")}, {file(".wh.a", "")}}, nil},

		{"an opaque directory hides what is below", stack{{file("a/x", "1"), file("a/s/y", "2")}, {dir("a/"), file("a/.wh..wh..opq", ""), file("a/z", "3")}}, []string{"a/", "a/z = 3"}},
		{"opaque after entries spares them", stack{{file("a/x", "1"), file("a/s/y", "2")}, {file("a/s/z", "3"), file("a/.wh..wh..opq", "")}}, []string{"a/", "a/s/", "a/s/z = 3"}},
		{"opaque twice", stack{{file("a/x", "1")}, {file("a/.wh..wh..opq", ""), file("a/y", "2"), file("a/.wh..wh..opq", ""), file("a/z", "3")}}, []string{"a/", "a/y = 2", "a/z = 3"}},
		{"opaque root", stack{{file("a/x", "1"), file("b", "1")}, {file("a/y", "2"), file(".wh..wh..opq", "")}}, []string{"a/", "a/y = 2"}},
		{"opaque of nothing makes nothing", stack{{file("b", "1")}, {file("a/.wh..wh..opq", "")}}, []string{"b = 1"}},
		{"opaque spares what a link of its layer names", stack{{file("a/x", "1")}, {hardlink("a/y", "a/x"), file("a/.wh..wh..opq", "")}}, []string{"a/", "a/y = 1"}},
		{"union metadata is dropped", stack{{file(".wh..wh.aufs", ""), file(".wh..wh.plnk/1.2", ""), file("a", "1")}}, []string{"a = 1"}},

		{"a directory replaces a file", stack{{file("a", "1")}, {dir("a"), file("a/b", "2")}}, []string{"a/", "a/b = 2"}},
		{"and back", stack{{file("a", "1")}, {dir("a"), file("a/b", "2")}, {file("a", "3")}, {dir("a"), file("a/c", "4")}}, []string{"a/", "a/c = 4"}},
		{"a file replaces a tree", stack{{file("a/b/c", "1")}, {file("a", "2")}}, []string{"a = 2"}},
		{"a symlink replaces a tree", stack{{file("a/b/c", "1"), file("d/b/e", "2")}, {symlink("a", "d")}, {file("a/b/c", "3")}}, []string{"a -> d", "d/", "d/b/", "d/b/c = 3", "d/b/e = 2"}},
		{"a directory stays with what it holds", stack{{mode(dir("a"), 0o700), file("a/b", "1")}, {mode(dir("a"), 0o755)}}, []string{"a/", "a/b = 1"}},
		{"a directory replaces a symlink", stack{{dir("b"), symlink("a", "b")}, {dir("a"), file("a/c", "1")}}, []string{"a/", "a/c = 1", "b/"}},
		{"a whiteout and a directory over a file", stack{{file("a", "1")}, {file(".wh.a", ""), file("a/b", "2")}}, []string{"a/", "a/b = 2"}},
		{"pipes and devices", stack{{fifo("p"), device("dev/null", 1, 3)}, {device("p", 5, 1)}}, []string{"dev/", "dev/null a device 1:3", "p a device 5:1"}},

		{"a file in a linked directory lands there", stack{{dir("usr/bin"), symlink("bin", "usr/bin")}, {file("bin/sh", "1")}}, []string{"bin -> usr/bin", "usr/", "usr/bin/", "usr/bin/sh = 1"}},
		{"absolute links begin at the image's root", stack{{dir("run"), symlink("var/run", "/run")}, {file("var/run/pid", "1")}}, []string{"run/", "run/pid = 1", "var/", "var/run -> /run"}},
		{"a link upwards stays inside", stack{{dir("run"), symlink("var/run", "../../../../run")}, {file("var/run/pid", "1")}}, []string{"run/", "run/pid = 1", "var/", "var/run -> ../../../../run"}},
		{"a link to what is not there yet makes it", stack{{symlink("var/run", "/run/deep")}, {file("var/run/pid", "1")}}, []string{"run/", "run/deep/", "run/deep/pid = 1", "var/", "var/run -> /run/deep"}},
		{"a link over what is not there goes back", stack{{symlink("l", "no/../d")}, {file("l/x", "1")}}, []string{"d/", "d/x = 1", "l -> no/../d"}},
		{"links to links", stack{{symlink("a", "b"), symlink("b", "/c/."), dir("c"), symlink("c/up", "..")}, {file("a/up/a/up/x", "1")}}, []string{"a -> b", "b -> /c/.", "c/", "c/up -> ..", "x = 1"}},
		{"a whiteout works through a link", stack{{file("usr/bin/sh", "1"), symlink("bin", "usr/bin")}, {file("bin/.wh.sh", "")}}, []string{"bin -> usr/bin", "usr/", "usr/bin/"}},
		{"opaque works through a link", stack{{file("usr/bin/sh", "1"), symlink("bin", "usr/bin")}, {file("usr/bin/new", "2"), file("bin/.wh..wh..opq", "")}}, []string{"bin -> usr/bin", "usr/", "usr/bin/", "usr/bin/new = 2"}},
		{"a whiteout of the longest name", stack{{file(longest, "1"), file("b", "1")}, {file(".wh."+longest, "")}}, []string{"b = 1"}},
		{"a whiteout hides a link, not what it names", stack{{file("usr/x", "1"), symlink("u", "usr")}, {file(".wh.u", "")}}, []string{"usr/", "usr/x = 1"}},
		{"two ways to one path are one name", stack{{dir("usr"), symlink("u", "usr")}, {file("u/x", "1"), file("usr/x", "2")}}, []string{"u -> usr", "usr/", "usr/x = 2"}},

		{"hard links share", stack{{file("a", "1"), hardlink("b/c", "a")}}, []string{"a x2 = 1", "b/", "b/c x2 = 1"}},
		{"a hard link reaches into a lower layer", stack{{file("a", "1")}, {hardlink("b", "/a")}}, []string{"a x2 = 1", "b x2 = 1"}},
		{"a hard link through a link", stack{{file("usr/a", "1"), symlink("u", "usr")}, {hardlink("b", "u/a")}}, []string{"b x2 = 1", "u -> usr", "usr/", "usr/a x2 = 1"}},
		{"replacing one name leaves the other its content", stack{{file("a", "1"), hardlink("b", "a")}, {file("a", "2")}}, []string{"a = 2", "b = 1"}},
		{"replacing in one layer too", stack{{file("a", "1"), hardlink("b", "a"), file("a", "2")}}, []string{"a = 2", "b = 1"}},
		{"hiding one name leaves the other", stack{{file("a/x", "1"), hardlink("b", "a/x")}, {file(".wh.a", "")}}, []string{"b = 1"}},
		{"a hard link over its twin", stack{{file("a", "1"), hardlink("b", "a")}, {hardlink("b", "a")}}, []string{"a x2 = 1", "b x2 = 1"}},
		{"a hard link replaces a tree", stack{{file("a", "1"), file("d/e", "2")}, {hardlink("d", "a")}}, []string{"a x2 = 1", "d x2 = 1"}},
		{"a hard link to a link is one", stack{{symlink("a", "nowhere"), hardlink("b", "a")}}, []string{"a x2 -> nowhere", "b x2 -> nowhere"}},
		{"a hard link to a device is one", stack{{device("a", 1, 3)}, {hardlink("b", "a")}}, []string{"a x2 a device 1:3", "b x2 a device 1:3"}},
		{"names that are no text", stack{{file("a\xff\xfe", "1"), file("a\n", "2")}}, []string{"a\n = 2", "a\xff\xfe = 1"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			laid, err := rootfs.Lay(rootfs.Limits{AbsoluteNames: true}, rootfs.Policy{}, c.layers.archives(t)...)
			if err != nil {
				t.Fatal(err)
			}
			if got := laid.Lines(); !slices.Equal(got, c.want) {
				t.Errorf("got\n  %s\nwant\n  %s", strings.Join(got, "\n  "), strings.Join(c.want, "\n  "))
			}
		})
	}
}

func TestEntriesKeepWhatTheirHeadersSay(t *testing.T) {
	when := time.Date(2001, 2, 3, 4, 5, 6, 789_000_000, time.UTC)
	own := func(h tar.Header, uid, gid int) tar.Header {
		return with(h, func(h *tar.Header) { h.Uid, h.Gid, h.ModTime, h.Format = uid, gid, when, tar.FormatPAX })
	}
	su := mode(own(file("d/su", "x"), 3_000_000_000, 9), 0o4755)
	for name, value := range map[string]string{"user.note": "kept", "security.capability": "cap", "system.posix_acl_access": "acl", "security.selinux": "s", "trusted.x": "t", "user.overlay.opaque": "y", "btrfs.compression": "zstd"} {
		su = xattr(su, name, value)
	}
	base := []tar.Header{
		mode(own(dir("./"), 0, 0), 0o711),
		xattr(mode(own(dir("d"), 7, 8), 0o1770), "user.d", "1"),
		su,
		xattr(own(symlink("d/l", "su"), 5, 6), "user.l", "1"),
		own(file("implied/x", ""), 0, 0),
	}
	laid, err := rootfs.Lay(rootfs.Limits{}, rootfs.Policy{}, archive(t, base...))
	if err != nil {
		t.Fatal(err)
	}
	const at = " 2001-02-03T04:05:06.789Z"
	want := []string{
		"/ 040711 0:0" + at,
		"/d 041770 7:8" + at + " user.d=31",
		"/d/l 120777 5:6" + at + " -user",
		"/d/su 104755 3000000000:9" + at + " security.capability=636170 system.posix_acl_access=61636c user.note=6b657074 -other -security.selinux -trusted -user.overlay",
		"/implied 040755 0:0 1970-01-01T00:00:00Z",
		"/implied/x 100644 0:0" + at,
	}
	if got := laid.Meta(); !slices.Equal(got, want) {
		t.Errorf("got\n  %s\nwant\n  %s", strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
	laid, err = rootfs.Lay(rootfs.Limits{}, rootfs.Policy{}, archive(t, base...), archive(t, mode(dir("d"), 0o700), hardlink("d/su2", "d/su")))
	if err != nil {
		t.Fatal(err)
	}
	want[1] = "/d 040700 0:0 1970-01-01T00:00:00Z" // its attributes are gone too
	want = slices.Insert(want, 4, strings.Replace(want[3], "/d/su", "/d/su2", 1))
	if got := laid.Meta(); !slices.Equal(got, want) {
		t.Errorf("after a change got\n  %s\nwant\n  %s", strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
}

func TestHostileEntriesAreRefused(t *testing.T) {
	chain := []tar.Header{dir("end")}
	for i := range 41 {
		chain = append(chain, symlink("l"+strings.Repeat("x", i), "l"+strings.Repeat("x", i+1)))
	}
	chain = append(chain, symlink("l"+strings.Repeat("x", 41), "end"), file("l/f", "1"))
	for _, c := range []struct {
		name   string
		layers stack
		limits rootfs.Limits
		policy rootfs.Policy
		want   *fault.Code
		says   string
	}{
		{name: "root as a link", layers: stack{{symlink("./", "/etc")}}, want: fault.LayerRoot},
		{name: "root as a file", layers: stack{{file("/.", "1")}}, want: fault.LayerRoot},
		{name: "root as a hard link", layers: stack{{file("a", "1"), hardlink("./", "a")}}, want: fault.LayerRoot},

		{name: "hard link to nothing", layers: stack{{hardlink("a", "etc/passwd")}}, want: fault.LayerLink, says: `entry "a": it is a hard link to "etc/passwd"`},
		{name: "hard link to a directory", layers: stack{{dir("d"), hardlink("a", "d")}}, want: fault.LayerLink, says: `"a"`},
		{name: "hard link to the root", layers: stack{{hardlink("a", "/")}}, want: fault.LayerLink, says: "root"},
		{name: "hard link to itself", layers: stack{{file("a", "1"), hardlink("a", "./a")}}, want: fault.LayerLink},
		{name: "hard link to itself through a link", layers: stack{{file("d/a", "1"), symlink("l", "d")}, {hardlink("d/a", "l/a")}}, want: fault.LayerLink},
		{name: "hard link into what it replaces", layers: stack{{file("d/a", "1")}, {hardlink("d", "d/a")}}, want: fault.LayerLink},
		{name: "name too long", layers: stack{{file("a/"+longest+"x", "1")}}, want: fault.LayerPath, says: "256 bytes"},
		{name: "name too long, of a directory that was left out", layers: stack{{file(longest+"x/a", "1")}}, want: fault.LayerPath, says: "256 bytes"},
		{name: "name too long, of a target", layers: stack{{symlink("a", longest+longest), file("a/b", "1")}}, want: fault.LayerPath, says: "510 bytes"},
		{name: "whiteout of a name too long", layers: stack{{file(".wh."+longest+"x", "")}}, want: fault.LayerPath},
		{name: "hard link to what is hidden", layers: stack{{file("a", "1")}, {file(".wh.a", ""), hardlink("b", "a")}}, want: fault.LayerLink},
		{name: "hard link ahead of its target", layers: stack{{hardlink("b", "a"), file("a", "1")}}, want: fault.LayerLink},
		{name: "hard link below a file", layers: stack{{file("a", "1"), hardlink("b", "a/x")}}, want: fault.LayerLink},

		{name: "two links in a ring", layers: stack{{symlink("a", "b"), symlink("b", "a"), file("a/x", "1")}}, want: fault.LayerPath, says: `"a/x": over 40 symlinks`},
		{name: "a long way of links", layers: stack{chain}, want: fault.LayerPath, says: "40 symlinks"},
		{name: "a file as a directory", layers: stack{{file("a", "1")}, {file("a/b/c", "2")}}, want: fault.LayerPath, says: `"a", in which it lies`},
		{name: "a link to a file as a directory", layers: stack{{file("f", "1"), symlink("a", "f")}, {file("a/b", "2")}}, want: fault.LayerPath, says: `"f", in which it lies`},
		{name: "a device as a directory", layers: stack{{device("a", 1, 3)}, {file("a/b", "2")}}, want: fault.LayerPath},
		{name: "too deep through links", layers: stack{{symlink("l", "a/a/a/a"), file("l/b", ""), symlink("m", "l/c/c/c")}, {file("m/x", "")}}, limits: rootfs.Limits{Depth: 7}, want: fault.LayerPath, says: `"m/x": with links`},
		{name: "too long through links", layers: stack{{symlink("l", strings.Repeat("a/", 90)), file("l/"+strings.Repeat("b/", 90)+"c", "")}}, limits: rootfs.Limits{PathBytes: 300, Depth: 500}, want: fault.LayerPath, says: "300 bytes"},
		{name: "empty symlink", layers: stack{{symlink("a", "")}}, want: fault.LayerArchive},

		{name: "whiteout of nothing", layers: stack{{file("a/.wh.", "")}}, want: fault.LayerWhiteout, says: `"a/.wh."`},
		{name: "whiteout of its directory", layers: stack{{file("a/.wh..", "")}}, want: fault.LayerWhiteout, says: `"a/.wh.."`},
		{name: "whiteout of the parent", layers: stack{{file("a/.wh...", "")}}, want: fault.LayerWhiteout, says: `"a/.wh..."`},
		{name: "whiteout as a directory", layers: stack{{file(".wh.a/b", "")}}, want: fault.LayerWhiteout, says: `".wh.a/b"`},
		{name: "opaque mark as a directory", layers: stack{{file("a/.wh..wh..opq/b", "")}}, want: fault.LayerWhiteout},
		{name: "opaque mark of the root as a directory", layers: stack{{file(".wh..wh..opq/b", "")}}, want: fault.LayerWhiteout},
		{name: "whiteout below a file", layers: stack{{file("a", "1")}, {file("a/.wh.b", "")}}, want: fault.LayerWhiteout, says: "is no directory"},
		{name: "opaque file", layers: stack{{file("a", "1")}, {file("a/.wh..wh..opq", "")}}, want: fault.LayerWhiteout},

		{name: "file and symlink", layers: stack{{file("a", "1"), symlink("a", "b")}}, want: fault.LayerDuplicate, says: `entry "a": the layer has it as a file and as a symlink`},
		{name: "symlink and directory", layers: stack{{symlink("a", "b"), dir("a")}}, want: fault.LayerDuplicate},
		{name: "directory and file", layers: stack{{dir("a"), file("a", "1")}}, want: fault.LayerDuplicate},
		{name: "directory that nobody named and file", layers: stack{{file("a/b", "1"), file("a", "1")}}, want: fault.LayerDuplicate},
		{name: "lower directory and file", layers: stack{{dir("a")}, {file("a/b", "1"), file("a", "1")}}, want: fault.LayerDuplicate},
		{name: "file and hard link to a symlink", layers: stack{{symlink("s", "x"), file("a", "1"), hardlink("a", "s")}}, want: fault.LayerDuplicate},

		{name: "too many", layers: stack{{file("a", ""), file("b", "")}, {file("c", "")}}, limits: rootfs.Limits{Entries: 2}, want: fault.TooManyEntries, says: `"c": the image has over 2 entries`},
		{name: "too many that nobody named", layers: stack{{file("a/b/c/d/e", "")}}, limits: rootfs.Limits{Entries: 4}, want: fault.TooManyEntries},
		{name: "too many whiteouts", layers: stack{{file(".wh.a", ""), file(".wh.b", "")}}, limits: rootfs.Limits{Entries: 1}, want: fault.TooManyEntries},

		{name: "device", layers: stack{{device("d", 1, 3)}}, policy: rootfs.Policy{Devices: rootfs.Refuse}, want: fault.LayerDevice, says: `entry "d": device 1:3`},
		{name: "overlay whiteout", layers: stack{{device("d", 0, 0)}}, policy: rootfs.Policy{Devices: rootfs.Refuse}, want: fault.LayerDevice},
		{name: "pipe", layers: stack{{fifo("d")}}, policy: rootfs.Policy{FIFOs: rootfs.Refuse}, want: fault.LayerDevice},
		{name: "setuid", layers: stack{{mode(file("d", ""), 0o4755)}}, policy: rootfs.Policy{Setuid: rootfs.Refuse}, want: fault.LayerSetuid, says: "4755"},
		{name: "setgid", layers: stack{{mode(file("d", ""), 0o2755)}}, policy: rootfs.Policy{Setuid: rootfs.Refuse}, want: fault.LayerSetuid},
		{name: "capability", layers: stack{{xattr(file("d", ""), "security.capability", "x")}}, policy: rootfs.Policy{Capabilities: rootfs.Refuse}, want: fault.LayerCapability, says: `"d"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.limits.AbsoluteNames = true
			_, err := rootfs.Lay(c.limits, c.policy, c.layers.archives(t)...)
			if fault.Of(err) != c.want {
				t.Fatalf("error %v, want %s", err, c.want.Name)
			}
			if !strings.Contains(err.Error(), c.says) || !strings.Contains(err.Error(), "layer ") {
				t.Errorf("error %v does not say %q", err, c.says)
			}
		})
	}
}

// TestPolicyLetsHonestEntriesPass: what is refused above is taken by default.
func TestPolicyLetsHonestEntriesPass(t *testing.T) {
	layer := archive(t, device("d", 1, 3), fifo("f"), mode(file("su", ""), 0o6755), xattr(file("c", ""), "security.capability", "x"), mode(dir("mail"), 0o2775))
	if _, err := rootfs.Lay(rootfs.Limits{}, rootfs.Policy{}, layer); err != nil {
		t.Error(err)
	}
	strict := rootfs.Policy{Devices: rootfs.Refuse, FIFOs: rootfs.Refuse, Setuid: rootfs.Refuse, Capabilities: rootfs.Refuse}
	if _, err := rootfs.Lay(rootfs.Limits{}, strict, archive(t, mode(dir("mail"), 0o2775), file("x", ""))); err != nil {
		t.Error(err)
	}
}
