package rootfs_test

import (
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
)

// generator makes stacks that a builder must take, with everything in them
// that layers may hold. The model tells it what is there at each moment.
type generator struct {
	r     *rand.Rand
	m     *model
	tame  bool
	stack stack
	out   []entry // of the current layer
}

// generate returns the stack of a seed. A tame one has only layers as container
// engines write them: no path twice or through a symlink, nothing hidden that
// the layer itself brings, no directory in place of a symlink.
func generate(seed uint64, tame bool) stack {
	g := &generator{r: rand.New(rand.NewPCG(seed, 7)), m: newModel(), tame: tame}
	for n := 1 + g.r.IntN(8); len(g.stack) < n; {
		g.m.begin()
		g.out = nil
		switch {
		case g.one(12): // an empty layer
		case len(g.stack) > 0 && g.one(8) && g.again(): // a layer twice
		default:
			if len(g.stack) == 0 && !g.one(4) || g.one(6) {
				g.add(entry{name: "", kind: dir, lead: "./"})
			}
			for k := 1 + g.r.IntN(24); k > 0; k-- {
				g.act()
			}
		}
		g.stack = append(g.stack, layer{g.out, pick(g.r, plain, gzipd, gzipd, zstdd)})
	}
	return g.stack
}

func pick[T any](r *rand.Rand, list ...T) T { return list[r.IntN(len(list))] }

// one is true once in n times.
func (g *generator) one(n int) bool { return g.r.IntN(n) == 0 }

// again lays an earlier layer once more, when that is possible.
func (g *generator) again() bool {
	l := pick(g.r, g.stack...)
	m := g.m.clone()
	for _, e := range l.entries {
		if m.apply(e) != nil {
			return false
		}
	}
	g.m, g.out = m, slices.Clone(l.entries)
	return true
}

// act adds an entry or a few. What does not fit is left out.
func (g *generator) act() {
	switch n := g.r.IntN(100); {
	case n < 38:
		g.add(entry{name: g.fresh(), kind: g.kind()})
	case n < 44: // directories above it that nobody names
		name := g.fresh()
		for range 1 + g.r.IntN(3) {
			name += "/" + g.baseName()
		}
		g.add(entry{name: name, kind: g.kind()})
	case n < 56: // the same type again: its metadata or contents change
		if path, old := g.some(); old != nil {
			g.add(entry{name: g.alias(path), kind: old.kind})
		}
	case n < 66: // another type
		if path, old := g.some(); old != nil {
			g.add(entry{name: g.alias(path), kind: g.kind()})
		}
	case n < 78:
		g.whiteout()
	case n < 82:
		g.add(entry{name: below(g.alias(g.someDir()), ".wh..wh..opq"), kind: file, body: body{seed: 1}})
	case n < 94:
		if path, old := g.some(); old != nil && old.kind != dir {
			name := g.fresh()
			if over, _ := g.some(); g.one(4) {
				name = g.alias(over)
			}
			g.add(entry{name: name, kind: hardlink, link: g.alias(path)})
		}
	default: // the same path once more in this layer
		if len(g.out) > 0 {
			e := pick(g.r, g.out...)
			if _, _, is := e.whiteout(); !is && e.kind != hardlink {
				g.add(entry{name: e.name, kind: e.kind})
			}
		}
	}
}

func (g *generator) kind() kind {
	return pick(g.r, file, file, file, file, file, file, dir, dir, dir, dir, symlink, symlink, symlink, fifo, char, block)
}

// add fills in the rest of an entry and lays it.
func (g *generator) add(e entry) {
	if len(e.name) > 2000 || strings.Count(e.name, "/") > 40 {
		return
	}
	if g.one(3) {
		e.lead = "./"
	}
	_, _, is := e.whiteout()
	switch {
	case is:
		e.mode, e.sec = 0o600, 1e9
	case e.kind == hardlink:
		g.linkMeta(&e)
	default:
		g.meta(&e)
		g.contents(&e)
	}
	g.write(&e)
	if g.tame && g.odd(e) {
		return
	}
	if g.m.apply(e) == nil {
		g.out = append(g.out, e)
	}
}

// odd says whether no archiver would write the entry here.
func (g *generator) odd(e entry) bool {
	in, base := split(e.name)
	at, err := g.m.resolve(in)
	path := below(at, base)
	hidden, opaque, is := e.whiteout()
	switch {
	case opaque:
		path = at
	case is:
		path = below(at, hidden)
	}
	if old := g.m.names[path]; opaque && path == "" || !is && old != nil && old.kind == symlink && e.kind == dir {
		return true
	}
	return err != nil || g.m.touched[path] || slices.ContainsFunc(g.out, func(old entry) bool { return old.name == e.name })
}

// linkMeta gives a hard link what archivers write: what its target has.
func (g *generator) linkMeta(e *entry) {
	if n, err := g.m.made("\x00", *e); err == nil {
		e.mode, e.uid, e.gid, e.sec, e.nsec = n.mode, n.uid, n.gid, n.sec, n.nsec
	}
}

// some returns a path that is there; the root and what only tests of other
// things may touch are left out.
func (g *generator) some() (string, *node) {
	paths := slices.Sorted(maps.Keys(g.m.names))
	if len(paths) < 2 {
		return "", nil
	}
	path := paths[1+g.r.IntN(len(paths)-1)]
	return path, g.m.names[path]
}

func (g *generator) paths(want func(path string, n *node) bool) []string {
	var out []string
	for _, path := range slices.Sorted(maps.Keys(g.m.names)) {
		if want(path, g.m.names[path]) {
			out = append(out, path)
		}
	}
	return out
}

func (g *generator) someDir() string {
	return pick(g.r, g.paths(func(_ string, n *node) bool { return n.kind == dir })...)
}

// fresh returns a new name in a directory that is there, or where a symlink
// points to and nothing is.
func (g *generator) fresh() string {
	if !g.tame && g.one(8) {
		dangling := g.paths(func(path string, n *node) bool {
			at, err := g.m.resolve(path)
			return n.kind == symlink && err == nil && g.m.names[at] == nil && len(at) < 200
		})
		if len(dangling) > 0 {
			return pick(g.r, dangling...) + "/" + g.baseName()
		}
	}
	return below(g.alias(g.someDir()), g.baseName())
}

// alias leads to a path another way, through symlinks, when there is one.
func (g *generator) alias(path string) string {
	for range 2 {
		if g.tame || g.one(2) {
			continue
		}
		in, _ := split(path)
		links := g.paths(func(link string, n *node) bool {
			at, err := g.m.resolve(link)
			return n.kind == symlink && err == nil && g.m.names[at] != nil && (at == in || within(in, at))
		})
		if len(links) == 0 {
			continue
		}
		link := pick(g.r, links...)
		at, _ := g.m.resolve(link)
		if other := link + "/" + strings.TrimPrefix(strings.TrimPrefix(path, at), "/"); len(other) < 1500 {
			path = other
		}
	}
	return path
}

func (g *generator) whiteout() {
	path, old := g.some()
	if old == nil || g.one(6) {
		path = g.fresh()
	}
	in, base := split(path)
	if len(base) > 251 {
		return
	}
	in, _ = split(g.alias(below(in, base)))
	g.add(entry{name: below(in, ".wh."+base), kind: pick(g.r, file, file, file, file, dir, fifo), body: body{seed: 1}})
}

// baseName is a name of 1 to 255 bytes, with or without sense.
func (g *generator) baseName() string {
	if g.one(15) {
		return pick(g.r, "dev", "proc", "sys", "etc", "tmp", ".paddock", "lost+found", "guest", ".wh", "...")
	}
	n := 1 + g.r.IntN(6)
	switch {
	case g.one(25):
		n = 255
	case g.one(10):
		n = 90 + g.r.IntN(160)
	}
	b := make([]byte, n)
	odd := g.one(6)
	for i := range b {
		b[i] = "abcdefghijklmnopqrstuvwxyz0123456789-_.+"[g.r.IntN(40)]
		if odd && g.one(2) {
			b[i] = byte(1 + g.r.IntN(255))
		}
		if b[i] == '/' || i == 0 && b[i] == '.' {
			b[i] = 'A'
		}
	}
	if g.one(30) {
		b[0] = '.'
		if n < 3 {
			return ".x."
		}
	}
	if strings.HasPrefix(string(b), ".wh.") {
		b[1] = 'W'
	}
	return string(b)
}

// target is what a symlink says: a directory that is there, a place that is
// not, or bytes of any length.
func (g *generator) target(from string) string {
	up := func(to string) string {
		in, _ := split(from)
		if at, err := g.m.resolve(in); err == nil && at != "" {
			to = strings.Repeat("../", 1+strings.Count(at, "/")) + to
		}
		return to
	}
	switch n := g.r.IntN(20); {
	case n < 4:
		return "/" + g.someDir()
	case n < 9:
		return or(up(g.someDir()), ".")
	case n < 11:
		return up(below(g.someDir(), g.baseName()))
	case n < 12:
		return "/" + below(g.someDir(), g.baseName()+"/"+g.baseName())
	case n < 13:
		return ".././" + or(g.someDir(), ".") + "//"
	}
	b := make([]byte, pick(g.r, 1, 2, 58, 59, 60, 61, 100, 101, 155, 255, 256, 1000, 4000, 4094, 4095, 1+g.r.IntN(4095)))
	for i := range b {
		b[i] = byte(1 + g.r.IntN(255))
	}
	return string(b)
}

func or(s, other string) string {
	if s == "" {
		return other
	}
	return s
}
