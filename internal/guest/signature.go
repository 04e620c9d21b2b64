package guest

import (
	"crypto/sha256"
	"encoding/base64"
	"net/http"
	"strconv"
	"time"

	"connectrpc.com/connect"

	"github.com/paddock-dev/paddock/internal/fault"
)

const (
	opRead  = "read"
	opWrite = "write"
)

// fileTarget checks that the caller may do op on the file that the request
// names, and returns where that file is and whose it shall be.
func (g *Guest) fileTarget(r *http.Request, op, path string) (string, account, error) {
	v := g.settings.current()
	if err := allowed(r, v.token, op, time.Now()); err != nil {
		return "", account{}, err
	}
	u, err := g.owner(r.URL.Query().Get("username"))
	if err != nil {
		return "", u, err
	}
	full, err := resolve(path, v.workdir, u)
	return full, u, err
}

// allowed asks for the access token or for a signature made with it.
func allowed(r *http.Request, token, op string, now time.Time) error {
	deny := func(message string) error {
		return refuse(connect.CodeUnauthenticated, fault.InvalidInput, "%s", message)
	}
	if token == "" {
		return nil
	}
	if shown := r.Header.Get("X-Access-Token"); shown != "" {
		if equalSecret(shown, token) {
			return nil
		}
		return deny("the access token does not match")
	}
	q := r.URL.Query()
	given, expiration := q.Get("signature"), q.Get("signature_expiration")
	if given == "" {
		return deny("missing signature query parameter")
	}
	if !equalSecret(given, sign(q.Get("path"), op, q.Get("username"), token, expiration)) {
		return deny("invalid signature")
	}
	if expiration == "" {
		return nil
	}
	if at, err := strconv.ParseInt(expiration, 10, 64); err != nil || at < now.Unix() {
		return deny("signature is already expired")
	}
	return nil
}

// sign is how the clients sign the address of a file.
func sign(path, op, username, token, expiration string) string {
	text := path + ":" + op + ":" + username + ":" + token
	if expiration != "" {
		text += ":" + expiration
	}
	sum := sha256.Sum256([]byte(text))
	return "v1_" + base64.RawStdEncoding.EncodeToString(sum[:])
}
