// Package ext4 writes ext4 images from a tree and streamed file contents, in
// one pass and always with the same bytes, and reads such images back.
//
// It knows the on-disk format and nothing else: not what a layer, a tar or a
// registry is. It needs no root, no mount and no temporary file, keeps file
// contents out of memory, and must never read a clock, a random source or the
// host's file system: an image is a function of what the caller passed.
//
// # Use
//
//	w, err := ext4.New(file, ext4.Options{UUID: id, HashSeed: seed})
//	d, err := w.Allot(size, nil)             // where the bytes will lie
//	s := w.Stream(); s.Copy(d, contents)     // one Stream a goroutine
//	n, err := w.Add(ext4.Root, "hello", ext4.Meta{Mode: 0o100644, Data: d})
//	l, err := w.Layout()                     // exact size; may come before the contents
//	l, err = w.Finish()                      // all metadata
//
// The order of the calls of Allot fixes where contents lie; the order of Add
// fixes inode numbers. Nothing else does: contents may be streamed in any
// order, from any number of goroutines, before or after Add and Layout. So a
// caller that knows the whole tree first can lay it out as it likes, and one
// that learns it from a stream can write contents as they arrive. Within a
// directory, names may be added in any order.
//
// # Layout
//
// Blocks are 4 KiB. In the order of the image:
//
//	block 0            boot space, superblock at byte 1024
//	blocks 1..         group descriptors, 64 bytes each
//	then               block bitmaps, inode bitmaps of all groups
//	block 128 (512 KiB) contents, in the order of Allot, one run a file
//	aligned to 512 KiB directories, in the order of their inodes
//	then               long symlink targets, large xattr values, xattr blocks, extent nodes
//	aligned to 512 KiB inode tables of all groups, one after another
//	                   (bitmaps follow here when the first 512 KiB are too small)
//	                   spare blocks, if asked for; end at a multiple of 2 MiB
//
// Contents come first, so that their place does not depend on anything learnt
// later. The two alignments keep equal regions equal in 512 KiB chunks when
// what lies before them grows: a host that has the last version of a template
// fetches only the chunks that differ.
//
// There is one copy of the superblock and its descriptors (sparse_super2 with
// no backups): the image can be made again, and backups would cut contents in
// pieces and change chunks all over the image. flex_bg allows the tables to
// lie together. Groups have 32768 blocks; only a tree with so many inodes that
// its few blocks would have too few groups gets smaller ones.
//
// # Format
//
// Features: ext_attr, dir_index, sparse_super2; filetype, extent, 64bit,
// flex_bg; large_file, huge_file, dir_nlink, extra_isize, metadata_csum. And
// where a tree needs it: ea_inode (a value that no xattr block can hold),
// large_dir (a directory of more than 258,570 blocks); metadata_csum_seed when
// the caller gives Options.ChecksumSeed. There is no journal: templates are
// mounted read-only, and a writable mount works without one.
//
// Inodes have 256 bytes, times with nanoseconds from 1901 to 2446, and keep up
// to 92 bytes of xattrs in their body. Directories of more than one block have
// an htree with the unsigned half-MD4 hash. Xattr blocks with equal contents
// are shared by up to 1024 inodes. POSIX ACLs are taken and given in the form
// of getxattr(2) and stored in ext4's own. All bitmaps are written; a group
// without inodes is marked INODE_UNINIT; every inode table is zeroed.
//
// # Memory
//
// A writer keeps about 100 bytes an entry and its name; one buffer a Stream;
// the largest directory's sort keys; equal xattr sets once. What only few
// entries can have is bounded: long symlink targets and distinct xattrs take at
// most 32 MiB beside 352 bytes a name, maps of holes 12 MiB beside 40 bytes a
// file; more is refused with fault.TooMuchMetadata. Runs of zeros that
// ElideZeros finds take 8 bytes for 32 KiB or more. A reader keeps what is
// stored, never what an image only claims to have.
package ext4
