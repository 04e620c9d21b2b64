package ext4

import (
	"cmp"
	"slices"
)

// Xattrs returns the extended attributes of an inode, by name, as getxattr(2)
// would. It answers fault.Ext4Unsupported for more than 1 MiB of values.
func (im *Image) Xattrs(s Stat) ([]Xattr, error) {
	var out []Xattr
	left := maxXattrTotal
	if len(s.extra) >= 4 && le.Uint32(s.extra) == xattrMagic {
		b := s.extra[4:]
		if err := im.parseXattrs(s, b, b, &left, &out); err != nil {
			return nil, err
		}
	}
	if s.acl != 0 {
		b, err := im.readXattrBlock(s)
		if err != nil {
			return nil, err
		}
		if err := im.parseXattrs(s, b[32:], b, &left, &out); err != nil {
			return nil, err
		}
	}
	slices.SortFunc(out, func(a, b Xattr) int { return cmp.Compare(a.Name, b.Name) })
	for i := 1; i < len(out); i++ {
		if out[i].Name == out[i-1].Name {
			return nil, damaged("inode %d: xattr %.200q is there twice", s.Inode, out[i].Name)
		}
	}
	return out, nil
}

func (im *Image) readXattrBlock(s Stat) ([]byte, error) {
	b := make([]byte, blockSize)
	if err := im.readBlock(s.acl, b); err != nil {
		return nil, err
	}
	if le.Uint32(b) != xattrMagic || le.Uint32(b[8:]) != 1 || le.Uint32(b[4:]) == 0 {
		return nil, damaged("inode %d: its xattr block has no xattr header", s.Inode)
	}
	if im.csum && xattrSum(im.seed, uint64(s.acl), b) != le.Uint32(b[16:]) {
		return nil, damaged("inode %d: its xattr block has a wrong checksum", s.Inode)
	}
	return b, nil
}

// rawXattr is an entry as it is stored.
type rawXattr struct {
	index byte
	name  string
	value []byte
	inode uint32
	size  uint32
}

// eachXattr calls fn for the entries of b. Offsets of values count in values.
func eachXattr(s Stat, b, values []byte, fn func(rawXattr) error) error {
	for len(b) >= 4 && le.Uint32(b) != 0 {
		n := 0
		if len(b) >= 16 {
			n = (16 + int(b[0]) + 3) &^ 3
		}
		if n == 0 || n > len(b) {
			return damaged("inode %d: an xattr entry leaves its place", s.Inode)
		}
		x := rawXattr{index: b[1], name: string(b[16 : 16+int(b[0])]), inode: le.Uint32(b[4:]), size: le.Uint32(b[8:])}
		if x.size > maxXattrValue {
			return damaged("inode %d: an xattr of %d bytes", s.Inode, x.size)
		}
		if x.inode == 0 {
			at := int(le.Uint16(b[2:]))
			if at > len(values) || int(x.size) > len(values)-at {
				return damaged("inode %d: an xattr value leaves its place", s.Inode)
			}
			x.value = values[at : at+int(x.size)]
		}
		if err := fn(x); err != nil {
			return err
		}
		b = b[n:]
	}
	if len(b) < 4 {
		return damaged("inode %d: xattr entries without an end", s.Inode)
	}
	return nil
}

// parseXattrs appends what b holds to out, of values at most left bytes.
func (im *Image) parseXattrs(s Stat, b, values []byte, left *int, out *[]Xattr) error {
	return eachXattr(s, b, values, func(x rawXattr) error {
		if *left -= int(x.size); *left < 0 {
			return unsupported("inode %d: xattrs of more than %d bytes", s.Inode, maxXattrTotal)
		}
		if x.inode != 0 {
			value, err := im.largeXattr(s, x)
			if err != nil {
				return err
			}
			x.value = value
		}
		for _, p := range prefixes {
			if p.index != x.index {
				continue
			}
			value := slices.Clone(x.value)
			if p.index == 2 || p.index == 3 {
				var err error
				if value, err = loadACL(x.value); err != nil || x.name != "" {
					return damaged("inode %d: its ACL cannot be read", s.Inode)
				}
			}
			*out = append(*out, Xattr{p.name + x.name, value})
			return nil
		}
		return damaged("inode %d: an xattr of the unknown class %d", s.Inode, x.index)
	})
}

// largeXattr reads a value that has its own inode.
func (im *Image) largeXattr(s Stat, x rawXattr) ([]byte, error) {
	holder, err := im.Stat(x.inode)
	if err != nil {
		return nil, err
	}
	if holder.flags&flagEAInode == 0 || !holder.IsRegular() || holder.Size != int64(x.size) {
		return nil, damaged("inode %d: the value of an xattr is not in inode %d", s.Inode, x.inode)
	}
	c, err := im.Contents(holder)
	if err != nil {
		return nil, err
	}
	value := make([]byte, x.size)
	if err := readFull(c, value, 0); err != nil {
		return nil, err
	}
	if im.csum && crc(im.seed, value) != holder.hash {
		return nil, damaged("inode %d: the value of an xattr has a wrong checksum", s.Inode)
	}
	return value, nil
}
