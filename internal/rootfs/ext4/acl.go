package ext4

import "errors"

// POSIX ACLs have two forms. getxattr(2) gives version 2: 8 bytes an entry.
// On disk it is version 1: entries without a user or group have 4 bytes.
const (
	aclUserObj  = 0x01
	aclUser     = 0x02
	aclGroupObj = 0x04
	aclGroup    = 0x08
	aclMask     = 0x10
	aclOther    = 0x20
	aclNoID     = 0xFFFFFFFF
)

var errACL = errors.New("not a POSIX ACL that the kernel would take")

// storeACL turns the form of getxattr into the form on disk. For an access ACL
// it also returns the mode that setting it leaves; one that says no more than
// a mode can is not stored.
func storeACL(v []byte, mode uint16, access bool) ([]byte, uint16, error) {
	if len(v) < 4 || le.Uint32(v) != 2 || (len(v)-4)%8 != 0 {
		return nil, 0, errACL
	}
	if len(v) == 4 { // an empty one removes what is there
		return nil, mode, nil
	}
	out := le.AppendUint32(nil, 1)
	perms := map[uint16]uint16{}
	stage, named := 0, false
	for v = v[4:]; len(v) > 0; v = v[8:] {
		tag, perm, id := le.Uint16(v), le.Uint16(v[2:]), le.Uint32(v[4:])
		// Entries come in the order of their tags; those with an id may repeat.
		next := map[uint16]int{aclUserObj: 1, aclUser: 2, aclGroupObj: 3, aclGroup: 4, aclMask: 5, aclOther: 6}[tag]
		repeats := tag == aclUser || tag == aclGroup
		if next == 0 || perm > 7 || next < stage || next == stage && !repeats || repeats && id == aclNoID {
			return nil, 0, errACL
		}
		stage = next
		named = named || repeats
		perms[tag] = perm
		out = le.AppendUint16(le.AppendUint16(out, tag), perm)
		if repeats {
			out = le.AppendUint32(out, id)
		}
	}
	_, user := perms[aclUserObj]
	group, hasGroup := perms[aclGroupObj]
	mask, masked := perms[aclMask]
	if !user || !hasGroup || stage != 6 || named && !masked {
		return nil, 0, errACL
	}
	if !access {
		return out, mode, nil
	}
	if masked {
		group = mask
	}
	mode = mode&^0o777 | perms[aclUserObj]<<6 | group<<3 | perms[aclOther]
	if !masked {
		return nil, mode, nil
	}
	return out, mode, nil
}

// loadACL turns the form on disk into the form of getxattr.
func loadACL(v []byte) ([]byte, error) {
	if len(v) < 4 || le.Uint32(v) != 1 {
		return nil, errACL
	}
	out := le.AppendUint32(nil, 2)
	for v = v[4:]; len(v) > 0; {
		if len(v) < 4 {
			return nil, errACL
		}
		tag, id, size := le.Uint16(v), uint32(aclNoID), 4
		if tag == aclUser || tag == aclGroup {
			if len(v) < 8 {
				return nil, errACL
			}
			id, size = le.Uint32(v[4:]), 8
		}
		out = append(out, v[:4]...)
		out = le.AppendUint32(out, id)
		v = v[size:]
	}
	return out, nil
}
