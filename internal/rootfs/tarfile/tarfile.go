package tarfile

import "time"

// Limits bounds what an archive may ask for. A field that is not above zero
// takes its default.
type Limits struct {
	// Path is the length of a whole name, in bytes, after cleaning: 4096.
	Path int
	// Depth is how many parts a name may have: 128.
	Depth int
	// Name is the length of one part, in bytes: 255.
	Name int
	// Xattrs is how many extended attributes an entry may have: 64.
	Xattrs int
	// XattrBytes is the length of their names and values together: 64 KiB.
	XattrBytes int
	// HeaderBytes is how long the extended headers and long names of an entry
	// may be together: 1 MiB.
	HeaderBytes int64
	// Segments is how many ranges the map of a sparse file may have: 1<<20.
	Segments int
	// AbsoluteNames drops leading slashes of names and of hard links' targets.
	// Without it they are refused.
	AbsoluteNames bool
}

func (l Limits) withDefaults() Limits {
	for _, f := range []struct {
		field *int
		value int
	}{{&l.Path, 4096}, {&l.Depth, 128}, {&l.Name, 255}, {&l.Xattrs, 64}, {&l.XattrBytes, 64 << 10}, {&l.Segments, 1 << 20}} {
		if *f.field <= 0 {
			*f.field = f.value
		}
	}
	if l.HeaderBytes <= 0 {
		l.HeaderBytes = 1 << 20
	}
	return l
}

// Type is what an entry is.
type Type uint8

// The types of entries.
const (
	Regular Type = iota
	Link         // a hard link
	Symlink
	CharDevice
	BlockDevice
	Directory
	FIFO
)

// String returns the type's name, for messages.
func (t Type) String() string {
	names := [...]string{"regular file", "hard link", "symbolic link", "character device", "block device", "directory", "FIFO"}
	if int(t) >= len(names) {
		return "unknown type"
	}
	return names[t]
}

// Segment is a range of a sparse file that is stored.
type Segment struct{ Offset, Length int64 }

// Xattr is an extended attribute.
type Xattr struct {
	Name  string
	Value []byte
}

// Entry is one entry of an archive.
type Entry struct {
	// Name is relative and has no empty part, "." or "..". The root is "", and
	// a Directory. The bytes are the archive's; they may be no UTF-8.
	Name string
	Type Type
	// Linkname is a Symlink's target as it is, never empty; or the Name of what
	// a Link leads to, never the root's.
	Linkname string
	Mode     uint32 // the bits of 07777
	UID, GID uint32
	ModTime  time.Time // UTC, nanoseconds
	Size     int64     // of the file, holes included
	// Segments is nil for a file that is not sparse; else what is stored of it:
	// in order, apart from each other, none of them empty.
	Segments     []Segment
	Major, Minor uint32 // of a device
	// Xattrs is sorted by name; each name is there once. A Link has none.
	Xattrs []Xattr
}
