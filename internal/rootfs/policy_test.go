package rootfs_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/rootfs"
	"github.com/paddock-dev/paddock/internal/rootfs/tarfile"
)

const capValue = "\x01\x00\x00\x02\x00\x20\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"

func TestThePolicyDecidesWhatTheImageHas(t *testing.T) {
	layer := archive(t,
		device("null", 1, 3), hardlink("null2", "null"), device("white", 0, 0), fifo("pipe"),
		mode(file("su", ""), 0o6755), mode(dir("mail"), 0o2775),
		xattr(xattr(file("ping", ""), "security.capability", capValue), "user.note", "1"),
		xattr(file("labelled", ""), "security.selinux", "x"),
	)
	modes := func(b built) string {
		var out []string
		for _, path := range []string{"null", "null2", "white", "pipe", "su", "mail", "ping"} {
			s, err := b.im.Lookup(path)
			if err != nil {
				continue
			}
			line := fmt.Sprintf("%s %o", path, s.Mode)
			attrs, err := b.im.Xattrs(s)
			if err != nil {
				t.Fatal(err)
			}
			for _, a := range attrs {
				line += " " + a.Name
			}
			out = append(out, line)
		}
		return strings.Join(out, ", ")
	}
	for _, c := range []struct {
		name   string
		policy rootfs.Policy
		want   string
		counts rootfs.Counts
	}{
		{
			"by default",
			rootfs.Policy{},
			"pipe 10644, su 106755, mail 42775, ping 100644 security.capability user.note",
			rootfs.Counts{FIFOs: 1, Setuid: 1, Capabilities: 1, Xattrs: 2, Stripped: rootfs.Stripped{Devices: 2, OverlayWhiteouts: 1}},
		},
		{
			"all",
			rootfs.Policy{Devices: rootfs.Allow},
			"null 20644, null2 20644, pipe 10644, su 106755, mail 42775, ping 100644 security.capability user.note",
			rootfs.Counts{Devices: 1, HardLinks: 1, FIFOs: 1, Setuid: 1, Capabilities: 1, Xattrs: 2, Stripped: rootfs.Stripped{OverlayWhiteouts: 1}},
		},
		{
			"nothing",
			rootfs.Policy{FIFOs: rootfs.Strip, Setuid: rootfs.Strip, Capabilities: rootfs.Strip},
			"su 100755, mail 42775, ping 100644 user.note",
			rootfs.Counts{Xattrs: 1, Stripped: rootfs.Stripped{Devices: 2, OverlayWhiteouts: 1, FIFOs: 1, Setuid: 1, Capabilities: 1}},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := plain(t, layer)
			p.Policy = c.policy
			b := make1(t, p)
			if got := modes(b); got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
			got := b.Receipt.Counts
			if got.Stripped.Xattrs["security.selinux"] != 1 || len(got.Stripped.Xattrs) != 1 {
				t.Errorf("stripped %v", got.Stripped.Xattrs)
			}
			got.Stripped.Xattrs = nil
			got.Names, got.Files, got.Directories, got.Symlinks, got.FileBytes, got.BlockBytes = 0, 0, 0, 0, 0, 0
			if fmt.Sprint(got) != fmt.Sprint(c.counts) {
				t.Errorf("counts %+v, want %+v", got, c.counts)
			}
		})
	}
}

func TestUnknownRulesAreRefused(t *testing.T) {
	for _, p := range []rootfs.Policy{{Devices: "x"}, {FIFOs: "Allow"}, {Setuid: "no"}, {Capabilities: " "}} {
		if fault.Of(p.Check()) != fault.InvalidInput {
			t.Errorf("%+v is taken", p)
		}
	}
	if err := (rootfs.Policy{}).Check(); err != nil {
		t.Error(err)
	}
}

// TestHostileTargetsAreBounded, which are no contents and so count as none.
func TestHostileTargetsAreBounded(t *testing.T) {
	all := make([]tarfile.Entry, 9000)
	for i := range all {
		all[i] = tarfile.Entry{Name: fmt.Sprintf("f%d", i), Type: tarfile.Symlink, Linkname: strings.Repeat("t", 4000)}
	}
	if _, err := rootfs.LayEntries(all); fault.Of(err) != fault.TooMuchMetadata || !strings.Contains(err.Error(), `entry "f`) {
		t.Errorf("error %v", err)
	}
	if _, err := rootfs.LayEntries(all[:8000]); err != nil {
		t.Error(err)
	}
}

// TestHostileAttributesAreBounded: sets that differ take memory that no number
// of entries may raise without end.
func TestHostileAttributesAreBounded(t *testing.T) {
	for name, size := range map[string]int{"large": 60_000, "small": 1} {
		var all []tarfile.Entry
		for i := range 18 << 20 / (size + 256) {
			value := fmt.Appendf(nil, "%d %s", i, strings.Repeat("y", size))
			all = append(all, tarfile.Entry{Name: fmt.Sprintf("f%d", i), Xattrs: []tarfile.Xattr{{Name: "user.x", Value: value}}})
		}
		if _, err := rootfs.LayEntries(all); fault.Of(err) != fault.TooMuchMetadata {
			t.Errorf("%s: error %v", name, err)
		}
	}
	equal := make([]tarfile.Entry, 20_000)
	for i := range equal {
		equal[i] = tarfile.Entry{Name: fmt.Sprintf("f%d", i), Xattrs: []tarfile.Xattr{{Name: "user.x", Value: []byte(strings.Repeat("y", 1000))}, {Name: "security.selinux", Value: fmt.Append(nil, i)}}}
	}
	if _, err := rootfs.LayEntries(equal); err != nil {
		t.Errorf("equal ones: %v", err)
	}
}

func TestSumsOfAnImage(t *testing.T) {
	sum := func(b []byte) string { s := sha256.Sum256(b); return hex.EncodeToString(s[:]) }
	x := bytes.Repeat([]byte("x"), rootfs.ChunkSize)
	zero := make([]byte, rootfs.ChunkSize)
	for name, c := range map[string]struct {
		parts [][]byte
		want  []string
	}{
		"nothing":     {nil, nil},
		"one":         {[][]byte{x}, []string{sum(x)}},
		"zeros":       {[][]byte{zero, zero, zero}, []string{"zeros*3"}},
		"between":     {[][]byte{x, zero, zero, x, zero}, []string{sum(x), "zeros*2", sum(x), "zeros*1"}},
		"a short end": {[][]byte{zero, x, x[:100]}, []string{"zeros*1", sum(x), sum(x[:100])}},
		"short zeros": {[][]byte{x, zero[:100]}, []string{sum(x), "zeros*1"}},
	} {
		all := bytes.Join(c.parts, nil)
		got, err := rootfs.SumImage(t.Context(), bytes.NewReader(all), int64(len(all)))
		if err != nil || got.SHA256 != sum(all) || got.Size != int64(len(all)) || !slices.Equal(got.Chunks, c.want) {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
	if _, err := rootfs.SumImage(t.Context(), bytes.NewReader(x), int64(len(x))+1); err == nil {
		t.Error("a file that is too short has sums")
	}
}
