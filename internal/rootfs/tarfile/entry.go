package tarfile

import (
	"bytes"
	"math"
	"time"

	"github.com/paddock-dev/paddock/internal/fault"
)

const (
	maxTarget = 4095 // bytes of a symbolic link's target, on Linux
	maxTime   = 1 << 56
)

// entry makes the entry of its header h and of the extended headers before it.
func (r *Reader) entry(h *header) (*Entry, error) {
	name, err := r.fullName(h)
	if err != nil {
		return nil, err
	}
	r.subject = name
	e := &Entry{}
	if e.Type, err = typeOf(h, name); err != nil {
		return nil, err
	}
	if err := r.numbers(h, e); err != nil {
		return nil, err
	}
	if err := r.sparse(h, e); err != nil {
		return nil, err
	}
	clean, err := r.clean("its name", fault.LayerPath, name)
	if err != nil {
		return nil, err
	}
	if e.Name = string(clean); e.Name == "" && e.Type != Directory {
		return nil, flawed(fault.LayerRoot, "the root is a %s", e.Type)
	}
	if e.Linkname, err = r.linkname(h, e.Type); err != nil {
		return nil, err
	}
	if e.Type != Link {
		e.Xattrs = r.rec.sorted()
	}
	return e, nil
}

// typeOf reads the typeflag.
func typeOf(h *header, name []byte) (Type, error) {
	slash := len(name) > 0 && name[len(name)-1] == '/'
	switch c := h.typeflag(); c {
	case 0:
		if slash {
			return Directory, nil
		}
		return Regular, nil
	case '0', '7', 'S':
		if slash {
			return 0, flawed(fault.LayerArchive, "its name ends in a slash, and it is no directory")
		}
		return Regular, nil
	case '1', '2', '3', '4', '5', '6':
		return Link + Type(c-'1'), nil
	default:
		return 0, flawed(fault.LayerType, "it has the typeflag %q", c)
	}
}

// numbers reads everything of the header that is a number.
func (r *Reader) numbers(h *header, e *Entry) error {
	rec := &r.rec
	mode, ok := number(h.mode())
	if !ok {
		return flawed(fault.LayerArchive, "its mode is no number: %q", h.mode())
	}
	e.Mode = uint32(mode & 0o7777)
	var err error
	if e.UID, err = id("uid", h.uid(), rec.has(hasUID), rec.uid); err != nil {
		return err
	}
	if e.GID, err = id("gid", h.gid(), rec.has(hasGID), rec.gid); err != nil {
		return err
	}
	if e.ModTime, err = rec.modTime(h); err != nil {
		return err
	}
	if e.Type == CharDevice || e.Type == BlockDevice {
		if !h.posix() && !h.gnu() {
			return flawed(fault.LayerArchive, "a %s in the format V7, which has no device numbers", e.Type)
		}
		if e.Major, err = id("major number", h.major(), rec.has(hasMajor), rec.major); err != nil {
			return err
		}
		if e.Minor, err = id("minor number", h.minor(), rec.has(hasMinor), rec.minor); err != nil {
			return err
		}
	}
	if h.gnu() && !(gnuTime(h.gnuAtime()) && gnuTime(h.gnuCtime())) {
		return flawed(fault.LayerArchive, "its access or change time is no number")
	}
	return r.sizes(h, e)
}

func gnuTime(b []byte) bool {
	if b[0] == 0 { // nobody reads it
		return true
	}
	_, ok := number(b)
	return ok
}

// id is a number of 32 bits, of the field b or of a record.
func id(what string, b []byte, recorded bool, n int64) (uint32, error) {
	if !recorded {
		var ok bool
		if n, ok = number(b); !ok {
			return 0, flawed(fault.LayerArchive, "its %s is no number: %q", what, b)
		}
	}
	if n < 0 || n > math.MaxUint32 {
		return 0, flawed(fault.LayerArchive, "its %s is %d, which is not in 0 to %d", what, n, uint32(math.MaxUint32))
	}
	return uint32(n), nil
}

func (rec *records) modTime(h *header) (time.Time, error) {
	sec, nsec := rec.mtime, rec.mtimeNano
	if !rec.has(hasMtime) {
		var ok bool
		if sec, ok = number(h.mtime()); !ok {
			return time.Time{}, flawed(fault.LayerArchive, "its time is no number: %q", h.mtime())
		}
		nsec = 0
	}
	if sec > maxTime || sec < -maxTime {
		return time.Time{}, flawed(fault.LayerArchive, "its time is %d seconds from 1970", sec)
	}
	return time.Unix(sec, nsec).UTC(), nil
}

// sizes reads how much of the entry is stored.
func (r *Reader) sizes(h *header, e *Entry) error {
	n, err := r.size(h)
	if err != nil {
		return err
	}
	if n != 0 && e.Type != Regular {
		return flawed(fault.LayerArchive, "a %s with a size of %d bytes", e.Type, n)
	}
	e.Size, r.stored = n, n
	r.left, r.pad = n, padding(n)
	return nil
}

// size reads how many bytes follow the header.
func (r *Reader) size(h *header) (int64, error) {
	n, ok := r.rec.size, r.rec.has(hasSize)
	if !ok {
		if n, ok = number(h.size()); !ok {
			return 0, flawed(fault.LayerArchive, "its size is no number: %q", h.size())
		}
	}
	if n < 0 || n > maxSize {
		return 0, flawed(fault.LayerArchive, "its size is %d, which is not in 0 to %d", n, int64(maxSize))
	}
	return n, nil
}

func padding(n int64) int { return int(-n & (blockSize - 1)) }

// fullName is the name as the archive has it, of the header or of what came
// before it. It is valid until the next one.
func (r *Reader) fullName(h *header) ([]byte, error) {
	rec := &r.rec
	switch {
	case rec.kinds&kindName != 0:
		if rec.path != nil || rec.gnu.name != nil {
			return nil, flawed(fault.LayerArchive, "it has both the long name %.200q and a PAX path", rec.longName)
		}
		return rec.longName, nil
	case rec.gnu.name != nil:
		return rec.gnu.name, nil
	case rec.path != nil:
		return rec.path, nil
	}
	var prefix []byte
	switch {
	case h.star():
		prefix = text(h.starPrefix())
	case h.posix():
		prefix = text(h.prefix())
	}
	if len(prefix) == 0 {
		return text(h.name()), nil
	}
	r.ext = append(append(append(r.ext, prefix...), '/'), text(h.name())...)
	return r.ext[len(r.ext)-len(prefix)-1-len(text(h.name())):], nil
}

// clean returns name without empty parts and dots, until its next call.
func (r *Reader) clean(what string, code *fault.Code, name []byte) ([]byte, error) {
	l := &r.limits
	if len(name) == 0 {
		return nil, flawed(code, "%s is empty", what)
	}
	if name[0] == '/' && !l.AbsoluteNames && len(bytes.TrimLeft(name, "/")) > 0 {
		return nil, flawed(code, "%s is absolute: %.200q", what, name)
	}
	out := r.scratch[:0]
	for depth := 0; len(name) > 0; {
		part := name
		if i := bytes.IndexByte(name, '/'); i >= 0 {
			part, name = name[:i], name[i+1:]
		} else {
			name = nil
		}
		if len(part) == 0 || len(part) == 1 && part[0] == '.' {
			continue
		}
		depth++
		switch {
		case string(part) == "..":
			return nil, flawed(code, `%s has a part ".."`, what)
		case len(part) > l.Name:
			return nil, flawed(code, "%s has a part of %d bytes, %.200q; the limit is %d", what, len(part), part, l.Name)
		case depth > l.Depth:
			return nil, flawed(code, "%s has more than %d parts", what, l.Depth)
		}
		if len(out) > 0 {
			out = append(out, '/')
		}
		if out = append(out, part...); len(out) > l.Path {
			return nil, flawed(code, "%s is longer than %d bytes", what, l.Path)
		}
	}
	r.scratch = out
	return out, nil
}

// linkname is what a link or symbolic link leads to.
func (r *Reader) linkname(h *header, t Type) (string, error) {
	target := text(h.linkname())
	switch {
	case t != Link && t != Symlink:
		return "", nil
	case r.rec.kinds&kindLink != 0:
		if r.rec.linkpath != nil {
			return "", flawed(fault.LayerArchive, "it has both the long target %.200q and a PAX linkpath", r.rec.longLink)
		}
		target = r.rec.longLink
	case r.rec.linkpath != nil:
		target = r.rec.linkpath
	}
	if t == Symlink {
		if len(target) == 0 || len(target) > maxTarget {
			return "", flawed(fault.LayerArchive, "a symbolic link with a target of %d bytes, which is not in 1 to %d", len(target), maxTarget)
		}
		return string(target), nil
	}
	target, err := r.clean("its target", fault.LayerLink, target)
	if err != nil {
		return "", err
	}
	if len(target) == 0 {
		return "", flawed(fault.LayerLink, "a hard link to the root")
	}
	return string(target), nil
}
