package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// picture is one image that is measured with.
type picture struct {
	name    string // its tag, and the last word of its figures
	layout  string // OCI layout directory
	digests []string
	packed  int64 // bytes of its layers as they travel
}

// reference is how ours and the bound name it.
func (p picture) reference() string { return "oci:" + p.layout + ":" + p.name }

// names are the images, from the cheapest on.
var names = []string{"minbase", "toolchain", "smallfiles"}

// pictures makes the images, if they are not there, and reads what they are.
func pictures(ctx context.Context, layout, only string) ([]picture, error) {
	if layout == "" {
		c := exec.CommandContext(ctx, "scripts/bench-images.sh")
		c.Stderr = os.Stderr
		out, err := c.Output()
		if err != nil {
			return nil, fmt.Errorf("scripts/bench-images.sh: %w", err)
		}
		layout = strings.TrimSpace(string(out))
	}
	layout, err := filepath.Abs(layout)
	if err != nil {
		return nil, err
	}
	var list []picture
	for _, name := range names {
		if only != "" && only != name {
			continue
		}
		p, err := readPicture(layout, name)
		if err != nil {
			return nil, fmt.Errorf("image %s of %s: %w", name, layout, err)
		}
		list = append(list, p)
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("-only %s: there are %s", only, strings.Join(names, ", "))
	}
	return list, nil
}

// descriptor is what index and manifest say of another blob.
type descriptor struct {
	Digest      string            `json:"digest"`
	Size        int64             `json:"size"`
	Annotations map[string]string `json:"annotations"`
}

func readPicture(layout, name string) (picture, error) {
	p := picture{name: name, layout: layout}
	var index struct{ Manifests []descriptor }
	if err := readJSON(filepath.Join(layout, "index.json"), &index); err != nil {
		return p, err
	}
	for _, m := range index.Manifests {
		if m.Annotations["org.opencontainers.image.ref.name"] != name {
			continue
		}
		var manifest struct{ Layers []descriptor }
		if err := readJSON(p.blob(m.Digest), &manifest); err != nil {
			return p, err
		}
		for _, l := range manifest.Layers {
			p.digests = append(p.digests, l.Digest)
			p.packed += l.Size
		}
		return p, nil
	}
	return p, errors.New("the layout has no such tag")
}

func (p picture) blob(digest string) string {
	return filepath.Join(p.layout, "blobs", strings.Replace(digest, ":", "/", 1))
}

// warm reads every layer, so that no side pays for the disk.
func (p picture) warm() error {
	for _, d := range p.digests {
		f, err := os.Open(p.blob(d))
		if err != nil {
			return err
		}
		if _, err := io.Copy(io.Discard, f); err != nil {
			return errors.Join(err, f.Close())
		}
		if err := f.Close(); err != nil {
			return err
		}
	}
	return nil
}

func readJSON(path string, into any) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	return json.Unmarshal(b, into)
}
