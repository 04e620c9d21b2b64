package guest

import (
	"fmt"
	"io"
	"sync"
	"time"
)

const (
	recordRate  = 128 << 10 // bytes of a second that are recorded in the long run
	recordBurst = 512 << 10 // bytes that are recorded at once
)

// recorder passes the output of the sandbox's own program on to its log. A
// program that says more than can be kept has the rest left out, and the log
// tells how much: it must neither wait for its log nor fill the disk under it.
type recorder struct {
	to  io.Writer
	now func() time.Time

	mu   sync.Mutex
	left float64
	at   time.Time
	lost int64
}

func newRecorder(to io.Writer) *recorder {
	return &recorder{to: to, now: time.Now, left: recordBurst, at: time.Now()}
}

func (r *recorder) add(b []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.now()
	r.left = min(recordBurst, r.left+now.Sub(r.at).Seconds()*recordRate)
	r.at = now
	if float64(len(b)) > r.left {
		r.lost += int64(len(b))
		return
	}
	if r.lost > 0 {
		_, _ = fmt.Fprintf(r.to, "\n[%d bytes of output left out]\n", r.lost)
		r.lost = 0
	}
	r.left -= float64(len(b))
	_, _ = r.to.Write(b) // a log that cannot be written is nothing to end a program for
}
