package cubelet

import "github.com/paddock-dev/paddock/internal/cubelet/network"

// AnswerHTTP is one try of an HTTP probe.
var AnswerHTTP = answerHTTP

// Networks is where sandboxes get their networks from.
func (c *Cubelet) Networks() *network.Pool { return c.nets }

// ResolvConf is what the resolver of a sandbox is told.
func ResolvConf(y *network.Policy, servers []string, machine string) string {
	e := entry{Egress: y}
	if servers != nil {
		e.Resolver = &resolver{Servers: servers}
	}
	return resolvConf(e, machine)
}
