package rootfs_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// unpacked is what umoci makes of a stack.
type unpacked struct {
	tree  tree
	begun time.Time // no entry has a time near it
}

// umoci unpacks the stack below work, and leaves nothing there.
func umoci(ctx context.Context, work string, s stack) (unpacked, error) {
	return umociOf(ctx, work, s, byUmoci)
}

func umociOf(ctx context.Context, work string, s stack, written unpacker) (unpacked, error) {
	image, root := filepath.Join(work, "umoci"), filepath.Join(work, "umoci-root")
	defer os.RemoveAll(root)
	defer os.RemoveAll(image)
	if err := s.writeLayout(image, written); err != nil {
		return unpacked{}, err
	}
	u := unpacked{begun: time.Now().Add(-time.Minute)}
	if _, err := run(ctx, "umoci", "raw", "unpack", "--image", image+":latest", root); err != nil {
		return u, err
	}
	nodes, err := kernelNodes(root)
	u.tree = grouped(nodes)
	return u, err
}

// umociBelief is what umoci 0.4.7 gets wrong of an entry alone:
//   - it counts times in nanoseconds in 64 bits, so years before 1678 and after
//     2262 come out as others;
//   - it leaves out security.selinux and trusted.overlay.opaque.
var umociBelief = believer{
	time:  func(t time.Time) time.Time { return time.Unix(0, t.UnixNano()) },
	keeps: func(name string, _ kind) bool { return name != "security.selinux" && name != "trusted.overlay.opaque" },
}

// excuses returns what umoci leaves as the kernel made it, at its own time: it
// makes parents that no entry described like any new directory, so they inherit
// from the one above; and a directory that gets such a child, or loses a
// grandchild to a whiteout, gets the time of that.
func (u unpacked) excuses(m *model) func(path, word string) bool {
	return func(path, word string) bool {
		n := m.names[path]
		if n == nil || n.kind != dir {
			return false
		}
		if word != "mtime" && (!n.implied || word == "mode" && !strings.HasPrefix(u.tree[path]["mode"], "004")) {
			return false
		}
		var sec int64
		if _, err := fmt.Sscanf(u.tree[path]["mtime"], "%d.", &sec); err != nil {
			return false
		}
		return !time.Unix(sec, 0).Before(u.begun)
	}
}

// against holds an unpacker's tree against the model's.
func (u unpacked) against(who string, m *model, b believer, excused func(path, word string) bool) ([]difference, error) {
	nodes, err := m.nodes(b)
	if err != nil {
		return nil, err
	}
	return differences(who, grouped(nodes), u.tree, excused), nil
}
