package tarfile_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/rootfs/tarfile"
)

// The tests write archives by hand, a block at a time.

// edit changes a header block before its checksum is made.
type edit func(b []byte)

func at(off int, s string) edit { return func(b []byte) { copy(b[off:], s) } }

// Of a format: the magic, and what goes with it.
func ustar(b []byte)          { copy(b[257:], "ustar\x0000") }
func gnu(b []byte)            { copy(b[257:], "ustar  \x00") }
func star(b []byte)           { ustar(b); copy(b[476:], "14000000000 14000000000 "); copy(b[508:], "tar\x00") }
func v7([]byte)               {}
func prefix(s string) edit    { return at(345, s) }
func mode(s string) edit      { return at(100, s) }
func uid(s string) edit       { return at(108, s) }
func gid(s string) edit       { return at(116, s) }
func size(s string) edit      { return at(124, s) }
func mtime(s string) edit     { return at(136, s) }
func target(s string) edit    { return at(157, s) }
func device(a, b string) edit { return func(h []byte) { copy(h[329:], a); copy(h[337:], b) } }
func sizeOf(n int) edit       { return size(fmt.Sprintf("%011o", n)) }
func binary(n int, s ...byte) string { // base 256, n bytes
	out := make([]byte, n)
	copy(out[n-len(s):], s)
	out[0] |= 0x80
	return string(out)
}

// block is a header with its checksum.
func block(name string, flag byte, edits ...edit) []byte {
	b := make([]byte, 512)
	copy(b, name)
	copy(b[100:], "0000644\x000000000\x000000000\x0000000000000\x0000000000000\x00")
	b[156] = flag
	for _, e := range edits {
		e(b)
	}
	sum := 0
	copy(b[148:], "        ")
	for _, c := range b {
		sum += int(c)
	}
	copy(b[148:], fmt.Sprintf("%06o\x00 ", sum))
	return b
}

func padded(s string) []byte {
	return append([]byte(s), make([]byte, -len(s)&511)...)
}

// entry is a header and contents.
func entry(name string, flag byte, body string, edits ...edit) []byte {
	b := block(name, flag, append([]edit{sizeOf(len(body)), ustar}, edits...)...)
	return append(b, padded(body)...)
}

// pairs makes PAX records.
func pairs(kv ...string) string {
	var out strings.Builder
	for i := 0; i < len(kv); i += 2 {
		rest := " " + kv[i] + "=" + kv[i+1] + "\n"
		n := len(rest)
		for n != len(rest)+len(fmt.Sprint(n)) {
			n = len(rest) + len(fmt.Sprint(n))
		}
		fmt.Fprint(&out, n, rest)
	}
	return out.String()
}

func pax(kv ...string) []byte    { return entry("x", 'x', pairs(kv...)) }
func global(kv ...string) []byte { return entry("g", 'g', pairs(kv...)) }
func long(s string) []byte       { return entry("././@LongLink", 'L', s+"\x00", gnu) }
func longLink(s string) []byte   { return entry("././@LongLink", 'K', s+"\x00", gnu) }

var end = make([]byte, 1024)

func join(parts ...[]byte) []byte { return bytes.Join(parts, nil) }

// ranges are fields of an old sparse map.
func ranges(n ...int) string {
	var out strings.Builder
	for _, v := range n {
		fmt.Fprintf(&out, "%011o\x00", v)
	}
	return out.String()
}

// oldSparse is a file of the old GNU format; more are its extension blocks.
func oldSparse(body string, real int, first string, more ...string) []byte {
	extended := func(left int) string { return map[bool]string{true: "\x01", false: "\x00"}[left > 0] }
	out := block("sparse", 'S', sizeOf(len(body)), gnu, at(386, first), at(482, extended(len(more))), at(483, fmt.Sprintf("%011o", real)))
	for i, m := range more {
		b := make([]byte, 512)
		copy(b, m)
		copy(b[504:], extended(len(more)-1-i))
		out = append(out, b...)
	}
	return append(out, padded(body)...)
}

// read is an entry and its stored contents.
type read struct {
	*tarfile.Entry
	body string
}

// readAll reads a whole archive.
func readAll(src io.Reader, l tarfile.Limits) ([]read, error) {
	r := tarfile.NewReader(src, l)
	var list []read
	for {
		e, err := r.Next()
		if errors.Is(err, io.EOF) {
			return list, r.Finish()
		}
		if err != nil {
			return list, err
		}
		body, err := io.ReadAll(r)
		if err != nil {
			return list, err
		}
		if int64(len(body)) != r.Stored() {
			return list, fmt.Errorf("%q has %d bytes, and %d are stored", e.Name, len(body), r.Stored())
		}
		list = append(list, read{e, string(body)})
	}
}

// one reads an archive of one entry.
func one(t *testing.T, archive []byte, l tarfile.Limits) read {
	t.Helper()
	list, err := readAll(bytes.NewReader(archive), l)
	if err != nil || len(list) != 1 {
		t.Fatalf("%d entries, %v", len(list), err)
	}
	return list[0]
}

// refused holds an error against a code and a part of its message.
func refused(t *testing.T, err error, code *fault.Code, says string) {
	t.Helper()
	if err == nil || fault.Of(err) != code || !strings.Contains(err.Error(), says) {
		t.Errorf("got %v, want %s that says %q", err, code.Name, says)
	}
}
