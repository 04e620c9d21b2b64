package images

import "time"

// Impatient makes silence end a transfer soon.
func (m *Store) Impatient(origin, peer time.Duration) { m.stall = stalls{origin, peer} }
