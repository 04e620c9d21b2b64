package rootfs

import (
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/rootfs/source"
	"github.com/paddock-dev/paddock/internal/rootfs/tarfile"
)

// Limits bound what an image may hold. A zero field takes its default, which
// images that people use pass.
type Limits struct {
	Entries   int64 // of all layers, and directories that no entry names; 2 million
	FileBytes int64 // stored bytes of files of all layers; 64 GiB
	Depth     int   // names in one path; 128
	PathBytes int   // of one path; 4096
	// AbsoluteNames lets entries begin with a slash, which is dropped.
	AbsoluteNames bool
	// Source bounds manifest, config and compression.
	Source source.Limits
}

const (
	defaultEntries = 2_000_000
	defaultBytes   = 64 << 30
	defaultDepth   = 128
	defaultPath    = 4096

	// What a tree can number and a path can have, whatever the limits say.
	mostEntries = 200_000_000
	mostDepth   = 1024
	mostPath    = 4096
	mostName    = 255
)

// filled returns l with its defaults.
func (l Limits) filled() Limits {
	set := func(v *int64, def, most int64) {
		if *v <= 0 {
			*v = def
		}
		*v = min(*v, most)
	}
	depth, path := int64(l.Depth), int64(l.PathBytes)
	set(&l.Entries, defaultEntries, mostEntries)
	set(&l.FileBytes, defaultBytes, 1<<60)
	set(&depth, defaultDepth, mostDepth)
	set(&path, defaultPath, mostPath)
	l.Depth, l.PathBytes = int(depth), int(path)
	return l
}

// archive returns the limits of one layer's archive. The longest name can be
// hidden too, so the mark before it is not counted.
func (l Limits) archive() tarfile.Limits {
	return tarfile.Limits{Name: mostName + len(markPrefix), Path: l.PathBytes, Depth: l.Depth, AbsoluteNames: l.AbsoluteNames}
}

// count takes one more entry, or answers fault.TooManyEntries.
func (t *tree) count() error {
	if t.entries++; t.entries > t.limits.Entries {
		return fault.New(fault.TooManyEntries, "the image has over %d entries; the limit is image_limits.entries", t.limits.Entries)
	}
	return nil
}
