package rootfs_test

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/rootfs"
)

// certificate is a CA in PEM.
func certificate(t *testing.T) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "egress"}, NotBefore: time.Unix(0, 0), NotAfter: time.Unix(1<<32, 0), IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, c, c, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

func TestTheCertificateGoesWhereProgramsLook(t *testing.T) {
	const anchor, bundle, redHat = "usr/local/share/ca-certificates/paddock.crt", "etc/ssl/certs/ca-certificates.crt", "etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem"
	ca := string(certificate(t))
	for _, c := range []struct {
		name   string
		layers stack
		want   map[string]string // what files hold
		done   []string
		left   []string
	}{
		{
			name: "nothing there", layers: stack{{file("a", "1")}},
			want: map[string]string{bundle: ca}, done: []string{bundle + " created"},
		},
		{
			name:   "debian",
			layers: stack{{dir("usr/share/ca-certificates"), mode(file(bundle, "old"), 0o640), hardlink("twin", bundle)}},
			want:   map[string]string{anchor: ca, bundle: "old\n" + ca, "twin": "old\n" + ca},
			done:   []string{anchor + " created", bundle + " appended"},
		},
		{
			name:   "debian without the package",
			layers: stack{{file("etc/debian_version", "12")}},
			want:   map[string]string{anchor: ca, bundle: ca},
			done:   []string{anchor + " created", bundle + " created"},
		},
		{
			name:   "alpine",
			layers: stack{{file("etc/alpine-release", "3"), file(bundle, "old\n"), file("etc/ssl/cert.pem", "more\n")}},
			want:   map[string]string{anchor: ca, bundle: "old\n" + ca, "etc/ssl/cert.pem": "more\n" + ca},
			done:   []string{anchor + " created", bundle + " appended", "etc/ssl/cert.pem appended"},
		},
		{
			name:   "alpine with a link",
			layers: stack{{file("etc/alpine-release", "3"), file(bundle, "old\n"), symlink("etc/ssl/cert.pem", "/"+bundle)}},
			want:   map[string]string{anchor: ca, bundle: "old\n" + ca},
			done:   []string{anchor + " created", bundle + " appended"},
		},
		{
			name: "red hat",
			layers: stack{{
				file(redHat, "old\n"), dir("etc/pki/ca-trust/source/anchors"), dir("etc/pki/tls/certs"), symlink("etc/pki/tls/certs/ca-bundle.crt", "/"+redHat), dir("etc/ssl"), symlink("etc/ssl/certs", "../pki/tls/certs"),
				file("etc/pki/ca-trust/extracted/java/cacerts", "j"),
			}},
			want: map[string]string{"etc/pki/ca-trust/source/anchors/paddock.crt": ca, redHat: "old\n" + ca},
			done: []string{"etc/pki/ca-trust/source/anchors/paddock.crt created", redHat + " appended"},
			left: []string{"java: not written: etc/pki/ca-trust/extracted/java/cacerts"},
		},
		{
			name:   "red hat without a bundle",
			layers: stack{{dir("etc/pki/tls/certs"), dir("etc/ssl"), symlink("etc/ssl/certs", "../pki/tls/certs")}},
			want:   map[string]string{"etc/pki/tls/certs/ca-certificates.crt": ca},
			done:   []string{"etc/pki/tls/certs/ca-certificates.crt created"},
		},
		{
			name:   "there already",
			layers: stack{{file(bundle, "old\n"+ca)}},
			want:   map[string]string{bundle: "old\n" + ca},
			done:   []string{bundle + " present"},
		},
		{
			name:   "a link that leads nowhere",
			layers: stack{{symlink(bundle, "/nowhere"), symlink("etc/ssl/cert.pem", "cert.pem")}},
			want:   map[string]string{bundle: ca},
			done:   []string{bundle + " replaced"},
		},
		{
			name:   "too large",
			layers: stack{{file(bundle, strings.Repeat("x", 8<<20+1))}},
			left:   []string{bundle + ": it has 8388609 bytes, at most 8388608 are read"},
		},
		{
			name:   "something in the way",
			layers: stack{{file("etc/ssl", "1"), file("etc/debian_version", "12")}},
			want:   map[string]string{anchor: ca},
			done:   []string{anchor + " created"},
			left:   []string{bundle + `: entry "` + bundle + `": "ssl", in which it lies, is no directory: layer_path`},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := plain(t, c.layers.archives(t)...)
			p.CA = []byte(ca)
			b := make1(t, p)
			for path, want := range c.want {
				if got := b.content(t, path); got != want {
					t.Errorf("%s holds %q", path, got)
				}
			}
			var done []string
			for _, i := range b.Receipt.Injected {
				if i.What == "ca" {
					done = append(done, i.Path+" "+i.How)
				}
			}
			if !slices.Equal(done, c.done) || !slices.Equal(b.Receipt.NotWritten, c.left) {
				t.Errorf("done %q, left %q", done, b.Receipt.NotWritten)
			}
		})
	}
}

// TestASparseBundleIsReadBack: holes and all.
func TestASparseBundleIsReadBack(t *testing.T) {
	body := "begin" + strings.Repeat("\x00", 100_000) + "end\n"
	p := plain(t, sparse(t, "etc/ssl/cert.pem", map[int64]string{0: "begin", 100_005: "end\n"}))
	p.CA = certificate(t)
	if got := make1(t, p).content(t, "etc/ssl/cert.pem"); got != body+string(p.CA) {
		t.Errorf("%d bytes, want %d", len(got), len(body)+len(p.CA))
	}
	p.CA = nil
	if got := make1(t, p).content(t, "etc/ssl/cert.pem"); got != body {
		t.Errorf("untouched: %d bytes, want %d", len(got), len(body))
	}
}

func TestMountPointsAreDirectories(t *testing.T) {
	b := make1(t, plain(t, archive(t, symlink("proc", "/etc"), file("sys", "1"), mode(dir("dev"), 0o700), symlink("tmp", "var/tmp"), symlink(".paddock", "/etc"), dir("etc"))))
	for path, mode := range map[string]uint32{"proc": 0o40755, "sys": 0o40755, "dev": 0o40700, "tmp": 0o120777, ".paddock": 0o40755} {
		if s, err := b.im.Lookup(path); err != nil || s.Mode != mode {
			t.Errorf("%s: %o, %v", path, s.Mode, err)
		}
	}
	if _, err := b.im.Lookup("etc/guest"); err == nil {
		t.Error("the guest was put elsewhere")
	}
	if got := b.content(t, rootfs.GuestPath); got != "the guest" {
		t.Errorf("guest holds %q", got)
	}
}

func TestOnlyCertificatesAreTaken(t *testing.T) {
	ca := certificate(t)
	key := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: []byte("x")})
	odd := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte("x")})
	for name, b := range map[string][]byte{"empty": nil, "key": append(bytes.Clone(ca), key...), "text": []byte("no PEM"), "odd": odd, "large": bytes.Repeat(ca, 1<<20/len(ca)+1)} {
		path := filepath.Join(t.TempDir(), "ca.pem")
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := rootfs.ReadCA(path); fault.Of(err) != fault.InvalidInput {
			t.Errorf("%s: %v", name, err)
		}
	}
	path := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(path, append([]byte("# a comment\n\n"), append(ca, ca...)...), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := rootfs.ReadCA(path); err != nil || !bytes.Equal(got, append(bytes.Clone(ca), ca...)) {
		t.Errorf("%q, %v", got, err)
	}
}

func pemFile(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(path, certificate(t), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}
