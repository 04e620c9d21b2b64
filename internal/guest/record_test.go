package guest

import (
	"bytes"
	"strings"
	"testing"
	"time"
)

// What a program says is recorded up to a rate, and what is left out is told.
func TestRecorderKeepsToItsRate(t *testing.T) {
	var out bytes.Buffer
	now := time.Unix(1000, 0)
	r := newRecorder(&out)
	r.now, r.at = func() time.Time { return now }, now
	line := []byte(strings.Repeat("x", 1023) + "\n")
	for range 2 * recordBurst / len(line) {
		r.add(line)
	}
	if out.Len() != recordBurst {
		t.Errorf("%d bytes at once, want %d", out.Len(), recordBurst)
	}
	out.Reset()
	now = now.Add(time.Second)
	r.add([]byte("after\n"))
	if got, want := out.String(), "\n[524288 bytes of output left out]\nafter\n"; got != want {
		t.Errorf("after a pause: %q, want %q", got, want)
	}
}
