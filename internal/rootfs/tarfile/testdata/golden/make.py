#!/usr/bin/env python3
"""Makes the archives of this directory, and tree.txt, which says what is in
them as the file system has it. Tests need neither this program nor the
archivers: run it, as root, only to add a case. Needs GNU tar and bsdtar.
"""

import gzip, hashlib, json, os, stat, subprocess, sys, tarfile, tempfile
from urllib.parse import quote

HERE = os.path.dirname(os.path.abspath(__file__))
NOON = 1709208000 * 10**9


def write(path, parts, size=None):
    with open(path, "wb") as f:
        for offset, data in parts:
            f.seek(offset)
            f.write(data)
        if size is not None:
            f.truncate(size)


def make_tree():
    """The whole tree; the order of the names is that of the archives."""
    long = b"long/" + b"/".join([b"part%02d-" % i + b"x" * 40 for i in range(9)])
    ns = {}  # times that are not noon
    os.makedirs(b"dir/inner")
    os.makedirs(long)
    os.mkdir(b"node")
    os.mkdir(b"sparse")
    os.mkdir(b"xattr")
    os.mkdir(b"large")
    write(b"dir/file", [(0, b"hello\n")])
    os.chown(b"dir/file", 1000, 1001)
    os.chmod(b"dir/file", 0o4755)
    os.link(b"dir/file", b"dir/hard")
    write(b"dir/empty", [])
    write(b"dir/block", [(0, b"b" * 512)])
    write(b"dir/odd", [(0, b"o" * 1537)])
    os.symlink(b"../no where/at all", b"dir/symlink")
    os.chmod(b"dir/inner", 0o1777)
    write(b"dir/past", [])
    ns[b"dir/past"] = -1500000000
    write(b"dir/nano", [])
    ns[b"dir/nano"] = NOON + 123456789
    write(b"dir/sp ace\nand line", [(0, b"1")])
    write(b"dir/\xff\xfe-no-utf8", [(0, b"2")])
    write(long + b"/file", [(0, b"long\n")])
    os.link(long + b"/file", b"long/to-long")
    os.symlink(b"t" * 300, b"long/symlink")
    write(b"long/" + b"n" * 255, [(0, b"n")])
    write(b"large/uid", [(0, b"u")])
    os.chown(b"large/uid", 3000000000, 4000000)
    write(b"large/future", [])
    ns[b"large/future"] = 9000000000 * 10**9
    os.mknod(b"node/char", 0o020620 | stat.S_IFCHR, os.makedev(5, 1))
    os.mknod(b"node/block", 0o060660 | stat.S_IFBLK, os.makedev(259, 300000))
    os.mkfifo(b"node/fifo", 0o600)
    write(b"sparse/holes", [(65536, b"one" * 100), (200000, b"two" * 2000)], 400001)
    write(b"sparse/many", [(i * 16384, bytes([65 + i]) * 4096) for i in range(40)])
    write(b"sparse/empty", [], 1 << 20)
    write(b"sparse/huge", [(9 << 30, b"far away")])
    write(b"xattr/user", [(0, b"x")])
    os.setxattr(b"xattr/user", b"user.text", b"some text")
    os.setxattr(b"xattr/user", b"user.bytes", bytes(range(256)))
    os.setxattr(b"xattr/user", b"user.empty", b"")
    os.setxattr(b"xattr/user", b"user.lines", b"a=b\n17 c=d\n")
    write(b"xattr/capable", [(0, b"c")])
    os.setxattr(b"xattr/capable", b"security.capability", bytes.fromhex("0100000200040000000000000000000000000000"))
    os.setxattr(b"xattr", b"user.dir", b"of a directory")
    names = [b"."] + sorted(os.path.relpath(os.path.join(d, n), b".") for d, dirs, files in os.walk(b".") for n in dirs + files)
    for n in reversed(names):
        t = ns.get(n, NOON)
        os.utime(n, ns=(t, t), follow_symlinks=False)
    return names


def contents(path, size):
    """A hash over the blocks of 512 bytes that are not zero, and their places."""
    h = hashlib.sha256()
    with open(path, "rb") as f:
        at = 0
        while at < size:
            try:
                at = f.seek(at, os.SEEK_DATA) // 512 * 512
            except OSError:
                break
            f.seek(at)
            block = f.read(512)
            if block.strip(b"\0"):
                h.update(b"%d:" % at + block)
            at += 512
    return h.hexdigest()


def describe(names):
    kinds = {stat.S_IFREG: 0, stat.S_IFLNK: 2, stat.S_IFCHR: 3, stat.S_IFBLK: 4, stat.S_IFDIR: 5, stat.S_IFIFO: 6}
    first, lines = {}, []
    for n in names:
        s = os.lstat(n)
        e = {"name": quote("" if n == b"." else n), "type": kinds[stat.S_IFMT(s.st_mode)], "mode": stat.S_IMODE(s.st_mode), "uid": s.st_uid, "gid": s.st_gid, "ns": s.st_mtime_ns}
        if e["type"] == 2:
            e["link"] = quote(os.readlink(n))
        elif e["type"] in (3, 4):
            e["major"], e["minor"] = os.major(s.st_rdev), os.minor(s.st_rdev)
        elif e["type"] == 0 and s.st_ino in first:
            e["type"], e["link"] = 1, quote(first[s.st_ino])
        elif e["type"] == 0:
            first[s.st_ino] = n
            e["size"], e["sha256"] = s.st_size, contents(n, s.st_size)
        attrs = {a: os.getxattr(n, a, follow_symlinks=False).hex() for a in sorted(os.listxattr(n, follow_symlinks=False))}
        if attrs and e["type"] != 1:
            e["xattrs"] = attrs
        lines.append(json.dumps(e))
    return "\n".join(lines) + "\n"


def pack(name, command, names):
    with tempfile.NamedTemporaryFile() as list_file, tempfile.NamedTemporaryFile() as out:
        list_file.write(b"".join(n + b"\0" for n in names))
        list_file.flush()
        command(out.name, list_file.name, names)
        data = open(out.name, "rb").read()
    with open(os.path.join(HERE, name + ".tar.gz"), "wb") as f:
        f.write(gzip.compress(data, 9, mtime=0))


def gnutar(*options):
    return lambda out, names, _: subprocess.check_call(["tar", "-cf", out, *options, "--numeric-owner", "--no-recursion", "--null", "-T", names])


def bsdtar(*options):
    return lambda out, names, _: subprocess.check_call(["bsdtar", "-cf", out, *options, "--numeric-owner", "-n", "--null", "-T", names])


def python(format):
    def command(out, _, names):
        with tarfile.open(out, "w", format=format, encoding="utf-8", errors="surrogateescape") as t:
            for n in names:
                t.add(os.fsdecode(n), recursive=False)
    return command


def main():
    os.umask(0o022)
    with tempfile.TemporaryDirectory() as d:
        os.chdir(d)
        names = make_tree()
        with open(os.path.join(HERE, "tree.txt"), "w") as f:
            f.write(describe(names))
        # What a format cannot hold is left out.
        small = [n for n in names if not n.startswith((b"large/", b"sparse/")) and n != b"dir/past"]
        ustar = [n for n in small if not n.startswith(b"long/") and n != b"node/block"]
        v7 = [n for n in ustar if not n.startswith(b"node/")]
        xattrs = ["--xattrs", "--xattrs-include=*"]
        pack("gnutar-gnu", gnutar("--format=gnu", "--sparse"), names)
        pack("gnutar-oldgnu", gnutar("--format=oldgnu", "--sparse", "--hole-detection=raw"), [n for n in names if n != b"sparse/huge"])
        for version in ["0.0", "0.1", "1.0"]:
            pack("gnutar-pax-sparse" + version, gnutar("--format=pax", "--sparse", "--sparse-version=" + version, *xattrs), names)
        pack("gnutar-pax-global", gnutar("--format=pax", "--pax-option=mtime=1000.25,comment=all"), ustar)
        pack("gnutar-ustar", gnutar("--format=ustar"), ustar)
        pack("gnutar-v7", gnutar("--format=v7"), v7)
        # Before 1970 bsdtar's fractions count from the second below; only itself reads them so.
        pack("bsdtar-pax", bsdtar("--format=pax", "--xattrs", "--read-sparse"), [n for n in names if n != b"dir/past"])
        pack("bsdtar-gnutar", bsdtar("--format=gnutar"), [n for n in small + [b"large/uid"] if n != b"node/block"])
        pack("bsdtar-ustar", bsdtar("--format=ustar"), ustar)
        pack("bsdtar-v7", bsdtar("--format=v7"), v7)
        short = [n for n in names if not n.startswith(b"sparse/")]
        pack("python-pax", python(tarfile.PAX_FORMAT), short)
        pack("python-gnu", python(tarfile.GNU_FORMAT), [n for n in short if n != b"dir/past"])
        pack("python-ustar", python(tarfile.USTAR_FORMAT), ustar)


main()
