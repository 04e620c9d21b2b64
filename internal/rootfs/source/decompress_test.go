package source_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"testing/iotest"

	"github.com/klauspost/compress/zstd"

	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/rootfs/source"
)

// text is n bytes that shrink to about a third, as programs do.
func text(n int) []byte {
	r := rand.New(rand.NewPCG(1, uint64(n)))
	b := make([]byte, 0, n+64)
	for len(b) < n {
		x := r.Uint64()
		if from := int(x>>8) & 0xffff; x&3 > 0 && from < len(b) { // something again
			b = append(b, b[from:min(len(b), from+4+int(x>>2&15))]...)
			continue
		}
		b = append(b, byte(x>>8), byte(x>>16)&15, byte(x>>24)&7, 0)
	}
	return b[:n]
}

func decompress(packed io.Reader, c source.Compression, l source.Limits) ([]byte, error) {
	r, err := source.Decompress(packed, c, l)
	if err != nil {
		return nil, err
	}
	b, err := io.ReadAll(r)
	return b, errors.Join(err, r.Close())
}

// streamed is zstd by who does not know the size before.
func streamed(t testing.TB, plain []byte, o ...zstd.EOption) []byte {
	t.Helper()
	var b bytes.Buffer
	w, err := zstd.NewWriter(&b, o...)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.CopyBuffer(struct{ io.Writer }{w}, bytes.NewReader(plain), nil); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(w.Flush(), w.Close()); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// skippable is a zstd frame that holds no data.
func skippable(n int) []byte {
	b := binary.LittleEndian.AppendUint32([]byte("\x5e\x2a\x4d\x18"), uint32(n))
	return append(b, make([]byte, n)...)
}

func join(parts ...[]byte) []byte { return slices.Concat(parts...) }

func TestDecompress(t *testing.T) {
	t.Parallel()
	a, b := text(300_000), text(70_000)
	ga, gb, za, zb := gzipped(t, a), gzipped(t, b), zstded(t, a), zstded(t, b)
	big := text(1 << 20)
	for name, c := range map[string]struct {
		packed []byte
		c      source.Compression
		want   []byte
	}{
		"plain":                                  {a, source.None, a},
		"nothing":                                {nil, source.None, nil},
		"a name like bzip2's":                    {[]byte("BZhello, not compressed"), source.None, []byte("BZhello, not compressed")},
		"gzip":                                   {ga, source.Gzip, a},
		"gzip of nothing":                        {gzipped(t, nil), source.Gzip, nil},
		"gzip members":                           {join(ga, gb, gzipped(t, nil), ga), source.Gzip, join(a, b, a)},
		"zstd":                                   {za, source.Zstd, a},
		"zstd of nothing":                        {zstded(t, nil, zstd.WithZeroFrames(true)), source.Zstd, nil},
		"zstd frames":                            {join(za, zb, za), source.Zstd, join(a, b, a)},
		"zstd frames without data":               {join(skippable(9), za, skippable(70_000), skippable(0), zb, skippable(100)), source.Zstd, join(a, b)},
		"zstd without a checksum":                {zstded(t, a, zstd.WithEncoderCRC(false)), source.Zstd, a},
		"zstd in one segment":                    {zstded(t, b, zstd.WithSingleSegment(true)), source.Zstd, b},
		"zstd of what shrinks to nothing":        {zstded(t, make([]byte, 1<<20)), source.Zstd, make([]byte, 1<<20)},
		"zstd of what does not shrink":           {zstded(t, ga), source.Zstd, ga},
		"zstd with a window smaller than itself": {zstded(t, big, zstd.WithWindowSize(64<<10)), source.Zstd, big},
	} {
		for _, slow := range []bool{false, true} {
			in := io.Reader(bytes.NewReader(c.packed))
			if slow {
				in = iotest.HalfReader(in)
			}
			if got, err := decompress(in, c.c, source.Limits{Window: 1 << 20}); err != nil || !bytes.Equal(got, c.want) {
				t.Errorf("%s: %d bytes and %v", name, len(got), err)
			}
		}
	}
}

func TestWhatDecompressRefuses(t *testing.T) {
	t.Parallel()
	a := text(300_000)
	g, z := gzipped(t, a), zstded(t, a)
	flip := func(b []byte, at int) []byte {
		b = bytes.Clone(b)
		b[(at+len(b))%len(b)] ^= 0x40
		return b
	}
	huge := []byte("\x28\xb5\x2f\xfd\x00\xa8") // a window of 2 GiB
	single := append([]byte("\x28\xb5\x2f\xfd\xe0"), 0, 0, 0, 0, 8, 0, 0, 0)
	for _, c := range []struct {
		name   string
		packed []byte
		c      source.Compression
		want   *fault.Code
		says   string
	}{
		{"plain for gzip", a, source.Gzip, fault.LayerMedia, "its bytes are plain"},
		{"plain for zstd", a, source.Zstd, fault.LayerMedia, "its bytes are plain"},
		{"zstd for gzip", z, source.Gzip, fault.LayerMedia, "its bytes are zstd"},
		{"gzip for zstd", g, source.Zstd, fault.LayerMedia, "its bytes are gzip"},
		{"gzip for plain", g, source.None, fault.LayerMedia, "its bytes are gzip"},
		{"zstd for plain", z, source.None, fault.LayerMedia, "its bytes are zstd"},
		{"xz for plain", []byte("\xfd7zXZ\x00\x00\x04\xe6\xd6\xb4\x46"), source.None, fault.LayerMedia, "its bytes are xz"},
		{"bzip2 for gzip", []byte("BZh91AY&SYxx"), source.Gzip, fault.LayerMedia, "its bytes are bzip2"},
		{"nothing for gzip", nil, source.Gzip, fault.LayerMedia, "plain"},
		{"half a magic", g[:1], source.Gzip, fault.LayerMedia, "plain"},

		{"half a gzip header", g[:5], source.Gzip, fault.LayerArchive, "middle"},
		{"half a gzip stream", g[:len(g)/2], source.Gzip, fault.LayerArchive, "middle"},
		{"gzip without its sum", g[:len(g)-8], source.Gzip, fault.LayerArchive, "middle"},
		{"gzip without all of its sum", g[:len(g)-1], source.Gzip, fault.LayerArchive, "middle"},
		{"gzip of another size", flip(g, -1), source.Gzip, fault.LayerArchive, "damaged"},
		{"gzip of another sum", flip(g, -8), source.Gzip, fault.LayerArchive, "damaged"},
		{"damaged gzip", flip(g, len(g)/2), source.Gzip, fault.LayerArchive, ""},
		{"half a zstd header", z[:5], source.Zstd, fault.LayerArchive, "middle"},
		{"half a zstd stream", z[:len(z)/2], source.Zstd, fault.LayerArchive, "middle"},
		{"zstd without its sum", z[:len(z)-4], source.Zstd, fault.LayerArchive, "middle"},
		{"zstd without all of its sum", z[:len(z)-1], source.Zstd, fault.LayerArchive, "middle"},
		{"zstd of another sum", flip(z, -1), source.Zstd, fault.LayerArchive, "damaged"},
		{"damaged zstd", flip(z, len(z)/2), source.Zstd, fault.LayerArchive, ""},
		{"half a frame without data", join(z, skippable(100)[:50]), source.Zstd, fault.LayerArchive, "middle"},
		{"half a header of such", join(z, skippable(100)[:6]), source.Zstd, fault.LayerArchive, "middle"},

		{"a byte after gzip", join(g, []byte{0}), source.Gzip, fault.LayerTrailing, ""},
		{"zeros after gzip", join(g, make([]byte, 512)), source.Gzip, fault.LayerTrailing, ""},
		{"half a magic after gzip", join(g, []byte("\x1f")), source.Gzip, fault.LayerTrailing, ""},
		{"zstd after gzip", join(g, z), source.Gzip, fault.LayerTrailing, ""},
		{"a byte after zstd", join(z, []byte{0}), source.Zstd, fault.LayerTrailing, ""},
		{"half a magic after zstd", join(z, []byte("\x28\xb5\x2f")), source.Zstd, fault.LayerTrailing, ""},
		{"gzip after zstd", join(z, g), source.Zstd, fault.LayerTrailing, ""},
		{"bytes after a frame without data", join(z, skippable(9), []byte("x")), source.Zstd, fault.LayerTrailing, ""},

		{"a window too large", streamed(t, a, zstd.WithWindowSize(4<<20)), source.Zstd, fault.LayerWindow, "1048576"},
		{"a huge window", huge, source.Zstd, fault.LayerArchive, ""},
		{"a huge window and a block", append(huge, 1, 0, 0), source.Zstd, fault.LayerWindow, "1048576"},
		{"a huge segment", append(single, 1, 0, 0), source.Zstd, fault.LayerWindow, "34359738368"},
		{"a large second window", join(z, huge, []byte{1, 0, 0}), source.Zstd, fault.LayerWindow, "1048576"},
		{"a dictionary", append([]byte("\x28\xb5\x2f\xfd\x03\x00\x07\x00\x00\x00"), 1, 0, 0), source.Zstd, fault.LayerMedia, "dictionary"},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := source.Limits{Window: 1 << 20}
			got, err := decompress(bytes.NewReader(c.packed), c.c, l)
			if c.name == "a huge window" { // nothing follows: either is right
				if fault.Of(err) != fault.LayerArchive && fault.Of(err) != fault.LayerWindow {
					t.Errorf("%v", err)
				}
				return
			}
			refused(t, err, c.want, c.says)
			if len(got) > 0 && !bytes.HasPrefix(join(a, a), got) && c.name != "damaged gzip" && c.name != "damaged zstd" {
				t.Error("other bytes came out")
			}
			// Who gave the bytes has the first word.
			broken := errors.New("broken line")
			if _, err := decompress(io.MultiReader(bytes.NewReader(c.packed), iotest.ErrReader(broken)), c.c, l); !errors.Is(err, broken) {
				t.Errorf("the line broke, and the bytes were blamed: %v", err)
			}
		})
	}
}

func TestWhatGrowsTooMuch(t *testing.T) {
	t.Parallel()
	zeros := make([]byte, 2<<20)
	l := source.Limits{Ratio: 200, Growth: 1 << 20}
	for name, c := range map[string]struct {
		packed []byte
		c      source.Compression
		want   *fault.Code
	}{
		"gzip":            {gzipped(t, zeros), source.Gzip, fault.TooCompressed},
		"zstd":            {zstded(t, zeros), source.Zstd, fault.TooCompressed},
		"gzip in members": {bytes.Repeat(gzipped(t, zeros[:1<<18]), 8), source.Gzip, fault.TooCompressed},
		"a little":        {gzipped(t, zeros[:1<<20]), source.Gzip, nil},
		"not by much":     {gzipped(t, join(text(50_000), zeros)), source.Gzip, nil},
	} {
		got, err := decompress(bytes.NewReader(c.packed), c.c, l)
		switch {
		case c.want == nil && err != nil:
			t.Errorf("%s: %v", name, err)
		case c.want != nil:
			refused(t, err, c.want, "more than 200 times")
			if len(got) > 3<<19 {
				t.Errorf("%s: %d bytes came out", name, len(got))
			}
		}
	}
	// By default an honest image's zeros pass.
	if _, err := decompress(bytes.NewReader(gzipped(t, make([]byte, 4<<20))), source.Gzip, source.Limits{}); err != nil {
		t.Error(err)
	}
}

func TestReadsAreLarge(t *testing.T) {
	t.Parallel()
	a := text(1 << 20)
	for _, c := range []source.Compression{source.None, source.Gzip, source.Zstd} {
		packed := map[source.Compression][]byte{source.None: a, source.Gzip: gzipped(t, a), source.Zstd: zstded(t, a)}[c]
		r, err := source.Decompress(bytes.NewReader(packed), c, source.Limits{})
		if err != nil {
			t.Fatal(err)
		}
		if n, err := r.Read(make([]byte, 700_000)); n != 700_000 || err != nil {
			t.Errorf("%s: %d bytes and %v", c, n, err)
		}
		if n, err := r.Read(make([]byte, 700_000)); n != 1<<20-700_000 || err != nil {
			t.Errorf("%s: then %d bytes and %v", c, n, err)
		}
		if n, err := r.Read(make([]byte, 1)); n != 0 || !errors.Is(err, io.EOF) {
			t.Errorf("%s: at the end %d bytes and %v", c, n, err)
		}
		if err := errors.Join(r.Close(), r.Close()); err != nil {
			t.Error(err)
		}
		if _, err := r.Read(make([]byte, 1)); err == nil || errors.Is(err, io.EOF) {
			t.Errorf("%s: after close: %v", c, err)
		}
	}
}

// What the reference program makes is read, at each of its levels.
func TestTheReferenceCompressor(t *testing.T) {
	t.Parallel()
	plain := text(1 << 20)
	file := filepath.Join(t.TempDir(), "plain")
	if err := os.WriteFile(file, plain, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"-1"}, {"-3", "--no-check"}, {"-19"}, {"-3", "-T2", "-B200000"}, {"--ultra", "-22"}, {"--long=27", "-3"}} {
		out, err := exec.Command("zstd", append(args, "-q", "-c", file)...).Output()
		if err != nil {
			t.Fatalf("this test needs zstd: %v", err)
		}
		if got, err := decompress(bytes.NewReader(out), source.Zstd, source.Limits{}); err != nil || !bytes.Equal(got, plain) {
			t.Errorf("zstd %v: %d bytes and %v", args, len(got), err)
		}
	}
	in := exec.Command("zstd", "--long=28", "-3", "-q", "-c") // of a pipe, so without the size
	in.Stdin = bytes.NewReader(plain)
	out, err := in.Output()
	if err != nil {
		t.Fatal(err)
	}
	_, err = decompress(bytes.NewReader(out), source.Zstd, source.Limits{})
	refused(t, err, fault.LayerWindow, "134217728")
}

func BenchmarkDecompress(b *testing.B) {
	plain := text(32 << 20)
	for _, c := range []source.Compression{source.None, source.Gzip, source.Zstd} {
		packed := plain
		switch c {
		case source.Gzip:
			packed = gzipped(b, plain)
		case source.Zstd:
			packed = zstded(b, plain)
		}
		b.Run(c.String(), func(b *testing.B) {
			b.SetBytes(int64(len(plain)))
			b.ReportAllocs()
			buf := make([]byte, 256<<10)
			for b.Loop() {
				r, err := source.Decompress(bytes.NewReader(packed), c, source.Limits{})
				if err != nil {
					b.Fatal(err)
				}
				if _, err := io.CopyBuffer(io.Discard, struct{ io.Reader }{r}, buf); err != nil {
					b.Fatal(err)
				}
				_ = r.Close()
			}
		})
	}
}
