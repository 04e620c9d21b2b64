package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/platform/treetar"
)

// uploadTree makes target in the sandbox hold what the directory source holds.
func (a *app) uploadTree(ctx context.Context, api *cubeapi.Client, source, box, target string) error {
	root, err := os.OpenRoot(source)
	if err != nil {
		return fault.Wrap(fault.InvalidInput, err, "source")
	}
	defer root.Close()
	out, in := io.Pipe()
	packed := make(chan error, 1)
	left := 0
	go func() { // until the tree is sent, or nobody reads on
		var err error
		left, err = treetar.Pack(ctx, in, root, treetar.PackOptions{})
		in.CloseWithError(err)
		packed <- err
	}()
	err = api.WriteArchive(ctx, box, target, out)
	out.CloseWithError(err)
	if own := <-packed; own != nil && !errors.Is(own, err) && !errors.Is(own, io.ErrClosedPipe) {
		return fault.Wrap(fault.InvalidInput, own, "source")
	}
	a.tellLeft(left)
	return err
}

// tellLeft tells of files that an archive cannot have.
func (a *app) tellLeft(n int) {
	if n > 0 {
		fmt.Fprintf(a.stderr, "%d sockets, pipes or devices were left out\n", n)
	}
}

// downloadTree makes the directory target hold what source in the sandbox holds.
// Nothing of the archive, which a sandbox made, leads out of target.
func downloadTree(ctx context.Context, api *cubeapi.Client, box, source, target string) error {
	if err := os.MkdirAll(target, 0o777); err != nil { // less what the umask takes
		return targetFault(err)
	}
	root, err := os.OpenRoot(target)
	if err != nil {
		return targetFault(err)
	}
	defer root.Close()
	out, in := io.Pipe()
	read := make(chan error, 1)
	go func() { // until the archive has come, or is not read on
		err := api.ReadArchive(ctx, box, source, in)
		in.CloseWithError(err)
		read <- err
	}()
	err = treetar.Unpack(ctx, root, out, treetar.UnpackOptions{Plain: true})
	out.CloseWithError(errors.Join(io.ErrClosedPipe, err))
	if far := <-read; far != nil && !errors.Is(far, io.ErrClosedPipe) {
		return far
	}
	if err != nil && fault.Of(err) == fault.Bug {
		return targetFault(err)
	}
	return err
}
