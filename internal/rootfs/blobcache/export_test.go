package blobcache

import "strings"

// Waiting returns how many callers wait for a layer that is being fetched.
func (c *Cache) Waiting(digest string, size int64) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if f, ok := c.flights[key{strings.TrimPrefix(digest, "sha256:"), size}]; ok {
		return f.waiters
	}
	return 0
}
