//go:build !race

package ext4_test

// manyNames is how many names the largest image of the tests has, and
// crowdNames how many of them lie in one directory.
const (
	manyNames  = 1_000_000
	crowdNames = 200_000
	raceBuild  = false
)

// subdirs are numbers of subdirectories around what a link count can hold.
var subdirs = []int{64997, 64998, 64999}
