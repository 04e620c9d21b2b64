package rootfs_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// stored lets containers/storage unpack the stack: the unpacker of podman,
// buildah and CRI-O, which skopeo drives. Its driver "vfs" keeps each layer as
// a whole tree.
func stored(ctx context.Context, work string, s stack) (unpacked, error) {
	image, graph := filepath.Join(work, "skopeo"), filepath.Join(work, "skopeo-graph")
	defer os.RemoveAll(graph)
	defer os.RemoveAll(image)
	if err := s.writeLayout(image, bySkopeo); err != nil {
		return unpacked{}, err
	}
	u := unpacked{begun: time.Now().Add(-time.Minute)}
	store := fmt.Sprintf("containers-storage:[vfs@%s+%s]image:latest", graph, filepath.Join(graph, "run"))
	if _, err := run(ctx, "skopeo", "--insecure-policy", "copy", "oci:"+image+":latest", store); err != nil {
		return u, err
	}
	root, err := topLayer(graph)
	if err != nil {
		return u, err
	}
	nodes, err := kernelNodes(root)
	u.tree = grouped(nodes)
	return u, err
}

// topLayer returns the directory of the layer that no other builds upon.
func topLayer(graph string) (string, error) {
	dirs, err := filepath.Glob(filepath.Join(graph, "vfs", "dir", "*"))
	if err != nil || len(dirs) == 0 {
		return "", fmt.Errorf("no layer in %s: %w", graph, err)
	}
	newest, at := "", time.Time{}
	for _, d := range dirs {
		info, err := os.Stat(filepath.Join(graph, "vfs-layers", filepath.Base(d)+".tar-split.gz"))
		if err != nil {
			return "", err
		}
		if info.ModTime().After(at) {
			newest, at = d, info.ModTime()
		}
	}
	return newest, nil
}

// storageExcuses returns what a second opinion is not asked for. This unpacker
// changes what is no part of the semantics of layers: times before 1970 and
// after 2262, user ids over 65535 now and then, attributes that a later entry
// drops, default ACLs; its trees of single layers share no hard links; and its
// root has a mode of its own.
func storageExcuses(m *model) func(path, word string) bool {
	return func(path, word string) bool {
		mode := word == "mode" && path != "" && !m.names[path].implied && m.names[path].xattrs[aclAccess] == ""
		return !mode && word != "size" && word != "sum" && word != "target" && word != "device"
	}
}
