package main

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/rootfs"
)

func (a *app) receiptCommand() *cobra.Command {
	var out string
	c := &cobra.Command{
		Use: "receipt TEMPLATE", Short: "Show what a template's image was made of", Args: args(1, 1),
		Long: `Shows what a template's image was made of: its layers, what was kept out of it
and put into it, and the sums of its bytes. With --out the receipt is written to
a file, which "paddock image inspect --verify" takes.`,
		RunE: func(c *cobra.Command, given []string) error {
			return a.with(func(api *cubeapi.Client) error {
				var b bytes.Buffer
				if err := api.Receipt(c.Context(), given[0], &b); err != nil {
					return err
				}
				r, err := rootfs.ReadReceipt(bytes.NewReader(b.Bytes()))
				if err != nil {
					return fault.Wrap(fault.PeerUnavailable, err, "receipt of template %s", given[0])
				}
				if out != "" {
					return saveReceipt(out, b.Bytes())
				}
				return a.show(r, func(w io.Writer) { printReceipt(w, r) })
			})
		},
	}
	c.Flags().StringVar(&out, "out", "", "`FILE` to write the receipt to instead; one that exists is replaced")
	_ = c.MarkFlagFilename("out", "json") // it is a flag of this command
	return c
}

// saveReceipt writes a file that appears whole or not at all.
func saveReceipt(path string, body []byte) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), ".paddock-receipt-")
	if err != nil {
		return fault.Wrap(fault.InvalidInput, err, "directory of --out")
	}
	defer func() { err = errors.Join(err, removeIfThere(f.Name())) }()
	_, err = f.Write(body)
	if err = errors.Join(err, f.Chmod(0o644), f.Sync(), f.Close()); err != nil {
		return fault.Wrap(fault.DiskFull, err, "--out")
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return fault.Wrap(fault.InvalidInput, err, "--out")
	}
	return nil
}
