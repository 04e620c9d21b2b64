package rootfs

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/paddock-dev/paddock/internal/rootfs/tarfile"
	"github.com/paddock-dev/paddock/internal/template"
)

// Laid is a tree that layers were laid into, for tests of the rules.
type Laid struct {
	t    *tree
	text map[nodeID]string // contents
}

// Lay lays plain layers over each other.
func Lay(l Limits, p Policy, layers ...[]byte) (*Laid, error) {
	d := &Laid{t: newTree(l, p), text: map[nodeID]string{}}
	for i, b := range layers {
		d.t.begin()
		r := tarfile.NewReader(strings.NewReader(string(b)), d.t.limits.archive())
		for {
			e, err := r.Next()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				return nil, fmt.Errorf("layer %d: %w", i+1, err)
			}
			n, err := d.t.apply(e)
			if err != nil {
				return nil, fmt.Errorf("layer %d: %w", i+1, err)
			}
			body, err := io.ReadAll(r)
			if err != nil {
				return nil, err
			}
			if n != 0 {
				d.text[n] = string(body)
			}
		}
	}
	return d, nil
}

// Lines lists the tree, a line an entry: path, then a slash for a directory,
// what a link names, or a file's content. Hard links show how many there are.
func (d *Laid) Lines() []string {
	var out []string
	d.walk(func(path string, n *node, id nodeID) {
		if n.names > 1 {
			path += fmt.Sprintf(" x%d", n.names)
		}
		switch n.mode & modeType {
		case modeDir:
			out = append(out, path+"/")
		case modeSymlink:
			out = append(out, path+" -> "+d.t.target(n))
		case modeRegular:
			out = append(out, path+" = "+d.text[id])
		default:
			out = append(out, fmt.Sprintf("%s %s %d:%d", path, kindName(n.mode), n.words[0], n.words[1]))
		}
	})
	return out
}

// Meta lists what each entry says of itself.
func (d *Laid) Meta() []string {
	r := d.t.node(root)
	out := []string{d.meta("", r)}
	d.walk(func(path string, n *node, _ nodeID) { out = append(out, d.meta(path, n)) })
	return out
}

func (d *Laid) meta(path string, n *node) string {
	s := fmt.Sprintf("/%s %06o %d:%d %s", path, n.mode, n.uid, n.gid, time.Unix(n.seconds, int64(n.nanos)).UTC().Format(time.RFC3339Nano))
	set := d.t.attrs.get(n.xattrs)
	for _, a := range set.list {
		s += fmt.Sprintf(" %s=%x", a.Name, a.Value)
	}
	for _, w := range set.stripped {
		s += " -" + w
	}
	return s
}

func (d *Laid) walk(fn func(string, *node, nodeID)) {
	type one struct {
		path string
		id   nodeID
	}
	var all []one
	for id := nameID(1); uint32(id) < d.t.names.end(); id++ {
		if n := d.t.name(id); n.node != 0 {
			all = append(all, one{d.t.path(id), n.node})
		}
	}
	slices.SortFunc(all, func(a, b one) int { return strings.Compare(a.path, b.path) })
	for _, o := range all {
		fn(o.path, d.t.node(o.id), o.id)
	}
}

// Plain is a build of layers that need no decoding.
type Plain struct {
	Layers [][]byte
	Sums   []string                                                // instead of Layers
	Open   func(ctx context.Context, i int) (io.ReadCloser, error) // nil: from Layers
	Limits Limits
	Policy Policy
	Guest  string // a file
	CA     []byte
	Tell   func(template.Phase)
}

// Build makes an image at path, with its scratch in dir.
func (p Plain) Build(ctx context.Context, dir, path string) (Result, error) {
	b := &build{
		reference: "test:1", key: strings.Repeat("c0", 32), limits: p.Limits.filled(), policy: p.Policy.filled(),
		tell: func(template.Phase) {}, room: func(context.Context, int64) error { return nil },
	}
	if p.Tell != nil {
		b.tell = p.Tell
	}
	var err error
	if b.put.guestSum, b.put.guestSize, err = sumFile(p.Guest); err != nil {
		return Result{}, err
	}
	b.put.guestPath, b.put.ca = p.Guest, p.CA
	for i, s := range p.Sums {
		b.layers = append(b.layers, plainLayer{diffID: "sha256:" + s, open: p.opener(i, nil)})
	}
	for i, l := range p.Layers {
		sum := sha256.Sum256(l)
		b.layers = append(b.layers, plainLayer{diffID: "sha256:" + hex.EncodeToString(sum[:]), open: p.opener(i, l)})
	}
	return b.write(ctx, dir, path)
}

// ReadCA is readCA.
func ReadCA(file string) ([]byte, error) { return readCA(file) }

// honest is a layer whose bytes nobody damaged.
type honest struct{ io.ReadCloser }

func (honest) Cause(err error) error { return err }

func (p Plain) opener(i int, l []byte) func(context.Context) (plainReader, error) {
	return func(ctx context.Context) (plainReader, error) {
		if p.Open == nil {
			return honest{io.NopCloser(bytes.NewReader(l))}, nil
		}
		r, err := p.Open(ctx, i)
		if err != nil {
			return nil, err
		}
		return honest{r}, nil
	}
}

// Sound checks that the tree holds together: every name that leads somewhere
// lies in a directory that is there and lists it, and names are counted right.
func (d *Laid) Sound() error {
	t := d.t
	counted := map[nodeID]uint32{root: 1}
	listed := map[nameID]bool{}
	for id := nodeID(1); uint32(id) < t.nodes.end(); id++ {
		if n := t.node(id); n.is(modeDir) && n.names > 0 {
			for one := nameID(n.words[0]); one != 0; one = t.name(one).next {
				if listed[one] || t.name(one).dir != id {
					return fmt.Errorf("name %d is listed twice, or elsewhere", one)
				}
				listed[one] = true
			}
		}
	}
	for id := nameID(1); uint32(id) < t.names.end(); id++ {
		nm := t.name(id)
		if t.find(nm.dir, string(t.textOf(nm))) != id {
			return fmt.Errorf("name %d is not found", id)
		}
		if nm.node == 0 {
			continue
		}
		counted[nm.node]++
		if !listed[id] || t.node(nm.dir).names == 0 || !t.node(nm.dir).is(modeDir) {
			return fmt.Errorf("%q lies nowhere", t.path(id))
		}
		if n := t.node(nm.node); n.is(modeDir) && nameID(n.words[1]) != id {
			return fmt.Errorf("%q is a directory with another name", t.path(id))
		}
		if depth, size := strings.Count(t.path(id), "/")+1, len(t.path(id)); depth > t.limits.Depth || size > t.limits.PathBytes {
			return fmt.Errorf("%q is too deep", t.path(id))
		}
	}
	for id := nodeID(1); uint32(id) < t.nodes.end(); id++ {
		if n := t.node(id); n.names != counted[id] {
			return fmt.Errorf("node %d has %d names, counted %d", id, n.names, counted[id])
		}
	}
	return nil
}

// LayEntries lays entries without contents over each other.
func LayEntries(layers ...[]tarfile.Entry) (*Laid, error) {
	d := &Laid{t: newTree(Limits{}, Policy{}), text: map[nodeID]string{}}
	for _, l := range layers {
		d.t.begin()
		for _, e := range l {
			if _, err := d.t.apply(&e); err != nil {
				return nil, err
			}
		}
	}
	return d, nil
}

// Decoders is how many layers are decoded at once.
func Decoders(layers int) int { return decoders(layers) }

// DefaultLimits are the limits that a zero Limits stands for, with the names
// that the configuration's default takes.
func DefaultLimits() Limits {
	l := Limits{AbsoluteNames: true}.filled()
	l.Source = l.Source.Filled()
	return l
}
