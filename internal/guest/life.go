package guest

import (
	"context"
	"net/http"
	"sync"
	"time"

	"connectrpc.com/connect"

	"github.com/paddock-dev/paddock/internal/fault"
)

// farewell is how long a stream of an ended life may take to say so.
const farewell = time.Second

// errNewLife ends what callers of the life before still wait for.
var errNewLife = refuse(connect.CodeAborted, fault.StateConflict, "the sandbox was restored or cloned: this call is of its life before")

// life is the time from one restore of the sandbox's memory to the next. The
// processes of a sandbox go on from one to the other; whoever called before
// belongs to another time, or to another sandbox.
type life struct {
	mu  sync.Mutex
	ctx context.Context //nolint:containedctx // it is what ends
	end context.CancelCauseFunc
}

func newLife() *life {
	l := &life{}
	l.ctx, l.end = context.WithCancelCause(context.Background())
	return l
}

func (l *life) current() context.Context {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ctx
}

// next ends the life, and begins another.
func (l *life) next() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.end(errNewLife)
	l.ctx, l.end = context.WithCancelCause(context.Background())
}

// lasting are the calls that are of no life: they begin one, or tell nothing.
var lasting = map[string]bool{"/init": true, "/health": true}

// within ends a call with the life that it was made in, also one that waits
// for its caller to read or to send.
func (l *life) within(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if lasting[r.URL.Path] {
			next.ServeHTTP(w, r)
			return
		}
		ctx, cancel := context.WithCancelCause(r.Context())
		defer cancel(nil)
		conn, cut := http.NewResponseController(w), make(chan struct{})
		unhook := context.AfterFunc(l.current(), func() {
			defer close(cut)
			cancel(errNewLife)
			_ = conn.SetReadDeadline(time.Unix(1, 0)) // without deadlines, the call sees its context
			_ = conn.SetWriteDeadline(time.Now().Add(farewell))
		})
		defer func() {
			if unhook() {
				return
			}
			<-cut // the connection must not be touched behind the call
			// A connection whose reading was cut would end the calls that come
			// after on it: it is closed, behind the farewell.
			_ = conn.Flush()
			panic(http.ErrAbortHandler)
		}()
		next.ServeHTTP(w, r.WithContext(ctx))
	})
}
