package cubelet_test

import (
	"testing"

	"github.com/paddock-dev/paddock/internal/cubelet/runtime/runtimetest"
)

// warmly has sandboxes wait.
func (w *world) warmly() *world {
	w.cfg.Cubelet.Warm.MaxPerTemplate = 2
	return w
}

// awaitWarm waits until n sandboxes wait for a create.
func (w *world) awaitWarm(n int) {
	w.t.Helper()
	runtimetest.Eventually(w.t, "sandboxes wait", func() bool { return w.cube.Warm() == n })
}

// A create of what waits gets a sandbox that is as any other.
func TestACreateTakesOneThatWaits(t *testing.T) {
	w := newWorld(t).warmly().open().hold()
	look := func(id string) string {
		return w.exec(id, "probe", "cat", "/etc/hostname").out + w.exec(id, "probe", "cat", "/etc/hosts").out + w.exec(id, "probe", "cat", "/etc/resolv.conf").out
	}
	cold := w.create(request())
	t.Log(cold.GetStepUs())
	t.Log(look(cold.GetSandboxId()))
	w.awaitWarm(1)
	warm := w.create(request())
	t.Log(warm.GetStepUs())
	t.Log(look(warm.GetSandboxId()))
}
