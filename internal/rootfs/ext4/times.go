package ext4

import "time"

// The times that an inode can hold. Others are moved to the nearer of these,
// as the kernel does.
var (
	MinTime = time.Unix(-1<<31, 0).UTC()
	MaxTime = time.Unix(1<<34-1<<31-1, 999_999_999).UTC()
)

// Times of these 68 years look like what old kernels wrote for the years before
// 1970, and e2fsck calls each an error. They are moved to the last moment
// before.
var (
	doubtFrom = time.Unix(5<<31, 0).UTC()       // 2310-04-04
	doubtEnd  = time.Unix(5<<31+1<<31, 0).UTC() // 2378-04-22
)

// stamp is a time as an inode holds it: the lower word is the seconds, the
// upper one has two more bits of seconds below the nanoseconds.
type stamp uint64

func stampOf(t time.Time) stamp {
	switch {
	case t.Before(MinTime):
		t = MinTime
	case t.After(MaxTime):
		t = MaxTime
	case !t.Before(doubtFrom) && t.Before(doubtEnd):
		t = doubtFrom.Add(-1)
	}
	sec := t.Unix()
	epoch := uint64(sec-int64(int32(sec))) >> 32 & 3
	return stamp(uint64(uint32(sec)) | (uint64(t.Nanosecond())<<2|epoch)<<32)
}

func (s stamp) low() uint32   { return uint32(s) }
func (s stamp) extra() uint32 { return uint32(s >> 32) }

func (s stamp) time() time.Time {
	sec := int64(int32(s.low())) + int64(s.extra()&3)<<32
	return time.Unix(sec, int64(s.extra()>>2)).UTC()
}

func stampFrom(low, extra uint32) stamp { return stamp(low) | stamp(extra)<<32 }
