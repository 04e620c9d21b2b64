package host_test

import (
	"testing"
	"time"

	"github.com/paddock-dev/paddock/internal/host"
)

func TestHealthOf(t *testing.T) {
	const stale = 10 * time.Second
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for _, c := range []struct {
		name            string
		age             time.Duration
		ready, cordoned bool
		want            host.Health
	}{
		{"just heard, ready", 0, true, false, host.Healthy},
		{"just heard, not ready", 0, false, false, host.NotReady},
		{"cordoned", 0, true, true, host.Cordoned},
		{"not ready says more than a cordon", 0, false, true, host.NotReady},
		{"at the bound it still counts", stale, true, false, host.Healthy},
		{"past the bound by the least step of the database's clock", stale + time.Microsecond, true, false, host.Unknown},
		{"what a silent host said last is no fact: ready", time.Hour, true, false, host.Unknown},
		{"what a silent host said last is no fact: not ready", time.Hour, false, false, host.Unknown},
		{"silence says more than a cordon", time.Hour, true, true, host.Unknown},
		{"heard after the moment of the judgement", -time.Second, true, false, host.Healthy},
	} {
		f := host.Facts{Status: host.Status{Ready: c.ready}, Cordoned: c.cordoned, HeardAt: now.Add(-c.age)}
		if got := host.HealthOf(f, now, stale); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
	if got := host.HealthOf(host.Facts{Status: host.Status{Ready: true}}, now, stale); got != host.Unknown {
		t.Errorf("never heard: %s", got)
	}
}

func TestResourcesAddUp(t *testing.T) {
	a, b := host.Resources{MilliCPU: 1, MemBytes: 1 << 50, DiskBytes: 3, Slots: 4}, host.Resources{MilliCPU: 10, MemBytes: 1, DiskBytes: 30, Slots: 40}
	if got, want := a.Add(b), (host.Resources{MilliCPU: 11, MemBytes: 1<<50 + 1, DiskBytes: 33, Slots: 44}); got != want {
		t.Errorf("%+v + %+v = %+v, want %+v", a, b, got, want)
	}
	// Under zero is told, not hidden: an oversold host must show as such.
	if got, want := a.Sub(b), (host.Resources{MilliCPU: -9, MemBytes: 1<<50 - 1, DiskBytes: -27, Slots: -36}); got != want {
		t.Errorf("%+v - %+v = %+v, want %+v", a, b, got, want)
	}
	if got := a.Add(b).Sub(b); got != a {
		t.Errorf("there and back: %+v, want %+v", got, a)
	}
}

func TestEveryDimensionMustFit(t *testing.T) {
	room := host.Resources{MilliCPU: 1000, MemBytes: 1 << 30, DiskBytes: 1 << 30, Slots: 2}
	if !room.Fits(room) || !(host.Resources{}).Fits(room) || !(host.Resources{}).Fits(host.Resources{}) {
		t.Error("what is exactly as large as the room, or nothing, fits")
	}
	one := host.Resources{MilliCPU: 1, MemBytes: 1, DiskBytes: 1, Slots: 1}
	for name, more := range map[string]host.Resources{"cpu": {MilliCPU: 1}, "memory": {MemBytes: 1}, "disk": {DiskBytes: 1}, "slots": {Slots: 1}} {
		if room.Add(more).Fits(room) {
			t.Errorf("%s: one too many fits", name)
		}
		if one.Fits(one.Sub(more)) {
			t.Errorf("%s: something fits into nothing", name)
		}
	}
	// A host that is oversold has room for nothing, not even for less than its debt.
	if (host.Resources{}).Fits(host.Resources{MemBytes: -1}) {
		t.Error("an oversold host has room")
	}
}
