package tarfile

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"slices"

	"github.com/paddock-dev/paddock/internal/fault"
)

// maxXattrName is the length of an extended attribute's name on Linux.
const maxXattrName = 255

// xattr is an attribute and which of the two forms it was read in.
type xattr struct {
	name, value []byte
	forms       uint8
}

const (
	formSchily = 1 << iota
	formLibarchive
)

// schily takes a record SCHILY.xattr.NAME, whose value is the attribute's.
func (rec *records) schily(name, value []byte, l *Limits) error {
	return rec.attribute(xattr{name, value, formSchily}, l)
}

// libarchive takes a record LIBARCHIVE.xattr.NAME: %XX stands for a byte of the
// name, the value is in base 64, with or without its padding.
func (rec *records) libarchive(name, value []byte, l *Limits) error {
	plain, ok := unescape(name)
	if !ok {
		return flawed(fault.LayerXattr, "the name of an extended attribute is malformed: %.200q", name)
	}
	// Its values cannot be longer than the limit by more than this encoding is.
	value = bytes.TrimRight(value, "=")
	decoded, err := base64.RawStdEncoding.AppendDecode(nil, value)
	if err != nil {
		return flawed(fault.LayerXattr, "the value of the extended attribute %.200q is no base 64", plain)
	}
	return rec.attribute(xattr{plain, decoded, formLibarchive}, l)
}

func unescape(name []byte) ([]byte, bool) {
	if bytes.IndexByte(name, '%') < 0 {
		return name, true
	}
	out := make([]byte, 0, len(name))
	for i := 0; i < len(name); i++ {
		c := name[i]
		if c == '%' {
			if i+2 >= len(name) {
				return nil, false
			}
			high, ok1 := hex(name[i+1])
			low, ok2 := hex(name[i+2])
			if !ok1 || !ok2 {
				return nil, false
			}
			c, i = high<<4|low, i+2
		}
		out = append(out, c)
	}
	return out, true
}

func hex(c byte) (byte, bool) {
	switch {
	case c >= '0' && c <= '9':
		return c - '0', true
	case c|0x20 >= 'a' && c|0x20 <= 'f':
		return c | 0x20 - 'a' + 10, true
	}
	return 0, false
}

// attribute keeps a. An archiver may write each attribute once in each form.
func (rec *records) attribute(a xattr, l *Limits) error {
	if len(a.name) == 0 || len(a.name) > maxXattrName || bytes.IndexByte(a.name, 0) >= 0 {
		return flawed(fault.LayerXattr, "an extended attribute's name has %d bytes, not 1 to %d, or a NUL: %.200q", len(a.name), maxXattrName, a.name)
	}
	for i := range rec.xattrs {
		b := &rec.xattrs[i]
		if !bytes.Equal(a.name, b.name) {
			continue
		}
		if b.forms&a.forms != 0 || !bytes.Equal(a.value, b.value) {
			return flawed(fault.LayerXattr, "it has the extended attribute %.200q twice", a.name)
		}
		b.forms |= a.forms
		return nil
	}
	if len(rec.xattrs) == l.Xattrs {
		return flawed(fault.LayerXattr, "it has more than %d extended attributes", l.Xattrs)
	}
	if rec.xattrBytes += len(a.name) + len(a.value); rec.xattrBytes > l.XattrBytes {
		return flawed(fault.LayerXattr, "its extended attributes have more than %d bytes", l.XattrBytes)
	}
	rec.xattrs = append(rec.xattrs, a)
	return nil
}

// sorted returns copies of the attributes.
func (rec *records) sorted() []Xattr {
	if len(rec.xattrs) == 0 {
		return nil
	}
	list := make([]Xattr, len(rec.xattrs))
	for i, a := range rec.xattrs {
		list[i] = Xattr{string(a.name), bytes.Clone(a.value)}
	}
	slices.SortFunc(list, func(a, b Xattr) int { return cmp.Compare(a.Name, b.Name) })
	return list
}
