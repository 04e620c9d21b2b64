package ext4_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/paddock-dev/paddock/internal/rootfs/ext4"
)

var update = flag.Bool("update", false, "write the golden digests again")

func digest(t testing.TB, path string) string {
	t.Helper()
	f, err := os.Open(path)
	must(t, err)
	defer f.Close()
	h := sha256.New()
	_, err = io.Copy(h, f)
	must(t, err)
	return hex.EncodeToString(h.Sum(nil))
}

// golden trees are fixed for ever: a change of their digests is a change of
// the bytes of every template, and needs a new format name in rootfs.
func goldenTrees() map[string][]item {
	all := []item{{path: "", meta: ext4.Meta{Mode: 0o040755, Mtime: noon, UID: 1}}}
	for i, items := range [][]item{hardLinks(), specials(), modes(), times(), symlinks(1, 59, 60, 4095), someXattrs(), acls(), sparseFiles(), sizes(), directories()} {
		all = append(all, below(fmt.Sprintf("t%d", i), items)...)
	}
	return map[string][]item{"nothing": nil, "one": {file("a", 0o644, "a")}, "everything": all}
}

func TestGolden(t *testing.T) {
	t.Parallel()
	for name, items := range goldenTrees() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path, _ := write(t, items, testOptions)
			got := digest(t, path) + "\n"
			want := filepath.Join("testdata", "golden", name+".sha256")
			if *update {
				must(t, os.MkdirAll(filepath.Dir(want), 0o755))
				must(t, os.WriteFile(want, []byte(got), 0o644))
			}
			text, err := os.ReadFile(want)
			must(t, err)
			if got != string(text) {
				t.Errorf("the image is %s, was %s", got, text)
			}
		})
	}
}

// shortTree has something of everything.
func shortTree() []item {
	items := []item{{path: "", meta: ext4.Meta{Mode: 0o041755, Mtime: noon, GID: 2}}}
	large := func(it item) bool { return it.size > 5<<20 }
	for i, part := range [][]item{hardLinks()[:40], specials(), symlinks(1, 60, 4095), someXattrs()[:80], acls(), slices.DeleteFunc(sparseFiles(), large), sizes(), directoriesOf(0, 1, 130, 300)} {
		items = append(items, below(fmt.Sprintf("t%d", i), part)...)
	}
	return items
}

// below puts a tree into a directory.
func below(top string, items []item) []item {
	out := []item{dir(top)}
	for _, it := range items {
		it.path = top + "/" + it.path
		if it.link != "" {
			it.link = top + "/" + it.link
		}
		out = append(out, it)
	}
	return out
}

// One tree, written in every way that the interface allows.
func TestSameBytes(t *testing.T) {
	t.Parallel()
	items := shortTree()
	for _, elide := range []bool{false, true} {
		o := testOptions
		o.ElideZeros = elide
		first, _ := write(t, items, o)
		fsck(t, first)
		want := digest(t, first)
		for name, how := range ways {
			t.Run(fmt.Sprintf("%s/elide=%t", name, elide), func(t *testing.T) {
				t.Parallel()
				path := filepath.Join(t.TempDir(), "image")
				f, err := os.Create(path)
				must(t, err)
				defer f.Close()
				w, err := ext4.New(f, o)
				must(t, err)
				how(t, w, items)
				_, err = w.Finish()
				must(t, err)
				if got := digest(t, path); got != want {
					t.Errorf("other bytes: compare %s", first)
				}
			})
		}
	}
}

var ways = map[string]func(t *testing.T, w *ext4.Writer, items []item){
	"tree first": func(t *testing.T, w *ext4.Writer, items []item) {
		datas := allotAll(t, w, items)
		addAll(t, w, items, datas)
		_, err := w.Layout()
		must(t, err)
		stream(t, w, items, datas, inOrder(len(items)))
	},
	"backwards": func(t *testing.T, w *ext4.Writer, items []item) {
		datas := allotAll(t, w, items)
		order := inOrder(len(items))
		for i := range order {
			order[i] = len(items) - 1 - i
		}
		stream(t, w, items, datas, order)
		addAll(t, w, items, datas)
	},
	"shuffled in parallel": func(t *testing.T, w *ext4.Writer, items []item) {
		datas := allotAll(t, w, items)
		order := rand.New(rand.NewPCG(1, 2)).Perm(len(items))
		var wg sync.WaitGroup
		for part := range 7 {
			wg.Go(func() {
				stream(t, w, items, datas, order[len(order)*part/7:len(order)*(part+1)/7])
			})
		}
		addAll(t, w, items, datas)
		_, err := w.Layout()
		must(t, err)
		wg.Wait()
	},
	"while it is allotted": func(t *testing.T, w *ext4.Writer, items []item) {
		type job struct {
			it item
			d  ext4.Data
		}
		jobs, datas := make(chan job), make([]ext4.Data, len(items))
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() {
				s := w.Stream()
				for j := range jobs {
					must(t, s.Copy(j.d, j.it.stored()))
				}
				must(t, s.Close())
			})
		}
		for i, it := range items {
			if it.body != nil {
				d, err := w.Allot(it.size, it.segs)
				must(t, err)
				datas[i] = d
				jobs <- job{it, d}
			}
		}
		close(jobs)
		addAll(t, w, items, datas)
		wg.Wait()
	},
	"small writes": func(t *testing.T, w *ext4.Writer, items []item) {
		datas := allotAll(t, w, items)
		addAll(t, w, items, datas)
		s := w.Stream()
		for i, it := range items {
			if it.body == nil {
				continue
			}
			must(t, s.Begin(datas[i]))
			_, err := io.CopyBuffer(struct{ io.Writer }{s}, struct{ io.Reader }{it.stored()}, make([]byte, 777))
			must(t, err)
			must(t, s.End())
		}
		must(t, s.Close())
	},
	"by WriteAt": func(t *testing.T, w *ext4.Writer, items []item) {
		datas := allotAll(t, w, items)
		addAll(t, w, items, datas)
		var wg sync.WaitGroup
		busy := make(chan struct{}, 4)
		for i, it := range items {
			if it.body == nil {
				continue
			}
			body, segs := readerAt(t, it.body()), joined(it)
			for _, g := range segs {
				for at := g.Offset; at < g.Offset+g.Length; {
					// Parts end at multiples of 12 KiB, as ElideZeros asks for whole blocks.
					end := min((at/12288+1)*12288, g.Offset+g.Length)
					part, from := make([]byte, end-at), at
					must(t, second(io.ReadFull(io.NewSectionReader(body, at, end-at), part)))
					if g.Offset%4096 != 0 && from == g.Offset {
						must(t, w.WriteAt(datas[i], part, from))
					} else {
						busy <- struct{}{}
						wg.Go(func() {
							must(t, w.WriteAt(datas[i], part, from))
							<-busy
						})
					}
					at = end
				}
			}
		}
		wg.Wait()
	},
}

func readerAt(t testing.TB, r io.Reader) io.ReaderAt {
	t.Helper()
	if at, ok := r.(io.ReaderAt); ok {
		return at
	}
	b, err := io.ReadAll(r)
	must(t, err)
	return bytes.NewReader(b)
}

func joined(it item) []ext4.Segment {
	if it.segs == nil {
		return []ext4.Segment{{Offset: 0, Length: it.size}}
	}
	var out []ext4.Segment
	for _, s := range it.segs {
		if n := len(out); n > 0 && out[n-1].Offset+out[n-1].Length == s.Offset {
			out[n-1].Length += s.Length
		} else if s.Length > 0 {
			out = append(out, s)
		}
	}
	return out
}

func inOrder(n int) []int {
	order := make([]int, n)
	for i := range order {
		order[i] = i
	}
	return order
}

func stream(t testing.TB, w *ext4.Writer, items []item, datas []ext4.Data, order []int) {
	t.Helper()
	s := w.Stream()
	for _, i := range order {
		if items[i].body != nil {
			if err := s.Copy(datas[i], items[i].stored()); err != nil {
				t.Error(err)
				return
			}
		}
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// Names may be added to a directory in any order, where inodes keep theirs.
func TestOrderOfNames(t *testing.T) {
	t.Parallel()
	build := func(reverse bool) string {
		var items []item
		for i := range 500 {
			items = append(items, file(fmt.Sprintf("f%d", i), 0o644, ""))
		}
		var links []item
		for i := range 500 {
			links = append(links, item{path: fmt.Sprintf("l%d", i), link: fmt.Sprintf("f%d", i)})
		}
		if reverse {
			for i, j := 0, len(links)-1; i < j; i, j = i+1, j-1 {
				links[i], links[j] = links[j], links[i]
			}
		}
		path, _ := write(t, append(items, links...), testOptions)
		return digest(t, path)
	}
	if build(false) != build(true) {
		t.Error("the order of names changes the image")
	}
}

// A small change on top leaves the chunks of what lies below alone, where the
// seeds are the same.
func TestChunksStay(t *testing.T) {
	t.Parallel()
	var below []item
	for i := range 40 {
		below = append(below, dir(fmt.Sprintf("d%d", i)))
		for j := range 50 {
			p := fmt.Sprintf("d%d/f%d", i, j)
			below = append(below, item{path: p, meta: ext4.Meta{Mode: 0o100644, Mtime: noon}, body: pattern(uint64(i*100+j), 12000), size: 12000})
		}
	}
	seed := uint32(42)
	build := func(version byte, extra int64) map[[32]byte]bool {
		o := testOptions
		o.ChecksumSeed = &seed
		o.UUID[0] = version
		top := item{path: "d7/new", meta: ext4.Meta{Mode: 0o100644, Mtime: noon}, body: pattern(uint64(version)+1e6, extra), size: extra}
		path, _ := write(t, append(append([]item{}, below...), top), o)
		fsck(t, path)
		data, err := os.ReadFile(path)
		must(t, err)
		out := map[[32]byte]bool{}
		for chunk := range slices.Chunk(data, 512<<10) {
			out[sha256.Sum256(chunk)] = true
		}
		return out
	}
	old, fresh := build(1, 100), build(2, 700<<10)
	added := 0
	for sum := range fresh {
		if !old[sum] {
			added++
		}
	}
	// Two for the new file, one each for superblock, directories and inodes,
	// and what an unlucky border adds.
	if added > 6 || len(fresh) < 45 {
		t.Errorf("%d of %d chunks are new", added, len(fresh))
	}
}
