package inflate_test

import (
	"bufio"
	"bytes"
	"compress/flate"
	stdlib "compress/gzip"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"hash/crc32"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/klauspost/compress/gzip"

	"github.com/paddock-dev/paddock/internal/rootfs/inflate"
)

// pack compresses as the standard library does at a level.
func pack(tb testing.TB, level int, plain []byte) []byte {
	tb.Helper()
	var b bytes.Buffer
	w, err := stdlib.NewWriterLevel(&b, level)
	if err != nil {
		tb.Fatal(err)
	}
	if _, err := w.Write(plain); err != nil {
		tb.Fatal(err)
	}
	if err := w.Close(); err != nil {
		tb.Fatal(err)
	}
	return b.Bytes()
}

// unpack reads a member and says what is left behind it.
func unpack(src *bufio.Reader) (plain, rest []byte, err error) {
	r, err := inflate.NewReader(src)
	if err != nil {
		return nil, nil, err
	}
	if plain, err = io.ReadAll(r); err != nil {
		return plain, nil, err
	}
	rest, err = io.ReadAll(src)
	return plain, rest, err
}

func buffered(b []byte) *bufio.Reader { return bufio.NewReaderSize(bytes.NewReader(b), 4096) }

// texts are contents of every nature: what repeats near and far, what does
// not, and what makes codes long.
func texts() map[string][]byte {
	r := rand.New(rand.NewPCG(1, 2))
	noise := make([]byte, 300_000)
	for i := range noise {
		noise[i] = byte(r.Uint32())
	}
	words := []byte{}
	for len(words) < 600_000 {
		words = append(words, strings.Repeat(fmt.Sprintf("word%d ", r.IntN(3000)), 1+r.IntN(3))...)
	}
	skewed := []byte{} // Fibonacci weights make codes of 15 bits
	for i, a, b := 0, 1, 1; i < 24; i, a, b = i+1, b, a+b {
		skewed = append(skewed, bytes.Repeat([]byte{byte(i * 11)}, a)...)
	}
	r.Shuffle(len(skewed), func(i, j int) { skewed[i], skewed[j] = skewed[j], skewed[i] })
	all := map[string][]byte{
		"nothing": {}, "a byte": {7}, "noise": noise, "words": words, "skewed": skewed,
		"zeros": make([]byte, 1_000_000),
		"far":   append(append(append([]byte{}, noise[:32768]...), noise[:32768]...), noise[:40000]...),
	}
	for back := range 40 {
		all[fmt.Sprintf("every %d", back+1)] = bytes.Repeat(noise[:back+1], 5000/(back+1)+2)
	}
	return all
}

func TestWhatWasPackedComesBack(t *testing.T) {
	for name, plain := range texts() {
		for level := stdlib.HuffmanOnly; level <= stdlib.BestCompression; level++ {
			packed := append(pack(t, level, plain), "behind"...)
			got, rest, err := unpack(buffered(packed))
			if err != nil || !bytes.Equal(got, plain) || string(rest) != "behind" {
				t.Errorf("%s, level %d: %d of %d bytes, %q behind, %v", name, level, len(got), len(plain), rest, err)
			}
		}
	}
}

func TestASourceMayGiveAByteAtATime(t *testing.T) {
	plain := texts()["words"]
	for name, slow := range map[string]func(io.Reader) io.Reader{"one byte": iotest.OneByteReader, "halves": iotest.HalfReader, "data with its end": iotest.DataErrReader} {
		packed := pack(t, 6, plain)
		got, _, err := unpack(bufio.NewReaderSize(slow(bytes.NewReader(packed)), 2048))
		if err != nil || !bytes.Equal(got, plain) {
			t.Errorf("%s: %d bytes, %v", name, len(got), err)
		}
	}
}

func TestItTakesNoMoreThanItNeeds(t *testing.T) {
	packed := pack(t, 9, make([]byte, 1_000_000))
	src := bufio.NewReaderSize(bytes.NewReader(packed), 4096)
	r, err := inflate.NewReader(src)
	if err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 100_000)
	for done := 0; err == nil; {
		var n int
		n, err = r.Read(b)
		done += n
		// All of it is buffered; of that, as much must be left as is not read yet.
		left := float64(1_000_000-done) / 1_000_000 * float64(len(packed))
		if got := float64(src.Buffered()); done > 200_000 && (got < left*0.7-20 || got > left*1.2+50) && done < 1_000_000 {
			t.Fatalf("after %d bytes %g of %d are left, not about %g", done, got, len(packed), left)
		}
	}
	if !errors.Is(err, io.EOF) {
		t.Error(err)
	}
}

func TestMembersFollowEachOther(t *testing.T) {
	src := buffered(append(append(pack(t, 6, []byte("one")), pack(t, 0, nil)...), pack(t, 9, []byte("three"))...))
	r, err := inflate.NewReader(src)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for ; err == nil; err = r.Reset(src) {
		b, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, string(b))
	}
	if !errors.Is(err, io.EOF) || fmt.Sprint(got) != "[one  three]" {
		t.Errorf("%q, %v", got, err)
	}
}

func TestAMatchReachesNoMemberBefore(t *testing.T) {
	first := pack(t, 6, bytes.Repeat([]byte("x"), 1000))
	src := buffered(append(first, headless()...))
	r, err := inflate.NewReader(src)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadAll(r); err != nil {
		t.Fatal(err)
	}
	if err := r.Reset(src); err != nil {
		t.Fatal(err)
	}
	if b, err := io.ReadAll(r); !errors.Is(err, inflate.ErrDamaged) {
		t.Errorf("%q, %v", b, err)
	}
}

// headless returns a member of one block with fixed codes that begins with a
// match.
func headless() []byte {
	// Bits, first lowest: the last block, kind 1, length symbol 257 from its
	// highest bit, distance symbol 0, end of block.
	v := 0b1 | 0b01<<1 | 0b1000000<<3
	b := []byte{0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 0xff}
	for i := range 3 {
		b = append(b, byte(v>>(8*i)))
	}
	return append(b, make([]byte, 8)...)
}

func TestEveryCutIsNoticed(t *testing.T) {
	for _, level := range []int{0, 1, 9, stdlib.HuffmanOnly} {
		packed := pack(t, level, texts()["words"][:3_000])
		for cut := range len(packed) {
			_, _, err := unpack(buffered(packed[:cut]))
			if want := io.ErrUnexpectedEOF; cut > 0 && !errors.Is(err, want) || cut == 0 && !errors.Is(err, io.EOF) {
				t.Fatalf("level %d cut at %d of %d: %v", level, cut, len(packed), err)
			}
		}
	}
}

func TestWhatIsDamagedIsRefused(t *testing.T) {
	good := pack(t, 6, []byte("hello, hello, hello"))
	flip := func(at int) []byte {
		b := bytes.Clone(good)
		b[(at+len(b))%len(b)] ^= 0xFF
		return b
	}
	for name, c := range map[string]struct {
		packed []byte
		want   error
	}{
		"magic":         {flip(0), inflate.ErrHeader},
		"method":        {flip(2), inflate.ErrHeader},
		"kind of block": {flip(10), inflate.ErrDamaged},
		"checksum":      {flip(-8), inflate.ErrDamaged},
		"size":          {flip(-1), inflate.ErrDamaged},
		"no window":     {headless(), inflate.ErrDamaged},
	} {
		if got, _, err := unpack(buffered(c.packed)); !errors.Is(err, c.want) {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
}

func TestAHeaderMayHoldEverything(t *testing.T) {
	header := []byte{0x1f, 0x8b, 8, 2 | 4 | 8 | 16, 0, 0, 0, 0, 0, 255, 3, 0, 'a', 'b', 'c'}
	header = append(header, "name\x00comment\x00"...)
	sum := crc32.ChecksumIEEE(header)
	body := pack(t, 6, []byte("hello"))[10:]
	if got, _, err := unpack(buffered(append(binary.LittleEndian.AppendUint16(bytes.Clone(header), uint16(sum)), body...))); string(got) != "hello" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	if _, _, err := unpack(buffered(append(binary.LittleEndian.AppendUint16(bytes.Clone(header), uint16(sum)+1), body...))); !errors.Is(err, inflate.ErrHeader) {
		t.Errorf("another checksum: %v", err)
	}
	long := append([]byte{0x1f, 0x8b, 8, 8, 0, 0, 0, 0, 0, 255}, strings.Repeat("n", 1000)...)
	if _, _, err := unpack(buffered(append(long, body...))); !errors.Is(err, inflate.ErrHeader) {
		t.Errorf("a long name: %v", err)
	}
}

func TestAnErrorOfTheSourceComesThrough(t *testing.T) {
	own := errors.New("own")
	packed := pack(t, 6, texts()["words"])
	src := io.MultiReader(bytes.NewReader(packed[:len(packed)/2]), iotest.ErrReader(own))
	if _, _, err := unpack(bufio.NewReaderSize(src, 4096)); !errors.Is(err, own) {
		t.Errorf("%v", err)
	}
}

// expected is what the standard library makes of a member.
func expected(b []byte) (plain, rest []byte, err error) {
	src := buffered(b)
	r, err := stdlib.NewReader(src)
	if err != nil {
		return nil, nil, err
	}
	r.Multistream(false)
	if plain, err = io.ReadAll(r); err != nil {
		return nil, nil, err
	}
	rest, err = io.ReadAll(src)
	return plain, rest, err
}

// FuzzInflate holds this decoder to the standard library's: both take the same
// streams, and make the same of them.
func FuzzInflate(f *testing.F) {
	for _, plain := range texts() {
		for _, level := range []int{0, 1, 6, stdlib.HuffmanOnly} {
			f.Add(pack(f, level, plain[:min(len(plain), 2000)]))
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		compare(t, b)
		// The sums of most inputs are wrong, which would hide the rest.
		compare(t, mended(b))
	})
}

// mended returns a member with b as its compressed part and, if that is any
// good, the sums that it should have.
func mended(b []byte) []byte {
	out := append([]byte{0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255}, b[min(10, len(b)):]...)
	src := bytes.NewReader(out[10:])
	plain, err := io.ReadAll(flate.NewReader(src))
	if err != nil {
		return out
	}
	out = out[:len(out)-src.Len()]
	out = binary.LittleEndian.AppendUint32(out, crc32.ChecksumIEEE(plain))
	return binary.LittleEndian.AppendUint32(out, uint32(len(plain)))
}

func compare(t *testing.T, b []byte) {
	t.Helper()
	plain, rest, err := expected(b)
	got, left, own := unpack(buffered(b))
	if (err == nil) != (own == nil) {
		t.Fatalf("the standard library says %v, this %v", err, own)
	}
	if err == nil && (!bytes.Equal(got, plain) || !bytes.Equal(left, rest)) {
		t.Fatalf("%d bytes and %d behind, want %d and %d", len(got), len(left), len(plain), len(rest))
	}
}

func TestDamageIsFoundAsTheStandardLibraryFindsIt(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for name, plain := range texts() {
		for _, level := range []int{0, 1, 9, stdlib.HuffmanOnly} {
			good := pack(t, level, plain[:min(len(plain), 3000)])
			for range 15 {
				b := bytes.Clone(good)
				for range 1 + r.IntN(3) {
					b[r.IntN(len(b))] ^= 1 << r.IntN(8)
				}
				compare(t, b)
				compare(t, mended(b))
			}
			if t.Failed() {
				t.Fatal(name)
			}
		}
	}
}

var realLayer = flag.String("layer", "", "gzip `FILE` that BenchmarkInflate reads instead of what it makes")

// packedTexts are what is decoded, by name.
func packedTexts(b *testing.B) map[string][]byte {
	b.Helper()
	list := map[string][]byte{}
	if *realLayer != "" {
		packed, err := os.ReadFile(*realLayer)
		if err != nil {
			b.Fatal(err)
		}
		list["layer"] = packed
		return list
	}
	for _, name := range []string{"words", "noise", "zeros", "skewed"} {
		list[name] = pack(b, 6, texts()[name])
	}
	return list
}

func BenchmarkInflate(b *testing.B) {
	all := packedTexts(b)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		packed := all[name]
		run := func(b *testing.B, open func(*bufio.Reader) (io.Reader, error)) {
			buffer := make([]byte, 128<<10)
			for b.Loop() {
				r, err := open(bufio.NewReaderSize(bytes.NewReader(packed), 64<<10))
				if err != nil {
					b.Fatal(err)
				}
				n, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{r}, buffer)
				if err != nil {
					b.Fatal(err)
				}
				b.SetBytes(n)
			}
		}
		b.Run(name+"/this", func(b *testing.B) {
			run(b, func(src *bufio.Reader) (io.Reader, error) { return inflate.NewReader(src) })
		})
		b.Run(name+"/klauspost", func(b *testing.B) {
			run(b, func(src *bufio.Reader) (io.Reader, error) { return gzip.NewReader(src) })
		})
	}
}
