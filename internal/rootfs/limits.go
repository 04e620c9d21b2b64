package rootfs

import (
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/platform/config"
	"github.com/paddock-dev/paddock/internal/rootfs/source"
	"github.com/paddock-dev/paddock/internal/rootfs/tarfile"
)

// Limits bound what an image may hold. A zero field takes its default, which
// images that people use pass.
type Limits struct {
	Entries     int64 // of all layers, and directories that no entry names; 2 million
	FileBytes   int64 // stored bytes of files of all layers; 64 GiB
	Depth       int   // names in one path; 128
	PathBytes   int   // of one path; 4096
	Xattrs      int   // extended attributes of one entry; 64
	XattrBytes  int   // of the names and values of those; 64 KiB
	HeaderBytes int64 // of the extended headers of one entry; 1 MiB
	// AbsoluteNames lets entries begin with a slash, which is dropped.
	AbsoluteNames bool
	// Source bounds manifest, config and compression.
	Source source.Limits
}

// LimitsOf returns the limits that a configuration names.
func LimitsOf(c config.ImageLimits) Limits {
	return Limits{
		Entries: int64(c.Entries), FileBytes: int64(c.FileMiB) << 20, Depth: c.Depth, PathBytes: c.PathBytes,
		Xattrs: c.Xattrs, XattrBytes: c.XattrKiB << 10, HeaderBytes: int64(c.HeaderKiB) << 10, AbsoluteNames: c.AbsoluteNames,
		Source: source.Limits{
			Layers: c.Layers, Manifest: int64(c.ManifestKiB) << 10, Config: int64(c.ConfigKiB) << 10,
			ConfigItems: c.ConfigItems, ConfigBytes: int64(c.ConfigListKiB) << 10,
			Compressed: int64(c.CompressedMiB) << 20, Window: int64(c.WindowMiB) << 20, Ratio: int64(c.Ratio), Growth: int64(c.GrowthMiB) << 20,
		},
	}
}

const (
	defaultEntries = 2_000_000
	defaultBytes   = 64 << 30
	defaultDepth   = 128
	defaultPath    = 4096

	defaultXattrs     = 64
	defaultXattrBytes = 64 << 10
	defaultHeader     = 1 << 20

	// What a tree can number and a path can have, whatever the limits say.
	mostEntries = 200_000_000
	mostDepth   = 1024
	mostPath    = 4096
	mostName    = 255

	mostXattrs     = 4096
	mostXattrBytes = 1 << 20 // what ext4 holds
	mostHeader     = 64 << 20
)

// filled returns l with its defaults.
func (l Limits) filled() Limits {
	set(&l.Entries, defaultEntries, mostEntries)
	set(&l.FileBytes, defaultBytes, 1<<60)
	set(&l.Depth, defaultDepth, mostDepth)
	set(&l.PathBytes, defaultPath, mostPath)
	set(&l.Xattrs, defaultXattrs, mostXattrs)
	set(&l.XattrBytes, defaultXattrBytes, mostXattrBytes)
	set(&l.HeaderBytes, defaultHeader, mostHeader)
	return l
}

func set[T int | int64](field *T, def, most T) {
	if *field <= 0 {
		*field = def
	}
	*field = min(*field, most)
}

// archive returns the limits of one layer's archive. The longest name can be
// hidden too, so the mark before it is not counted.
func (l Limits) archive() tarfile.Limits {
	return tarfile.Limits{Name: mostName + len(markPrefix), Path: l.PathBytes, Depth: l.Depth, Xattrs: l.Xattrs, XattrBytes: l.XattrBytes, HeaderBytes: l.HeaderBytes, AbsoluteNames: l.AbsoluteNames}
}

// count takes one more entry, or answers fault.TooManyEntries.
func (t *tree) count() error {
	if t.entries++; t.entries > t.limits.Entries {
		return fault.New(fault.TooManyEntries, "the image has over %d entries; the limit is image_limits.entries", t.limits.Entries)
	}
	return nil
}
