package rootfs

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/rootfs/tarfile"
)

const (
	maxCA     = 1 << 20 // of the certificates that are put in
	maxBundle = 8 << 20 // of a bundle that they are appended to
	maxStores = 16      // Java stores that are named
)

// anchors are where the tools of a family look for certificates of the
// machine's owner. One is written when any of its signs is there.
var anchors = []struct {
	path  string
	signs []string
}{
	{"usr/local/share/ca-certificates/paddock.crt", []string{"usr/local/share/ca-certificates", "usr/share/ca-certificates", "etc/ca-certificates.conf", "etc/debian_version", "etc/alpine-release"}},
	{"etc/pki/ca-trust/source/anchors/paddock.crt", []string{"etc/pki/ca-trust"}},
	{"etc/pki/trust/anchors/paddock.crt", []string{"etc/pki/trust/anchors"}},
}

// freshBundle is written when the image has no bundle at all. Most programs
// look there first.
const freshBundle = "etc/ssl/certs/ca-certificates.crt"

// bundles are the files that programs read all certificates from.
var bundles = []string{
	freshBundle,
	"etc/ssl/cert.pem",
	"etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
	"etc/pki/tls/certs/ca-bundle.crt",
	"etc/ssl/ca-bundle.pem",
	"var/lib/ca-certificates/ca-bundle.pem",
}

// readCA reads the certificates to put in: fault.InvalidInput unless the file
// is PEM of certificates and nothing else.
func readCA(file string) ([]byte, error) {
	info, err := os.Stat(file)
	if err != nil {
		return nil, fault.Wrap(fault.InvalidInput, err, "egress certificate %s", file)
	}
	if info.Size() > maxCA {
		return nil, fault.New(fault.InvalidInput, "egress certificate %s has %d bytes, at most %d are taken", file, info.Size(), maxCA)
	}
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, fault.Wrap(fault.InvalidInput, err, "egress certificate %s", file)
	}
	var out []byte
	for rest := b; len(bytes.TrimSpace(rest)) > 0; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil || block.Type != "CERTIFICATE" {
			return nil, fault.New(fault.InvalidInput, "egress certificate %s: it must hold certificates in PEM and nothing else", file)
		}
		if _, err := x509.ParseCertificate(block.Bytes); err != nil {
			return nil, fault.Wrap(fault.InvalidInput, err, "egress certificate %s", file)
		}
		out = append(out, pem.EncodeToMemory(&pem.Block{Type: block.Type, Bytes: block.Bytes})...)
	}
	if len(out) == 0 {
		return nil, fault.New(fault.InvalidInput, "egress certificate %s holds no certificate", file)
	}
	return out, nil
}

// trust puts certificates where the image's programs look for them. What it
// cannot write it says, and goes on.
func (i *injector) trust(ca []byte) error {
	for _, a := range anchors {
		if !slices.ContainsFunc(a.signs, i.has) {
			continue
		}
		if err := i.certificate(a.path, ca); err != nil {
			return err
		}
	}
	met := map[nodeID]bool{}
	for _, b := range bundles {
		id, err := i.tree.follow(b)
		if err != nil || id == 0 {
			continue
		}
		n := i.tree.name(id).node
		if !i.tree.node(n).is(modeRegular) || met[n] {
			continue // no bundle, or one that was written under another name
		}
		met[n] = true
		if err := i.extend(n, i.tree.path(id), ca); err != nil {
			return err
		}
	}
	if len(met) == 0 {
		if err := i.certificate(freshBundle, ca); err != nil {
			return err
		}
	}
	i.javaStores()
	return nil
}

func (i *injector) has(path string) bool {
	id, err := i.tree.follow(path)
	return err == nil && id != 0
}

// certificate writes a file of its own.
func (i *injector) certificate(path string, ca []byte) error {
	real, old := i.realPath(path)
	how := "created"
	if old {
		how = "replaced"
	}
	err := i.put(tarfile.Entry{Name: path, Mode: 0o644, Size: int64(len(ca))}, bytes.NewReader(ca))
	if errors.Is(err, fault.LayerPath) { // the image has something else in the way
		i.left = append(i.left, fmt.Sprintf("%s: %v", path, err))
		return nil
	}
	if err != nil {
		return err
	}
	i.done = append(i.done, Injected{real, "ca", how})
	return nil
}

// extend appends the certificates to a bundle that lacks them.
func (i *injector) extend(n nodeID, path string, ca []byte) error {
	if size := i.size(n); size > maxBundle {
		i.left = append(i.left, fmt.Sprintf("%s: it has %d bytes, at most %d are read", path, size, maxBundle))
		return nil
	}
	body, err := i.read(n)
	if err != nil {
		return fault.Wrap(fault.BuildFailed, err, "read %s back", path)
	}
	if bytes.Contains(body, ca) {
		i.done = append(i.done, Injected{path, "ca", "present"})
		return nil
	}
	if len(body) > 0 && body[len(body)-1] != '\n' {
		body = append(body, '\n')
	}
	if err := i.rewrite(n, append(body, ca...)); err != nil {
		return err
	}
	i.done = append(i.done, Injected{path, "ca", "appended"})
	return nil
}

// realPath returns where a path leads, and whether something is there.
func (i *injector) realPath(path string) (string, bool) {
	dir, base := splitPath(path)
	p, err := i.tree.resolve(dir)
	if err != nil {
		return path, false
	}
	parts := append(slices.Clone(p.missing), base)
	real := i.tree.path(nameID(i.tree.node(p.dir).words[1]))
	for _, one := range parts {
		if real != "" {
			real += "/"
		}
		real += one
	}
	return real, len(p.missing) == 0 && i.tree.lookup(p.dir, base) != 0
}

// javaStores names the stores of Java, which have a format of their own.
func (i *injector) javaStores() {
	found := 0
	for id := nameID(1); uint32(id) < i.tree.names.end(); id++ {
		nm := i.tree.name(id)
		if nm.node == 0 || !i.tree.node(nm.node).is(modeRegular) || string(i.tree.textOf(nm)) != "cacerts" {
			continue
		}
		if found++; found <= maxStores {
			i.left = append(i.left, "java: not written: "+i.tree.path(id))
		}
	}
	if found > maxStores {
		i.left = append(i.left, fmt.Sprintf("java: not written: %d more stores", found-maxStores))
	}
}
