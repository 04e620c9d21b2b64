package ext4

import "math/bits"

// hashEnd is the one hash that no name may have: readers use it for the end of
// a directory.
const hashEnd = 0xFFFFFFFE

// nameHash returns the half-MD4 hash of a name with unsigned characters: major
// orders the htree, minor breaks ties.
func nameHash(seed *[4]uint32, name []byte) (major, minor uint32) {
	state := [4]uint32{0x67452301, 0xEFCDAB89, 0x98BADCFE, 0x10325476}
	if *seed != ([4]uint32{}) {
		state = *seed
	}
	var in [8]uint32
	for len(name) > 0 {
		hashInput(&in, name)
		halfMD4(&state, &in)
		name = name[min(len(name), 32):]
	}
	major = state[1] &^ 1
	if major == hashEnd {
		major = hashEnd - 2
	}
	return major, state[2]
}

// hashInput packs up to 32 bytes of name; what is missing is filled with the
// length.
func hashInput(in *[8]uint32, name []byte) {
	pad := uint32(len(name)) | uint32(len(name))<<8
	pad |= pad << 16
	name = name[:min(len(name), 32)]
	for i := range in {
		v := pad
		for _, c := range name[min(i*4, len(name)):min(i*4+4, len(name))] {
			v = uint32(c) + v<<8
		}
		in[i] = v
	}
}

// halfMD4 mixes eight words into the state, in three rounds of eight steps.
func halfMD4(state *[4]uint32, in *[8]uint32) {
	order := [3][8]int{{0, 1, 2, 3, 4, 5, 6, 7}, {1, 3, 5, 7, 0, 2, 4, 6}, {3, 7, 2, 6, 1, 5, 0, 4}}
	shift := [3][4]int{{3, 7, 11, 19}, {3, 5, 9, 13}, {3, 9, 11, 15}}
	constant := [3]uint32{0, 0x5A827999, 0x6ED9EBA1}
	s := *state
	for r := range 3 {
		for i, k := range order[r] {
			var f uint32
			switch b, c, d := s[1], s[2], s[3]; r {
			case 0:
				f = d ^ (b & (c ^ d))
			case 1:
				f = (b & c) + ((b ^ c) & d)
			default:
				f = b ^ c ^ d
			}
			a := bits.RotateLeft32(s[0]+f+in[k]+constant[r], shift[r][i%4])
			// The next step's first register is this one's last.
			s = [4]uint32{s[3], a, s[1], s[2]}
		}
	}
	for i := range state {
		state[i] += s[i]
	}
}
