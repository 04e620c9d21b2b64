package templatecenter

import (
	"net/http"
	"time"
)

// Routes returns the table of routes: METHOD path, and who may call.
func (c *Center) Routes() map[string]string {
	all := map[string]string{}
	for _, r := range c.table(http.NotFoundHandler()) {
		all[r.Method+" "+r.Path] = r.Security
	}
	return all
}

// Document returns the document of the face.
func (c *Center) Document() ([]byte, error) { return document(c.table(http.NotFoundHandler())).YAML() }

// Quicken makes the queue look often, and leases short, for tests in which a
// builder is lost.
func (c *Center) Quicken() {
	c.queue.pace = pace{look: 50 * time.Millisecond, leaseFor: 4 * time.Second, renew: 200 * time.Millisecond, margin: time.Second, lost: 100 * time.Millisecond}
}

// Keeps reports how many jobs' credentials are in memory.
func (c *Center) Keeps() (n int) {
	c.queue.mu.Lock()
	defer c.queue.mu.Unlock()
	for _, h := range c.queue.handed {
		if h.private {
			n++
		}
	}
	return n
}
