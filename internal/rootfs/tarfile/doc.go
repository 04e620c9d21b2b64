// Package tarfile reads the tar archive of an image's layer, one entry after
// another, from a stream.
//
// It knows the archive's format and nothing else: not what a layer, a whiteout
// or a file system is. It is strict: what two unpackers in use would read as
// two different trees is refused, with the entry's name. It must never trust a
// number in the archive: memory grows with the bytes that were read, up to the
// Limits, never with what a header claims.
//
// # Formats
//
// V7, ustar, GNU (long names, base-256 numbers, sparse files with extension
// blocks), PAX (GNU.sparse 0.0, 0.1 and 1.0; SCHILY.xattr and
// LIBARCHIVE.xattr), star.
//
// # What is accepted, and why
//
//   - The typeflags '0', NUL and '7' are regular files; NUL and a name that
//     ends in a slash is a directory, as V7 has no other. A regular file of
//     another typeflag whose name ends in a slash is refused: some unpackers
//     make a directory of it, some a file.
//   - All other typeflags are refused with fault.LayerType, volume headers
//     ('V') and multi-volume parts ('M') too: no unpacker of images takes them.
//   - Only regular files have contents. A size on anything else is refused: some
//     unpackers skip as many bytes, some none.
//   - An archive may end without its two zero blocks, but only where an entry
//     ends, at most in the padding behind it. One zero block and the end is an
//     end too; one zero block and an entry is refused.
//   - A name of nothing but slashes is the root, as "." is; builders write it.
//   - A device in a V7 header is refused: the format has no device numbers.
//   - A number may be followed by anything behind a NUL, and by spaces.
//   - The access and change times of a GNU header are not used, but what is no
//     number there is refused: old writers put half of a name into them.
//   - Sums over signed bytes are accepted, as old writers made them.
//
// # PAX records
//
// Used are path, linkpath, size, uid, gid, mtime, GNU.sparse.*, SCHILY.xattr.*,
// LIBARCHIVE.xattr.* and SCHILY.devmajor and devminor; others are skipped.
// Seconds before 1970 are read as everybody but bsdtar writes them: -1.5 is one
// and a half seconds before. Of two records of one key the last one counts, and
// an empty one takes an earlier one back. Two extended headers before one entry,
// two long names, a long name beside a path, and an extended header before the
// end are refused.
//
// A global header gives uid, gid and mtime to the entries behind it. Global
// records of what is an entry's own (path, linkpath, size, GNU.sparse.*, extended
// attributes, device numbers) are refused.
//
// Names of extended attributes are taken as they are written, as image
// unpackers do; those of LIBARCHIVE.xattr with %XX decoded. One attribute in
// both forms counts once if the values are equal. POSIX ACLs as text
// (SCHILY.acl), SELinux labels of RHT.security.selinux and file flags are
// skipped, as image unpackers do.
//
// # Memory
//
// An Entry, its name and target; 16 bytes a segment of a sparse file; copies of
// its extended attributes. The Reader keeps the extended headers of one entry
// and, if contents are left unread, one buffer of 32 KiB.
package tarfile
