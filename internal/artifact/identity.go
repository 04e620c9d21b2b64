package artifact

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/platform/id"
)

// identityFile names a directory for ever, wherever it is mounted: no key does.
const identityFile = ".store-id"

var identityForm = regexp.MustCompile(`^store-[0-9a-z]{8,64}$`)

// name gives a directory its identity, unless it has one.
func (d *Dir) name() error {
	file := filepath.Join(d.path, identityFile)
	if _, err := os.Lstat(file); err == nil || !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := os.CreateTemp(d.path, identityFile+"-*") // no Put's: nobody takes it away
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(f.Name()) }() // renamed already where there are no links
	_, err = f.WriteString(id.New("store-") + "\n")
	if err = errors.Join(err, f.Chmod(0o644), f.Sync(), f.Close()); err != nil {
		return err
	}
	// Whole or not at all, and of two who come at once the first names it.
	if err = os.Link(f.Name(), file); errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENOTSUP) {
		err = os.Rename(f.Name(), file)
	}
	if errors.Is(err, fs.ErrExist) {
		err = nil
	}
	return errors.Join(err, syncPath(d.path))
}

// Identity returns what names this store and no other, as it is now: a volume
// that is not mounted has none. fault.StoreUnavailable.
func (d *Dir) Identity(context.Context) (string, error) {
	b, err := os.ReadFile(filepath.Join(d.path, identityFile))
	if err != nil {
		return "", fault.Wrap(fault.StoreUnavailable, err, "artifact_store.dir %s: it has lost its name; if its volume is mounted, start the template centre again", d.path)
	}
	name := strings.TrimSpace(string(b))
	if !identityForm.MatchString(name) {
		return "", fault.New(fault.StoreUnavailable, "artifact_store.dir %s: %s holds %.80q, which is no name", d.path, identityFile, name)
	}
	return "dir:" + name, nil
}

// Identity returns what names this store and no other. The server is asked
// whether the bucket is there: of a key in none it says just that it is not
// there. fault.StoreUnavailable.
func (s *S3) Identity(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	there, err := s.client.BucketExists(ctx, s.bucket)
	switch {
	case err != nil && ctx.Err() == nil, errors.Is(ctx.Err(), context.DeadlineExceeded):
		return "", fault.Wrap(fault.StoreUnavailable, err, "bucket %s", s.bucket)
	case err != nil:
		return "", err
	case !there:
		return "", fault.New(fault.StoreUnavailable, "bucket %s is not there", s.bucket)
	}
	return "s3:" + s.client.EndpointURL().Host + "/" + path.Join(s.bucket, s.prefix), nil
}
