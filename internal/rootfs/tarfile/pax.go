package tarfile

import (
	"bytes"

	"github.com/paddock-dev/paddock/internal/fault"
)

// The records that are given.
const (
	hasUID = 1 << iota
	hasGID
	hasMtime
	hasSize
	hasMajor
	hasMinor
)

// The extended headers that stand before an entry.
const (
	kindPAX = 1 << iota
	kindName
	kindLink
)

// ownership is what a global header may say.
type ownership struct {
	set              uint8
	uid, gid         int64
	mtime, mtimeNano int64
}

// records is what the extended headers before an entry say of it. The bytes
// are those of Reader.ext.
type records struct {
	ownership
	kinds              uint8
	size, major, minor int64
	path, linkpath     []byte // nil: not given
	longName, longLink []byte // of the GNU format
	gnu                gnuRecords
	xattrs             []xattr
	xattrBytes         int
}

func (o *ownership) has(bit uint8) bool { return o.set&bit != 0 }

// extension takes h if it is an extended header, and what it holds.
func (r *Reader) extension(h *header) (bool, error) {
	var kind uint8
	switch h.typeflag() {
	case 'x':
		kind = kindPAX
	case 'L':
		kind = kindName
	case 'K':
		kind = kindLink
	case 'g':
		if r.rec.kinds != 0 {
			return false, flawed(fault.LayerArchive, "a global header stands between an extended header and its entry")
		}
		// It is no part of the entry: it has the whole limit for itself.
		defer r.begin()
	default:
		return false, nil
	}
	if r.rec.kinds&kind != 0 {
		return false, flawed(fault.LayerArchive, "two extended headers of the kind %q stand before one entry", h.typeflag())
	}
	r.rec.kinds |= kind
	data, err := r.extended(h)
	if err != nil {
		return false, err
	}
	switch kind {
	case kindPAX:
		return true, r.rec.parse(data, false, &r.limits)
	case kindName, kindLink:
		return true, r.rec.long(kind, text(data))
	}
	err = r.rec.parse(data, true, &r.limits)
	r.global = r.rec.ownership
	return true, err
}

// long takes a GNU long name or target.
func (rec *records) long(kind uint8, value []byte) error {
	if len(value) == 0 {
		return flawed(fault.LayerArchive, "an empty long name stands before it")
	}
	if kind == kindName {
		rec.longName = value
	} else {
		rec.longLink = value
	}
	return nil
}

// extended reads the data of an extended header behind what ext holds. It
// grows with what was read, so a header alone costs nothing.
func (r *Reader) extended(h *header) ([]byte, error) {
	n, ok := number(h.size())
	if !ok || n < 0 {
		return nil, flawed(fault.LayerArchive, "the size of its extended header is no number: %q", h.size())
	}
	if n > r.limits.HeaderBytes-int64(len(r.ext)) {
		return nil, flawed(fault.LayerArchive, "its extended headers have more than %d bytes", r.limits.HeaderBytes)
	}
	start := len(r.ext)
	for left := int(n); left > 0; {
		part := min(left, max(4096, len(r.ext)))
		r.ext = append(r.ext, make([]byte, part)...)
		if _, err := r.fill(r.ext[len(r.ext)-part:]); err != nil {
			return nil, r.broken(err)
		}
		left -= part
	}
	r.pad = padding(n)
	return r.ext[start:len(r.ext):len(r.ext)], nil
}

// parse takes the records of one extended header.
func (rec *records) parse(data []byte, global bool, l *Limits) error {
	for len(data) > 0 {
		key, value, n := record(data)
		if n == 0 {
			return flawed(fault.LayerArchive, "a malformed PAX record: %.60q", data)
		}
		data = data[n:]
		if err := rec.take(key, value, global, l); err != nil {
			return err
		}
	}
	return nil
}

// record cuts the first record, "LENGTH KEY=VALUE\n", off data. Its length is
// 0 if there is none.
func record(data []byte) (key, value []byte, length int) {
	i, n := 0, 0
	for ; i < len(data) && i < 10 && data[i]-'0' <= 9; i++ {
		n = n*10 + int(data[i]-'0')
	}
	if i == 0 || i == len(data) || data[i] != ' ' || n < i+2 || n > len(data) || data[n-1] != '\n' {
		return nil, nil, 0
	}
	key, value, found := bytes.Cut(data[i+1:n-1], []byte{'='})
	if !found || len(key) == 0 {
		return nil, nil, 0
	}
	return key, value, n
}

// take uses one record. An empty value takes an earlier one back.
func (rec *records) take(key, value []byte, global bool, l *Limits) error {
	switch string(key) {
	case "uid":
		return rec.number(key, value, hasUID, &rec.uid)
	case "gid":
		return rec.number(key, value, hasGID, &rec.gid)
	case "mtime":
		return rec.time(value)
	}
	used, err := rec.own(key, value, l)
	if !used && bytes.IndexByte(key, 0) >= 0 {
		return flawed(fault.LayerArchive, "a PAX record with a NUL in its key: %.200q", key)
	}
	if used && global {
		return flawed(fault.LayerArchive, "a global header before it has a record that is one entry's own: %.200q", key)
	}
	return err
}

// own uses a record that says something of one entry.
func (rec *records) own(key, value []byte, l *Limits) (used bool, err error) {
	switch string(key) {
	case "path":
		return true, setName(&rec.path, key, value)
	case "linkpath":
		return true, setName(&rec.linkpath, key, value)
	case "size":
		return true, rec.number(key, value, hasSize, &rec.size)
	case "SCHILY.devmajor":
		return true, rec.number(key, value, hasMajor, &rec.major)
	case "SCHILY.devminor":
		return true, rec.number(key, value, hasMinor, &rec.minor)
	}
	if name, ok := bytes.CutPrefix(key, []byte("SCHILY.xattr.")); ok {
		return true, rec.schily(name, value, l)
	}
	if name, ok := bytes.CutPrefix(key, []byte("LIBARCHIVE.xattr.")); ok {
		return true, rec.libarchive(name, value, l)
	}
	if name, ok := bytes.CutPrefix(key, []byte("GNU.sparse.")); ok {
		return true, rec.gnu.take(name, value)
	}
	return false, nil
}

func (o *ownership) number(key, value []byte, bit uint8, n *int64) error {
	o.set &^= bit
	if len(value) == 0 {
		return nil
	}
	v, ok := decimal(value)
	if !ok {
		return flawed(fault.LayerArchive, "its PAX record %s is no number: %.60q", key, value)
	}
	o.set |= bit
	*n = v
	return nil
}

// setName keeps a name, which may have any byte but NUL.
func setName(to *[]byte, key, value []byte) error {
	if bytes.IndexByte(value, 0) >= 0 {
		return flawed(fault.LayerPath, "its PAX record %s has a NUL: %.200q", key, value)
	}
	*to = nil
	if len(value) > 0 {
		*to = value
	}
	return nil
}

// time reads "[-]SECONDS[.FRACTION]". Digits behind the nanoseconds are cut.
func (o *ownership) time(value []byte) error {
	o.set &^= hasMtime
	if len(value) == 0 {
		return nil
	}
	whole, fraction, _ := bytes.Cut(value, []byte{'.'})
	whole, negative := bytes.CutPrefix(whole, []byte{'-'})
	sec, ok := decimal(whole)
	nano := int64(0)
	for i := range max(9, len(fraction)) {
		digit := byte('0')
		if i < len(fraction) {
			digit = fraction[i]
		}
		ok = ok && digit-'0' <= 9
		if i < 9 {
			nano = nano*10 + int64(digit-'0')
		}
	}
	if !ok {
		return flawed(fault.LayerArchive, "its PAX record mtime is no time: %.60q", value)
	}
	if negative {
		sec, nano = -sec, -nano
	}
	o.set |= hasMtime
	o.mtime, o.mtimeNano = sec, nano
	return nil
}
