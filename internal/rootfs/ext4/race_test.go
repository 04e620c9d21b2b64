//go:build race

package ext4_test

// The race detector makes everything slow, so the largest images are smaller:
// the crowded directory still has an htree of two levels.
const (
	manyNames  = 100_000
	crowdNames = 45_000
	raceBuild  = true
)

var subdirs = []int{64999}
