package ext4_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path"
	"strings"
	"testing"
	"time"

	"github.com/paddock-dev/paddock/internal/rootfs/ext4"
)

// randomTree makes a tree of everything that an image can hold.
func randomTree(r *rand.Rand, n int) []item {
	items := []item{{path: "", meta: randomMeta(r, 0o040000)}}
	dirs, files := []string{""}, []string{}
	taken := map[string]bool{"lost+found": true}
	pick := func(list []string) string { return list[r.IntN(len(list))] }
	crowd := "" // one directory gets many names
	for len(items) < n {
		parent := pick(dirs)
		if crowd != "" && r.IntN(3) == 0 {
			parent = crowd
		}
		p := strings.TrimPrefix(path.Join(parent, randomName(r)), "/")
		if taken[p] {
			continue
		}
		taken[p] = true
		it := item{path: p}
		switch k := r.IntN(20); {
		case k < 4:
			it.meta = randomMeta(r, 0o040000)
			dirs = append(dirs, p)
			if crowd == "" {
				crowd = p
			}
		case k < 6:
			it.meta = randomMeta(r, 0o120000)
			it.meta.Target = strings.Repeat("t", 1+r.IntN(80)*r.IntN(52))
		case k == 6:
			it.meta = randomMeta(r, []uint32{0o010000, 0o140000}[r.IntN(2)])
		case k == 7:
			it.meta = randomMeta(r, []uint32{0o020000, 0o060000}[r.IntN(2)])
			it.meta.Major, it.meta.Minor = r.Uint32N(4096), r.Uint32N(1<<20)
		case k < 10 && len(files) > 0:
			it.link = pick(files)
		case k == 10:
			it = randomSparse(r, p)
			it.meta = randomMeta(r, 0o100000)
		default:
			it.meta = randomMeta(r, 0o100000)
			it.size = int64(r.IntN(30000)) * int64(r.IntN(4))
			it.body = pattern(r.Uint64(), it.size)
		}
		if it.link == "" && it.meta.Mode&0o170000 != 0o040000 {
			files = append(files, p)
		}
		items = append(items, it)
	}
	return items
}

func randomName(r *rand.Rand) string {
	n := 1 + r.IntN(20)
	if r.IntN(20) == 0 {
		n = 1 + r.IntN(255)
	}
	b := make([]byte, n)
	for i := range b {
		for b[i] == 0 || b[i] == '/' || b[i] == '.' {
			b[i] = byte(r.IntN(256))
			if r.IntN(3) > 0 {
				b[i] = 'a' + byte(r.IntN(26))
			}
		}
	}
	return string(b)
}

func randomMeta(r *rand.Rand, kind uint32) ext4.Meta {
	at := func() time.Time { return time.Unix(r.Int64N(1<<34)-1<<31, r.Int64N(1e9)) }
	m := ext4.Meta{Mode: kind | r.Uint32N(0o10000), UID: r.Uint32(), GID: r.Uint32N(100000), Mtime: at(), Atime: at(), Ctime: at()}
	if r.IntN(4) == 0 {
		names := []string{"trusted.a", "trusted.bb", "security.test", "trusted." + strings.Repeat("n", r.IntN(200)+1)}
		for _, name := range names[:1+r.IntN(len(names))] {
			size := []int{0, 3, 20, 60, 300, 2000, 4000, 9000}[r.IntN(8)]
			m.Xattrs = append(m.Xattrs, attr(name, strings.Repeat(string(rune('a'+r.IntN(3))), size)))
		}
	}
	return m
}

func randomSparse(r *rand.Rand, p string) item {
	var segs []ext4.Segment
	at := int64(0)
	for range r.IntN(4) * r.IntN(80) {
		at += int64(r.IntN(7000))
		n := int64(r.IntN(5000))
		segs = append(segs, ext4.Segment{Offset: at, Length: n})
		at += n
	}
	return sparseFile(p, at+int64(r.IntN(50000)), segs...)
}

func TestRandomTrees(t *testing.T) {
	t.Parallel()
	seeds := []uint64{1, 2, 3, 4, 5, 6}
	if s := os.Getenv("EXT4_SEED"); s != "" {
		var seed uint64
		if _, err := fmt.Sscan(s, &seed); err != nil {
			t.Fatal(err)
		}
		seeds = []uint64{seed}
	}
	for _, seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			r := rand.New(rand.NewPCG(seed, 1))
			items := randomTree(r, 600)
			o := testOptions
			r.Shuffle(16, func(i, j int) { o.HashSeed[i], o.HashSeed[j] = o.HashSeed[j], o.HashSeed[i] })
			o.ElideZeros = seed%2 == 0
			path, _ := write(t, items, o)
			check(t, path, items)
		})
	}
}
