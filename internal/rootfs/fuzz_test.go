package rootfs_test

import (
	"fmt"
	"testing"

	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/rootfs"
	"github.com/paddock-dev/paddock/internal/rootfs/tarfile"
)

// refusals are what a layer may be refused for.
var refusals = map[*fault.Code]bool{
	fault.LayerArchive: true, fault.LayerPath: true, fault.LayerRoot: true, fault.LayerLink: true, fault.LayerType: true, fault.LayerXattr: true,
	fault.LayerDuplicate: true, fault.LayerWhiteout: true, fault.TooManyEntries: true, fault.TooMuchMetadata: true,
}

// FuzzLay lays two archives over each other: the tree is sound afterwards, or
// a refusal has one of the known codes.
func FuzzLay(f *testing.F) {
	low := archive(f, dir("usr/bin"), file("usr/bin/sh", "1"), symlink("bin", "usr/bin"), file("d/e/f", ""), hardlink("h", "usr/bin/sh"), device("n", 0, 0))
	f.Add(low, archive(f, file("bin/new", ""), file(".wh.d", ""), file("usr/.wh..wh..opq", ""), hardlink("i", "h"), dir("d"), file("d/.wh.e", "")))
	f.Add(low, archive(f, symlink("a", "b"), symlink("b", "/a/../.."), file("a/x", "")))
	f.Add([]byte("no tar"), low)
	f.Fuzz(func(t *testing.T, a, b []byte) {
		laid, err := rootfs.Lay(rootfs.Limits{Entries: 200, AbsoluteNames: true}, rootfs.Policy{}, a, b)
		if err != nil {
			if code := fault.Of(err); !refusals[code] {
				t.Errorf("error %v", err)
			}
			return
		}
		if err := laid.Sound(); err != nil {
			t.Error(err)
		}
	})
}

// TestMarksCostNoMoreThanTheyHide: a directory is not walked anew for each of
// very many whiteouts.
func TestMarksCostNoMoreThanTheyHide(t *testing.T) {
	const n = 20_000 // squared it would not end in minutes
	var low, high []tarfile.Entry
	for i := range n {
		low = append(low, tarfile.Entry{Name: fmt.Sprintf("d/l%d", i)})
		high = append(high, tarfile.Entry{Name: fmt.Sprintf("d/h%d", i)}, tarfile.Entry{Name: "d/.wh..wh..opq"}, tarfile.Entry{Name: ".wh.d"})
	}
	laid, err := rootfs.LayEntries(low, high)
	if err != nil {
		t.Fatal(err)
	}
	if err := laid.Sound(); err != nil || len(laid.Lines()) != n+1 {
		t.Errorf("%d entries, %v", len(laid.Lines()), err)
	}
}
