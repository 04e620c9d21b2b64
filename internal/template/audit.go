package template

import "time"

// AuditEntry is one change that a user asked for. It holds no secret.
type AuditEntry struct {
	ID        string
	At        time.Time
	Actor     string // the fingerprint of a key, and an address
	Action    string
	Subject   string
	RequestID string
	Detail    map[string]string
}
