package images

import (
	"errors"
	"io"
	"os"
	"time"

	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/hostpb"
	"github.com/paddock-dev/paddock/internal/platform/auth"
	"github.com/paddock-dev/paddock/internal/template"
)

// messageBytes is how much goes to another host at once.
const messageBytes = 256 << 10

// Read sends a part of an artifact that is held whole to another host.
// fault.ArtifactNotFound, fault.TokenRejected, fault.TokenExpired; fault.HostFull
// when too many ask at once.
func (m *Store) Read(r *hostpb.ReadArtifactRequest, send func([]byte) error) (err error) {
	id := r.GetArtifactId()
	if err := template.CheckID(id); err != nil {
		return err
	}
	p, ok := m.held(id)
	if !ok || p.SHA256 != r.GetSha256() {
		return fault.New(fault.ArtifactNotFound, "artifact %s: this host does not hold it", id)
	}
	// By this host's clock: a master makes tickets that are good for minutes more
	// than it gives a host. One that asks in vain goes to the store.
	if err := auth.ParseTicketKey(p.PeerKey).Check(r.GetToken(), time.Now(), "artifact "+id); err != nil {
		return err
	}
	if r.GetOffset() < 0 || r.GetSizeBytes() < 1 || r.GetSizeBytes() > p.Size || r.GetOffset() > p.Size-r.GetSizeBytes() {
		return fault.New(fault.InvalidInput, "artifact %s has %d bytes, not %d from byte %d", id, p.Size, r.GetSizeBytes(), r.GetOffset())
	}
	select {
	case m.readers <- struct{}{}:
		defer func() { <-m.readers }()
	default:
		return fault.New(fault.HostFull, "artifact %s: %d hosts read from this one", id, readersAtOnce)
	}
	f, err := os.Open(m.Path(id))
	if err != nil {
		return fault.Wrap(fault.ArtifactNotFound, err, "artifact %s", id)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	b := make([]byte, messageBytes)
	for off, left := r.GetOffset(), r.GetSizeBytes(); left > 0; {
		b = b[:min(left, messageBytes)]
		if _, err := f.ReadAt(b, off); err != nil {
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return fault.Wrap(fault.ArtifactCorrupt, err, "artifact %s", id)
		}
		if err := send(b); err != nil {
			return err
		}
		off, left = off+int64(len(b)), left-int64(len(b))
	}
	return nil
}
