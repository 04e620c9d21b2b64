package rootfs_test

import (
	"slices"
	"time"
)

// shrink returns the smallest stack near s of which fails still says true. It
// tries for so long at most.
func shrink(s stack, most time.Duration, fails func(stack) bool) stack {
	until := time.Now().Add(most)
	still := func(t stack) bool {
		if _, err := laid(t); err != nil || time.Now().After(until) {
			return false
		}
		return fails(t)
	}
	for before := -1; before != weight(s) && time.Now().Before(until); {
		before = weight(s)
		s = dropLayers(s, still)
		s = dropEntries(s, still)
		s = simplify(s, still)
	}
	return s
}

// weight counts what shrink can take away.
func weight(s stack) int {
	n := 0
	for _, l := range s {
		n++
		for _, e := range l.entries {
			n += 10 + len(e.name) + len(e.link) + len(e.lead) + 3*len(e.xattrs) + len(e.body.segs) + int(min(e.body.size, 3))
		}
	}
	return n
}

func dropLayers(s stack, still func(stack) bool) stack {
	for i := len(s) - 1; i >= 0 && len(s) > 1; i-- {
		if t := slices.Delete(slices.Clone(s), i, i+1); still(t) {
			s = t
		}
	}
	return s
}

// dropEntries takes halves away first, then less and less.
func dropEntries(s stack, still func(stack) bool) stack {
	for i := range s {
		for size := max(1, len(s[i].entries)/2); size > 0; size /= 2 {
			for at := len(s[i].entries) - size; at >= 0; at -= size {
				t := slices.Clone(s)
				t[i].entries = slices.Delete(slices.Clone(s[i].entries), at, at+size)
				if still(t) {
					s = t
				}
				at = min(at, len(s[i].entries))
			}
		}
	}
	return s
}

// simplify makes what is left as plain as it may be.
func simplify(s stack, still func(stack) bool) stack {
	changes := []func(*entry){
		func(e *entry) { e.xattrs = nil },
		func(e *entry) { e.lead = "" },
		func(e *entry) { e.body.sparse, e.body.segs = dense, nil },
		func(e *entry) { e.body.size, e.body.sparse, e.body.segs = min(e.body.size, 1), dense, nil },
		func(e *entry) { e.mode = 0o755 },
		func(e *entry) { e.uid, e.gid = 0, 0 },
		func(e *entry) { e.sec, e.nsec = 1e9, 0 },
		func(e *entry) { e.dialect = pax },
	}
	for i := range s {
		for k := range s[i].entries {
			for _, change := range changes {
				t := slices.Clone(s)
				t[i].entries = slices.Clone(s[i].entries)
				e := &t[i].entries[k]
				if change(e); e.body.sparse == gnuOld {
					e.dialect = gnu
				}
				if e.String() != s[i].entries[k].String() && still(t) {
					s = t
				}
			}
		}
	}
	return s
}
