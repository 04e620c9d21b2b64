package ext4_test

import (
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"testing"

	"github.com/paddock-dev/paddock/test/backports"
)

// What the system's e2fsck finds no fault with, the newest finds none with
// either: newer ones look for more. E2FSPROGS lets all tests use it.
func TestNewestE2fsck(t *testing.T) {
	t.Parallel()
	newest := filepath.Join(backports.E2fsprogs(t), "e2fsck")
	trees := goldenTrees()
	trees["several"] = shortTree()
	trees["deep"] = deep(300)
	trees["names"] = names()
	trees["owners"] = owners()
	for seed := range uint64(3) {
		trees[fmt.Sprint("random-", seed)] = randomTree(rand.New(rand.NewPCG(seed+100, 1)), 500)
	}
	for name, items := range trees {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o, seed := testOptions, uint32(99)
			o.ElideZeros, o.ChecksumSeed = true, &seed
			plain, _ := write(t, items, testOptions)
			fsckBy(t, newest, plain)
			other, _ := write(t, items, o)
			fsckBy(t, newest, other)
		})
	}
}
