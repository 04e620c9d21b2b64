package rootfs

import (
	"context"
	"os"

	"github.com/paddock-dev/paddock/internal/rootfs/ext4"
)

const (
	// An image is copied without its gaps when these are more than a share of
	// it, and worth the time.
	gapShare = 16
	gapBytes = 32 << 20
)

// gaps returns how many bytes the contents have that upper layers replaced or
// hid, and how many the others.
func (p *placer) gaps() (dead, live int64) {
	for id := uint32(1); id < p.tree.nodes.end(); id++ {
		n := p.tree.nodes.at(id)
		if !n.is(modeRegular) || n.words[0] == 0 {
			continue
		}
		if size := p.data.at(n.words[0]).Blocks() * blockSize; n.dead() {
			dead += size
		} else {
			live += size
		}
	}
	for _, d := range p.orphans {
		dead += d.Blocks() * blockSize
	}
	return dead, live
}

// drop gives up contents that upper layers replaced or hid.
func (p *placer) drop() error {
	for _, d := range p.orphans {
		if err := p.w.Drop(d); err != nil {
			return err
		}
	}
	for id := uint32(1); id < p.tree.nodes.end(); id++ {
		n := p.tree.nodes.at(id)
		if !n.is(modeRegular) || n.words[0] == 0 || !n.dead() {
			continue
		}
		if err := p.w.Drop(*p.data.at(n.words[0])); err != nil {
			return err
		}
	}
	return nil
}

// gappy says whether so much was dropped that the image is made anew.
func gappy(dead, live int64) bool { return dead > gapBytes && dead*gapShare > dead+live }

// compact copies what is live to an empty file, in the same order and without
// gaps, and goes on there. The old file is the caller's.
func (p *placer) compact(ctx context.Context, to *os.File, o ext4.Options) error {
	w, err := ext4.New(to, o)
	if err != nil {
		return err
	}
	holders := p.holders()
	mover := w.NewMover(to, p.w, p.file)
	next := 0
	for i := uint32(1); i < p.data.end(); i++ {
		for next < len(p.starts) && p.starts[next] <= i {
			w.Align()
			next++
		}
		if err := ctx.Err(); err != nil {
			return context.Cause(ctx)
		}
		if holders[i/64]>>(i%64)&1 == 0 {
			continue
		}
		d := p.data.at(i)
		if *d, err = mover.Move(*d); err != nil {
			return err
		}
	}
	if err := mover.Flush(); err != nil {
		return err
	}
	p.file, p.w, p.out = to, w, w.Stream()
	return nil
}

// holders is the set of contents that the image has.
func (p *placer) holders() []uint64 {
	set := make([]uint64, p.data.end()/64+1)
	for id := uint32(1); id < p.tree.nodes.end(); id++ {
		if n := p.tree.nodes.at(id); n.is(modeRegular) && !n.dead() {
			set[n.words[0]/64] |= 1 << (n.words[0] % 64)
		}
	}
	return set
}
