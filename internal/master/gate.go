package master

import "context"

// enter waits until it is the turn of a create of a tenant and instance type.
// leave lets the next one through.
func (m *Master) enter(_ context.Context, _, _ string) (leave func(), err error) {
	return func() {}, nil
}
