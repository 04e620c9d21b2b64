package cubelet

import "github.com/paddock-dev/paddock/internal/cubelet/network"

// Networks is where sandboxes get their networks from.
func (c *Cubelet) Networks() *network.Pool { return c.nets }
