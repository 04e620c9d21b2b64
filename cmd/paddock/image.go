package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/rootfs/ext4"
)

func (a *app) imageCommand() *cobra.Command {
	c := &cobra.Command{Use: "image", Short: "Make ext4 images of container images, and look into them; needs no server"}
	c.AddCommand(a.buildCommand(), a.inspectCommand())
	return c
}

// inspection is what `image inspect` is asked for.
type inspection struct {
	file, tree, cat, receipt string
	check                    bool
}

// wholeTree is what --tree means without a path.
const wholeTree = "/"

func (a *app) inspectCommand() *cobra.Command {
	var in inspection
	c := &cobra.Command{
		Use: "inspect FILE [PATH]", Short: "Show what an ext4 image holds, or verify it", Args: args(1, 2),
		Long: `Shows what an ext4 image is and counts what it holds. It only reads the file:
nothing is mounted, and no root is needed.

  --tree             lists every entry as ls -l does, --tree=PATH those at and below PATH
  --cat PATH         writes one file's content to standard output
  --verify RECEIPT   checks the format, every chunk, and the whole file against a receipt
  --check            checks the format alone: every checksum, bitmap, count and link

Symlinks in a PATH are followed as they would be inside the image.`,
		Example: `  paddock image inspect base.ext4
  paddock image inspect base.ext4 --tree /etc
  paddock image inspect base.ext4 --cat /etc/os-release
  paddock image inspect base.ext4 --verify base.json -o json`,
		ValidArgsFunction: func(_ *cobra.Command, given []string, _ string) ([]string, cobra.ShellCompDirective) {
			if len(given) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return nil, cobra.ShellCompDirectiveDefault
		},
		RunE: func(c *cobra.Command, given []string) error {
			in.file = given[0]
			if n := changed(c, "tree", "cat", "verify", "check"); n > 1 {
				return fault.New(fault.InvalidInput, "%d of --tree, --cat, --verify and --check are given: one at a time", n)
			}
			if len(given) == 2 {
				// A flag with an optional value leaves "--tree PATH" as an argument.
				if in.tree != wholeTree {
					return fault.New(fault.InvalidInput, "%q: a PATH belongs to --tree; usage: %s", given[1], c.UseLine())
				}
				in.tree = given[1]
			}
			return a.inspect(c.Context(), in)
		},
	}
	f := c.Flags()
	f.StringVar(&in.tree, "tree", "", "list the entries at and below `PATH`")
	f.Lookup("tree").NoOptDefVal = wholeTree
	f.StringVar(&in.cat, "cat", "", "write the content of the file at `PATH` to standard output")
	f.StringVar(&in.receipt, "verify", "", "check the format, and the bytes against the `RECEIPT`")
	f.BoolVar(&in.check, "check", false, "check the format")
	_ = c.MarkFlagFilename("verify", "json") // both are flags of this command
	return c
}

func changed(c *cobra.Command, flags ...string) (n int) {
	for _, f := range flags {
		if c.Flags().Changed(f) {
			n++
		}
	}
	return n
}

func (a *app) inspect(ctx context.Context, in inspection) (err error) {
	f, size, err := openImage(in.file)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if in.receipt != "" {
		return a.verifyImage(ctx, in, f, size)
	}
	im, err := ext4.Open(f, size)
	switch {
	case err != nil:
		return fmt.Errorf("%s: %w", in.file, err)
	case in.cat != "":
		err = a.catFile(ctx, im, in.cat)
	case in.tree != "":
		err = a.listTree(ctx, im, in.tree)
	case in.check:
		err = a.checkImage(ctx, im, in.file)
	default:
		err = a.describeImage(ctx, im, in.file)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", in.file, err)
	}
	return nil
}

// openImage opens a file, or a device, and says how large it is.
func openImage(path string) (*os.File, int64, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, 0, fault.Wrap(fault.InvalidInput, err, "image file")
	}
	info, err := f.Stat()
	if err == nil && info.IsDir() {
		err = fmt.Errorf("%s: is a directory", path)
	}
	var size int64
	if err == nil {
		size, err = f.Seek(0, io.SeekEnd) // of a device too
	}
	if err != nil {
		return nil, 0, errors.Join(fault.Wrap(fault.InvalidInput, err, "image file"), f.Close())
	}
	return f, size, nil
}

// imageInfo is an image as `image inspect` shows it.
type imageInfo struct {
	File        string       `json:"file"`
	SizeBytes   int64        `json:"size_bytes"`
	UUID        string       `json:"uuid"`
	Label       string       `json:"label"`
	MadeAt      time.Time    `json:"made_at"`
	BlockBytes  int64        `json:"block_bytes"`
	Blocks      int64        `json:"blocks"`
	FreeBlocks  int64        `json:"free_blocks"`
	Inodes      int64        `json:"inodes"`
	FreeInodes  int64        `json:"free_inodes"`
	Groups      int64        `json:"groups"`
	GroupBlocks int64        `json:"group_blocks"`
	Features    []string     `json:"features"`
	Entries     entryCounter `json:"entries"`
}

// entryCounter counts names. Bytes are counted once for a file with many.
type entryCounter struct {
	Total       int64 `json:"total"` // without the root
	Files       int64 `json:"files"`
	Directories int64 `json:"directories"`
	Symlinks    int64 `json:"symlinks"`
	Devices     int64 `json:"devices"`
	Others      int64 `json:"others"`     // FIFOs and sockets
	HardLinks   int64 `json:"hard_links"` // names beyond the first of an inode
	FileBytes   int64 `json:"file_bytes"`
	StoredBytes int64 `json:"stored_bytes"` // of files, in whole blocks; less for sparse ones

	seen map[uint32]bool // inodes with many names
}

func (n *entryCounter) add(path string, s ext4.Stat) {
	if path == "" {
		return
	}
	n.Total++
	switch s.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		n.Files++
	case unix.S_IFDIR:
		n.Directories++
	case unix.S_IFLNK:
		n.Symlinks++
	case unix.S_IFCHR, unix.S_IFBLK:
		n.Devices++
	default:
		n.Others++
	}
	if s.Links > 1 && !s.IsDir() {
		if n.seen[s.Inode] {
			n.HardLinks++
			return
		}
		if n.seen == nil {
			n.seen = map[uint32]bool{}
		}
		n.seen[s.Inode] = true
	}
	if s.IsRegular() {
		n.FileBytes += s.Size
		n.StoredBytes += s.Blocks * 512
	}
}

func (a *app) describeImage(ctx context.Context, im *ext4.Image, file string) error {
	i := im.Info()
	show := imageInfo{
		File: file, SizeBytes: i.Size, UUID: uuid.UUID(i.UUID).String(), Label: i.Label, MadeAt: i.Made.UTC(), BlockBytes: i.Size / max(i.Blocks, 1),
		Blocks: i.Blocks, FreeBlocks: i.FreeBlocks, Inodes: i.Inodes, FreeInodes: i.FreeInodes, Groups: i.Groups, GroupBlocks: i.GroupBlocks, Features: i.Features,
	}
	err := im.Walk(ctx, func(path string, s ext4.Stat) error {
		show.Entries.add(path, s)
		return nil
	})
	if err != nil {
		return err
	}
	return a.show(show, func(w io.Writer) { printImage(w, show) })
}

func printImage(w io.Writer, i imageInfo) {
	n := i.Entries
	fmt.Fprintf(w, "file:\t%s\nsize:\t%d bytes (%d MiB)\nuuid:\t%s\nlabel:\t%s\nmade_at:\t%s\n", shown(i.File), i.SizeBytes, i.SizeBytes>>20, i.UUID, shown(i.Label), i.MadeAt.Format(time.RFC3339))
	fmt.Fprintf(w, "blocks:\t%d of %d bytes, %d free\ninodes:\t%d, %d free\ngroups:\t%d of %d blocks\nfeatures:\t%s\n",
		i.Blocks, i.BlockBytes, i.FreeBlocks, i.Inodes, i.FreeInodes, i.Groups, i.GroupBlocks, strings.Join(i.Features, " "))
	fmt.Fprintf(w, "entries:\t%d: %d files, %d directories, %d symlinks, %d devices, %d others; %d are further hard links\n", n.Total, n.Files, n.Directories, n.Symlinks, n.Devices, n.Others, n.HardLinks)
	fmt.Fprintf(w, "file_bytes:\t%d, stored in %d\n", n.FileBytes, n.StoredBytes)
}
