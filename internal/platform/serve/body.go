package serve

import (
	"io"
	"net/http"
	"time"
)

// bodyTime bounds the wait for the next bytes of a request's body: a client
// that says nothing must not hold a goroutine and a descriptor for ever.
const bodyTime = time.Minute

// patient gives r a body whose reads have a time limit. What net/http reads of
// it after the handler, to keep the connection, has it too.
func patient(w http.ResponseWriter, r *http.Request, limit time.Duration) {
	if r.Body == nil || r.Body == http.NoBody {
		return
	}
	b := &body{r.Body, http.NewResponseController(w), limit}
	b.wait(limit)
	r.Body = b
}

type body struct {
	io.ReadCloser
	conn  *http.ResponseController
	limit time.Duration
}

// Read reads with a limit of its own. The end of the body lifts it: from then on
// the server reads only to learn that the client went away, and such a read
// that timed out would be taken for that.
func (b *body) Read(p []byte) (int, error) {
	b.wait(b.limit)
	n, err := b.ReadCloser.Read(p)
	if err == io.EOF { //nolint:errorlint // as io.Reader has it
		b.wait(0)
	}
	return n, err
}

func (b *body) wait(limit time.Duration) {
	var until time.Time
	if limit > 0 {
		until = time.Now().Add(limit)
	}
	_ = b.conn.SetReadDeadline(until) // a writer without a connection has none to wait for
}
