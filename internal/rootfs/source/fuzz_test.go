package source_test

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/rootfs/source"
)

// coded holds a parser to an answer or a coded refusal, never another error.
func coded(t *testing.T, err error) {
	t.Helper()
	if err != nil && fault.Of(err) == fault.Bug {
		t.Errorf("an error without a code: %v", err)
	}
}

func FuzzManifest(f *testing.F) {
	s := newStock()
	for _, i := range []spec{{}, {manifestType: dockerManifest, configType: dockerConfig}, {edit: bend(object{"manifests": []object{}})}} {
		d := s.image(f, i)
		f.Add(s.blobs[d["digest"].(string)], d["mediaType"].(string))
		ix := s.index(f, ociIndex, on(d, here), on(d, "linux/arm/v7"), d)
		f.Add(s.blobs[ix["digest"].(string)], "")
	}
	f.Add([]byte(`{"schemaVersion":1,"fsLayers":[]}`), "application/json")
	f.Fuzz(func(t *testing.T, b []byte, served string) {
		mediaType, digests, err := source.ReadManifest(b, served)
		coded(t, err)
		if err != nil {
			return
		}
		if mediaType == "" {
			t.Error("neither a manifest nor an index")
		}
		for _, d := range digests {
			if len(d) != 71 || bytes.ContainsAny([]byte(d), "/.\\") {
				t.Errorf("digest %q", d)
			}
		}
	})
}

func FuzzConfig(f *testing.F) {
	f.Add(savedConfig(f, nil, []byte("a"), []byte("b")))
	f.Add(savedConfig(f, object{"variant": "v7", "config": object{"Labels": object{"a": "b"}, "Env": nil}}))
	f.Add([]byte(`{"rootfs":null,"config":null}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		c, ids, err := source.ReadConfig(b)
		coded(t, err)
		if err != nil {
			return
		}
		for _, list := range [][]string{c.Env, c.Cmd, c.Entrypoint, {c.User, c.WorkingDir}} {
			for _, s := range list {
				if bytes.ContainsRune([]byte(s), 0) {
					t.Errorf("a NUL in %q", s)
				}
			}
		}
		for _, id := range ids {
			if len(id) != 71 {
				t.Errorf("diff id %q", id)
			}
		}
	})
}

func FuzzSavedManifest(f *testing.F) {
	f.Add(savedManifest(f, object{"Config": "c.json", "RepoTags": []string{"app:1"}, "Layers": []string{"l.tar"}}).body)
	f.Add([]byte(`[null]`))
	f.Add([]byte(`[{}]`))
	f.Fuzz(func(t *testing.T, b []byte) { coded(t, source.ReadSaved(b)) })
}

// FuzzSavedArchive reads whole archives, which lie about where things are.
func FuzzSavedArchive(f *testing.F) {
	plain := []byte("not an archive, but a layer")
	conf := item{name: "c.json", body: savedConfig(f, nil, plain)}
	m := savedManifest(f, object{"Config": "c.json", "RepoTags": []string{"app:1"}, "Layers": []string{"l/layer.tar"}})
	f.Add(tarOf(f, item{name: "l/layer.tar", body: plain}, conf, m))
	f.Add(tarOf(f, m, conf, item{name: "x.tar", body: plain}, item{name: "l/layer.tar", link: "../x.tar"}))
	f.Fuzz(func(t *testing.T, b []byte) {
		file := filepath.Join(t.TempDir(), "saved.tar")
		if err := os.WriteFile(file, b, 0o600); err != nil {
			t.Fatal(err)
		}
		coded(t, readAll(t, request("docker-archive:"+file)))
	})
}

// FuzzLayout reads an index.json whose entries lead to whatever is there.
func FuzzLayout(f *testing.F) {
	s := newStock()
	s.tags["1"] = s.image(f, spec{})
	dir := s.layout(f)
	index, err := os.ReadFile(filepath.Join(dir, "index.json"))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(index)
	f.Add(s.blobs[s.index(f, ociIndex, on(s.tags["1"], here))["digest"].(string)])
	f.Fuzz(func(t *testing.T, b []byte) {
		root := t.TempDir()
		if err := errors.Join(
			os.Symlink(filepath.Join(dir, "oci-layout"), filepath.Join(root, "x")), // what lies beside is of no interest
			os.WriteFile(filepath.Join(root, "oci-layout"), []byte(`{"imageLayoutVersion":"1.0.0"}`), 0o600),
			os.WriteFile(filepath.Join(root, "index.json"), b, 0o600),
			os.CopyFS(filepath.Join(root, "blobs"), os.DirFS(filepath.Join(dir, "blobs"))),
		); err != nil {
			t.Fatal(err)
		}
		coded(t, readAll(t, request("oci:"+root)))
	})
}

// FuzzDecompress holds both decoders to what our own limits say: no panic, a
// code, and not more bytes than may come out.
func FuzzDecompress(f *testing.F) {
	small := text(2000)
	for c, packed := range map[source.Compression][]byte{source.None: small, source.Gzip: gzipped(f, small), source.Zstd: zstded(f, small)} {
		f.Add(uint8(c), packed)
		f.Add(uint8(c), join(packed, packed, []byte("x")))
	}
	f.Add(uint8(2), join(skippable(3), zstded(f, small), skippable(0)))
	f.Fuzz(func(t *testing.T, c uint8, b []byte) {
		r, err := source.Decompress(bytes.NewReader(b), source.Compression(c%3), source.Limits{Window: 1 << 20, Ratio: 2, Growth: 1 << 20})
		coded(t, err)
		if err != nil {
			return
		}
		n, err := io.Copy(io.Discard, struct{ io.Reader }{r})
		coded(t, err)
		if n > 1<<20+64<<10 {
			t.Errorf("%d bytes of %d", n, len(b))
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
}
