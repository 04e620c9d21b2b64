package auth

import (
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"strings"
	"time"

	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/platform/config"
)

// What tickets are good for. A key is of one use, so that no ticket passes for
// one of another.
const (
	ForDownload = "download" // an artifact's bytes from the template centre
	ForPeers    = "peers"    // the same from a host that holds them
	ForReport   = "report"   // word of one job to the master
)

// ticketForm begins every ticket; another form gets another number.
const ticketForm = "pt1."

const ticketKeyBytes = sha256.Size

// TicketKey makes and checks tickets: tokens that are good for one thing, and
// not for long. The zero key makes none and admits nobody.
type TicketKey struct{ bytes []byte }

// NewTicketKey derives the key of one use and one thing from the secret that
// roles share. salt is what the thing itself keeps secret, if anything: who
// changes it makes all tickets void that were made before.
func NewTicketKey(secret config.Secret, salt, use string, thing ...string) (TicketKey, error) {
	k, err := hkdf.Key(sha256.New, []byte(secret.Reveal()), []byte(salt), "paddock ticket 1\x00"+use+"\x00"+strings.Join(thing, "\x00"), ticketKeyBytes)
	if err != nil {
		return TicketKey{}, fault.Wrap(fault.Bug, err, "key of tickets")
	}
	return TicketKey{k}, nil
}

// ParseTicketKey reads a key as Reveal wrote it. Other text is the zero key.
func ParseTicketKey(s string) TicketKey {
	b, err := hex.DecodeString(s)
	if err != nil || len(b) != ticketKeyBytes {
		return TicketKey{}
	}
	return TicketKey{b}
}

// Reveal returns the key as text, for the role that is to check its tickets.
func (k TicketKey) Reveal() string { return hex.EncodeToString(k.bytes) }

// Ticket returns a ticket that is good until then, to the second.
func (k TicketKey) Ticket(until time.Time) string {
	if len(k.bytes) == 0 {
		return ""
	}
	b := binary.BigEndian.AppendUint64(nil, uint64(until.Unix()))
	return ticketForm + base64.RawURLEncoding.EncodeToString(append(b, k.mac(b)...))
}

func (k TicketKey) mac(b []byte) []byte {
	m := hmac.New(sha256.New, k.bytes)
	m.Write([]byte(ticketForm))
	m.Write(b)
	return m.Sum(nil)
}

// IsTicket reports whether a token has the form of a ticket.
func IsTicket(token string) bool { return strings.HasPrefix(token, ticketForm) }

// Check admits a ticket of this key that is still good: else
// fault.TokenRejected, or fault.TokenExpired for one that was. The time that it
// takes says nothing of the key. what names the thing.
func (k TicketKey) Check(ticket string, now time.Time, what string) error {
	text, ours := strings.CutPrefix(ticket, ticketForm)
	b, err := base64.RawURLEncoding.Strict().DecodeString(text)
	if len(k.bytes) == 0 || !ours || err != nil || len(b) != 8+sha256.Size || !hmac.Equal(b[8:], k.mac(b[:8])) {
		return fault.New(fault.TokenRejected, "%s", what)
	}
	if until := time.Unix(int64(binary.BigEndian.Uint64(b)), 0); !now.Before(until) {
		return fault.New(fault.TokenExpired, "%s: the token was good until %s", what, until.UTC().Format(time.RFC3339))
	}
	return nil
}
