package rootfs_test

import (
	"archive/tar"
	"bytes"
	"fmt"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/paddock-dev/paddock/internal/rootfs"
)

// goldenStacks are layers whose images must never change while Format stays.
func goldenStacks(t *testing.T) map[string][][]byte {
	when := time.Date(2024, 1, 2, 3, 4, 5, 678_900_000, time.UTC)
	at := func(h tar.Header) tar.Header {
		return with(h, func(h *tar.Header) { h.ModTime, h.Format, h.Uid, h.Gid = when, tar.FormatPAX, 1000, 100_000 })
	}
	var wide []tar.Header
	for i := range 2000 {
		wide = append(wide, at(file(fmt.Sprintf("wide/%04d-%s", i*7919%2000, strings.Repeat("n", i%60)), fmt.Sprint(i))))
	}
	base := []tar.Header{
		at(dir("./")), at(dir("usr")), at(dir("usr/bin")), at(symlink("bin", "usr/bin")), at(mode(file("usr/bin/su", noise(70_000)), 0o4755)),
		xattr(at(file("usr/bin/ping", "ping")), "security.capability", "\x01\x00\x00\x02\x00\x20\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"),
		at(device("dev/null", 1, 3)), at(fifo("run/pipe")), at(symlink("long", strings.Repeat("far/", 100))), at(file("etc/ssl/cert.pem", "old\n")),
	}
	upper := []tar.Header{at(file("bin/new", "new")), hardlink("usr/bin/ping4", "usr/bin/ping"), file("etc/.wh.none", ""), at(file("usr/bin/su", "none")), xattr(at(file("noted", "x")), "user.note", strings.Repeat("long ", 300))}
	return map[string][][]byte{
		"nothing": nil,
		"base":    {archive(t, base...)},
		"stack":   {archive(t, base...), archive(t, upper...), archive(t), archive(t, wide...)},
		"gaps":    gappyLayers(t),
	}
}

// golden are the sums of the images of goldenStacks with a guest of fixed
// bytes. A change is a new Format.
var golden = map[string]string{
	"nothing": "0fc98f66e13f0320f3c62763598b91f76e5cce1574fc5c7de247310fc17cb256",
	"base":    "ad9ac70f734bb1cc0d4652bc98f02534548c44ba5c13648e2d605d98f692ac7f",
	"stack":   "d71f0d17ed1cd4bcd4a5e6b773eccaea33a909ecd1e71f18bfbab695ca6b8213",
	"gaps":    "5f91f3484673ef7215226aa06525c2f0a3bdf8081bb341ca10d164d85c93102f",
}

func TestGoldenImages(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(0))
	for name, layers := range goldenStacks(t) {
		for _, procs := range []int{1, 2, 8} {
			runtime.GOMAXPROCS(procs)
			p := plain(t, layers...)
			if got := make1(t, p).SHA256; got != golden[name] {
				t.Errorf("%s with %d processors: %q", name, procs, got)
			}
		}
	}
}

// TestTheSourceDoesNotMatter: a registry, cold and warm, without a cache, other
// compression, an OCI layout and a docker archive give one key and one image.
func TestTheSourceDoesNotMatter(t *testing.T) {
	s := newServer(t)
	stack := goldenStacks(t)["stack"]
	var packed []v1.Layer
	for _, l := range stack {
		packed = append(packed, layerOf(t, l))
	}
	im := imageOf(t, runtime.GOARCH, packed...)
	ref := s.push(t, "app", im)
	dir := filepath.Join(t.TempDir(), "layout")
	if _, err := layout.Write(dir, mutate.AppendManifests(empty.Index, mutate.IndexAddendum{Add: im})); err != nil {
		t.Fatal(err)
	}
	saved := filepath.Join(t.TempDir(), "saved.tar")
	tag, err := name.NewTag("app:1")
	if err == nil {
		err = tarball.WriteToFile(saved, tag, im)
	}
	if err != nil {
		t.Fatal(err)
	}
	guest := request(t, ref).GuestPath
	cache := cacheIn(t, t.TempDir())
	var first built
	var receipt string
	for i, c := range []struct {
		name string
		ref  string
		kept bool
	}{{"cold", ref, true}, {"warm", ref, true}, {"streamed", ref, false}, {"layout", "oci:" + dir, true}, {"docker archive", "docker-archive:" + saved, true}} {
		r := request(t, c.ref)
		r.GuestPath, r.Local, r.Cache = guest, true, nil
		if c.kept {
			r.Cache = cache
		}
		b := mustWrite(t, r)
		if i == 0 {
			first, receipt = b, receiptText(t, b)
		}
		if b.SHA256 != first.SHA256 || b.Receipt.ContentKey != first.Receipt.ContentKey || b.Receipt.UUID != first.Receipt.UUID {
			t.Errorf("%s: %s, key %s; want %s, %s", c.name, b.SHA256, b.Receipt.ContentKey, first.SHA256, first.Receipt.ContentKey)
		}
		if c.ref == ref && receiptText(t, b) != receipt {
			t.Errorf("%s: the receipt differs", c.name)
		}
		if c.name != "docker archive" && b.Receipt.Digest != first.Receipt.Digest {
			t.Errorf("%s: digest %s, want %s", c.name, b.Receipt.Digest, first.Receipt.Digest)
		}
	}
}

func receiptText(t *testing.T, b built) string {
	t.Helper()
	var text bytes.Buffer
	if _, err := b.Receipt.WriteTo(&text); err != nil {
		t.Fatal(err)
	}
	return text.String()
}

func TestTheReceiptReadsBack(t *testing.T) {
	p := plain(t, goldenStacks(t)["stack"]...)
	p.CA = certificate(t)
	b := make1(t, p)
	text := receiptText(t, b)
	back, err := rootfs.ReadReceipt(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	if again := receiptText(t, built{Result: rootfs.Result{Receipt: back}}); again != text {
		t.Errorf("got\n%s\nwant\n%s", again, text)
	}
	c := back.Counts
	if c.Setuid != 0 || c.Capabilities != 1 || c.Stripped.Devices != 1 || c.FIFOs != 1 || c.HardLinks != 1 || len(back.Layers) != 4 || back.Layers[3].Entries != 2000 || back.SHA256 != b.SHA256 {
		t.Errorf("receipt %s", text)
	}
	for _, bad := range []string{"", "{}", "[]", `{"version":2}`, strings.Replace(text, `"version": 1`, `"version": "1"`, 1)} {
		if _, err := rootfs.ReadReceipt(strings.NewReader(bad)); err == nil {
			t.Errorf("%.40q was read", bad)
		}
	}
}

// TestTheKeyFollowsWhatMakesTheBytes: guest, certificate and policy; limits do
// not.
func TestTheKeyFollowsWhatMakesTheBytes(t *testing.T) {
	s := newServer(t)
	ref := s.pushLayers(t, "app", archive(t, file("a", "1")))
	keys := map[string]string{}
	for name, change := range map[string]func(*rootfs.Request){
		"same":   func(*rootfs.Request) {},
		"limits": func(r *rootfs.Request) { r.Limits.Entries = 7 },
		"guest":  func(r *rootfs.Request) { r.GuestPath = "/bin/true" },
		"policy": func(r *rootfs.Request) { r.Policy.Devices = rootfs.Allow },
		"ca":     func(r *rootfs.Request) { r.EgressCA = pemFile(t) },
	} {
		r := request(t, ref)
		change(&r)
		im, err := rootfs.Resolve(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		keys[name] = im.ContentKey()
		if err := im.Close(); err != nil {
			t.Error(err)
		}
	}
	if keys["same"] != keys["limits"] || len(map[string]bool{keys["same"]: true, keys["guest"]: true, keys["policy"]: true, keys["ca"]: true}) != 4 {
		t.Errorf("keys %v", keys)
	}
}
