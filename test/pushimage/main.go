// Command pushimage makes an image of one layer from a tar file and pushes it
// to a registry, as the demo and the tests need one: there is no public
// registry to pull from.
package main

import (
	"fmt"
	"os"
	"runtime"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: pushimage ROOTFS.tar REFERENCE")
		os.Exit(2)
	}
	if err := push(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "pushimage:", err)
		os.Exit(1)
	}
}

func push(tar, reference string) error {
	ref, err := name.ParseReference(reference, name.Insecure)
	if err != nil {
		return err
	}
	layer, err := tarball.LayerFromFile(tar, tarball.WithCompressionLevel(1))
	if err != nil {
		return err
	}
	image, err := mutate.AppendLayers(empty.Image, layer)
	if err != nil {
		return err
	}
	file, err := image.ConfigFile()
	if err != nil {
		return err
	}
	file = file.DeepCopy()
	file.OS, file.Architecture = "linux", runtime.GOARCH
	file.Config = v1.Config{Cmd: []string{"/bin/bash"}, Env: []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}}
	if image, err = mutate.ConfigFile(image, file); err != nil {
		return err
	}
	return remote.Write(ref, image)
}
