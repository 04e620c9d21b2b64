package rootfs

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"hash"
	"io"
	"strconv"
	"sync"
	"sync/atomic"
)

// ChunkSize is the size of the pieces of an image that have sums of their own.
// The last one of an image may be shorter.
const ChunkSize = 512 << 10

// Sums is what tells one image from another, as a whole and in pieces.
type Sums struct {
	SHA256 string
	Size   int64
	// Chunks are the sha256 of each ChunkSize bytes, in hex. Chunks in a row
	// that hold only zeros are one word instead: zeros*N.
	Chunks []string
}

const (
	sumBuffers = 4
	zeroWord   = "zeros*"
)

// sumPart is a chunk that two hashers look at.
type sumPart struct {
	b    []byte
	left atomic.Int32
}

// SumImage reads an image of size bytes once and returns its sums.
func SumImage(ctx context.Context, r io.ReaderAt, size int64) (Sums, error) {
	free := make(chan *sumPart, sumBuffers)
	for range sumBuffers {
		free <- &sumPart{b: make([]byte, ChunkSize)}
	}
	s := Sums{Size: size}
	whole := sha256.New()
	var wait sync.WaitGroup
	all, pieces := make(chan *sumPart, sumBuffers), make(chan *sumPart, sumBuffers)
	each := func(from chan *sumPart, do func([]byte)) {
		defer wait.Done()
		for p := range from {
			do(p.b)
			if p.left.Add(-1) == 0 {
				free <- p
			}
		}
	}
	wait.Add(2)
	go each(all, func(b []byte) { _, _ = whole.Write(b) })
	c := chunker{h: sha256.New()}
	go each(pieces, c.add)
	err := func() error {
		for off := int64(0); off < size; off += ChunkSize {
			if err := ctx.Err(); err != nil {
				return context.Cause(ctx)
			}
			p := <-free
			p.b = p.b[:min(ChunkSize, size-off)]
			if n, err := r.ReadAt(p.b, off); n < len(p.b) {
				return errors.Join(err, io.ErrUnexpectedEOF)
			}
			p.left.Store(2)
			all <- p
			pieces <- p
		}
		return nil
	}()
	close(all)
	close(pieces)
	wait.Wait()
	c.end()
	s.SHA256, s.Chunks = hex.EncodeToString(whole.Sum(nil)), c.sums
	return s, err
}

// chunker collects the sums of chunks.
type chunker struct {
	h     hash.Hash
	sums  []string
	zeros int
}

var zeroChunk [ChunkSize]byte

func (c *chunker) add(b []byte) {
	if bytes.Equal(b, zeroChunk[:len(b)]) {
		c.zeros++
		return
	}
	c.end()
	c.h.Reset()
	_, _ = c.h.Write(b)
	c.sums = append(c.sums, hex.EncodeToString(c.h.Sum(nil)))
}

// end writes the zeros that are waiting.
func (c *chunker) end() {
	if c.zeros > 0 {
		c.sums = append(c.sums, zeroWord+strconv.Itoa(c.zeros))
		c.zeros = 0
	}
}
