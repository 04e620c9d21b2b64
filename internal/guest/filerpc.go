package guest

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	"github.com/paddock-dev/paddock/internal/envdpb"
	"github.com/paddock-dev/paddock/internal/fault"
)

const mostEntries = 100_000 // of one ListDir answer

// fileAPI is filesystem.Filesystem of the envd protocol.
type fileAPI struct{ g *Guest }

var _ envdpb.FilesystemHandler = (*fileAPI)(nil)

// target is the path and the user that a call means.
func (a *fileAPI) target(h http.Header, path string) (string, account, error) {
	u, err := a.g.owner(basicUser(h))
	if err != nil {
		return "", u, err
	}
	full, err := resolve(path, a.g.settings.current().workdir, u)
	return full, u, err
}

func (a *fileAPI) Stat(_ context.Context, r *connect.Request[envdpb.StatRequest]) (*connect.Response[envdpb.StatResponse], error) {
	path, _, err := a.target(r.Header(), r.Msg.GetPath())
	if err != nil {
		return nil, err
	}
	e, err := entryAt(path, a.g.users.names())
	return connect.NewResponse(&envdpb.StatResponse{Entry: e}), err
}

func (a *fileAPI) MakeDir(_ context.Context, r *connect.Request[envdpb.MakeDirRequest]) (*connect.Response[envdpb.MakeDirResponse], error) {
	path, u, err := a.target(r.Header(), r.Msg.GetPath())
	if err != nil {
		return nil, err
	}
	switch info, err := os.Stat(path); {
	case err == nil && info.IsDir():
		return nil, refuse(connect.CodeAlreadyExists, fault.Exists, "directory '%s' already exists", path)
	case err == nil:
		return nil, badInput("path '%s' exists and is not a directory", path)
	}
	if err := makeDirs(path, u); err != nil {
		return nil, err
	}
	e, err := entryAt(path, a.g.users.names())
	return connect.NewResponse(&envdpb.MakeDirResponse{Entry: e}), err
}

func (a *fileAPI) Move(_ context.Context, r *connect.Request[envdpb.MoveRequest]) (*connect.Response[envdpb.MoveResponse], error) {
	from, u, err := a.target(r.Header(), r.Msg.GetSource())
	if err != nil {
		return nil, err
	}
	to, _, err := a.target(r.Header(), r.Msg.GetDestination())
	if err != nil {
		return nil, err
	}
	if _, err := os.Lstat(from); err != nil {
		return nil, ofFile(from, err)
	}
	if err := makeDirs(filepath.Dir(to), u); err != nil {
		return nil, err
	}
	if err := move(from, to); err != nil {
		return nil, ofFile(to, err)
	}
	e, err := entryAt(to, a.g.users.names())
	return connect.NewResponse(&envdpb.MoveResponse{Entry: e}), err
}

// move renames, or copies and removes a file that goes to another file system.
func move(from, to string) error {
	err := os.Rename(from, to)
	if !errors.Is(err, syscall.EXDEV) {
		return err
	}
	info, err := os.Lstat(from)
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return refuse(connect.CodeFailedPrecondition, fault.StateConflict, "path '%s': only files can be moved to another file system", from)
	}
	if err := copyFile(from, to, info); err != nil {
		return err
	}
	return os.Remove(from)
}

// copyFile makes to appear whole or not at all.
func copyFile(from, to string, info fs.FileInfo) (err error) {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.CreateTemp(filepath.Dir(to), ".move-*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(out.Name()) // the first failure is told
		}
	}()
	_, err = io.Copy(out, in)
	if err = errors.Join(err, out.Chmod(info.Mode().Perm())); err != nil {
		return errors.Join(err, out.Close())
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		err = out.Chown(int(st.Uid), int(st.Gid))
	}
	if err = errors.Join(err, out.Close(), os.Chtimes(out.Name(), info.ModTime(), info.ModTime())); err != nil {
		return err
	}
	return os.Rename(out.Name(), to)
}

func (a *fileAPI) ListDir(ctx context.Context, r *connect.Request[envdpb.ListDirRequest]) (*connect.Response[envdpb.ListDirResponse], error) {
	dir, _, err := a.target(r.Header(), r.Msg.GetPath())
	if err != nil {
		return nil, err
	}
	info, err := os.Stat(dir)
	if err != nil {
		return nil, ofFile(dir, err)
	}
	if !info.IsDir() {
		return nil, badInput("path '%s' is not a directory", dir)
	}
	l := &lister{ctx: ctx, names: a.g.users.names()}
	if err := l.walk(dir, max(1, r.Msg.GetDepth())); err != nil {
		return nil, err
	}
	return connect.NewResponse(&envdpb.ListDirResponse{Entries: l.entries}), nil
}

type lister struct {
	ctx     context.Context //nolint:containedctx // it lives as long as one call
	names   names
	entries []*envdpb.EntryInfo
}

// walk lists dir by name, each directory before what it holds. Symlinks are
// listed, not entered.
func (l *lister) walk(dir string, depth uint32) error {
	list, err := os.ReadDir(dir)
	if err != nil && len(list) == 0 {
		if errors.Is(err, fs.ErrNotExist) && len(l.entries) > 0 {
			return nil // it went away meanwhile
		}
		return ofFile(dir, err)
	}
	for _, one := range list {
		if err := l.ctx.Err(); err != nil {
			return err
		}
		if len(l.entries) == mostEntries {
			return refuse(connect.CodeResourceExhausted, fault.InvalidInput, "more than %d entries: list with a lower depth, or a directory below", mostEntries)
		}
		path := filepath.Join(dir, one.Name())
		e, err := entryAt(path, l.names)
		if err != nil {
			continue // it went away meanwhile
		}
		l.entries = append(l.entries, e)
		if one.IsDir() && depth > 1 {
			if err := l.walk(path, depth-1); err != nil {
				return err
			}
		}
	}
	return nil
}

func (a *fileAPI) Remove(_ context.Context, r *connect.Request[envdpb.RemoveRequest]) (*connect.Response[envdpb.RemoveResponse], error) {
	path, _, err := a.target(r.Header(), r.Msg.GetPath())
	if err != nil {
		return nil, err
	}
	if path == "/" {
		return nil, badInput("path '/' is the sandbox itself: it cannot be removed")
	}
	if err := os.RemoveAll(path); err != nil && !errors.Is(err, syscall.ENOTDIR) {
		return nil, ofFile(path, err)
	}
	return connect.NewResponse(&envdpb.RemoveResponse{}), nil
}

// remote are file systems whose changes by others the kernel cannot tell.
var remote = map[int64]string{0x6969: "nfs", 0x517B: "smb", 0xFE534D42: "smb2", 0xFF534D42: "cifs", 0x65735546: "fuse"}

func remoteKind(path string) string {
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return ""
	}
	return remote[int64(uint32(st.Type))]
}

// within returns path as seen from dir.
func within(dir, path string) string {
	return clean(strings.TrimPrefix(strings.TrimPrefix(path, dir), "/"))
}
