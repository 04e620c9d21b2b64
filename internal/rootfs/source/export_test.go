package source

import "time"

// Hurry makes waiting short until the returned function is called: between
// tries, and for a silent registry as it is given.
func Hurry(idle time.Duration) (undo func()) {
	b, i := backoff, idleTime
	backoff, idleTime = time.Millisecond, idle
	return func() { backoff, idleTime = b, i }
}

// Idle returns when a registry that is asked for a byte would have been silent
// for too long.
func Idle() { <-time.After(3 * idleTime / 2) }
