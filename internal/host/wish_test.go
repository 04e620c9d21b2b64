package host_test

import (
	"strings"
	"testing"
	"time"

	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/host"
)

func TestQuotaOver(t *testing.T) {
	at := func(n int64) *int64 { return &n }
	own := host.Resources{MilliCPU: 8000, MemBytes: 1 << 30, DiskBytes: 2 << 30, Slots: 10}
	for name, c := range map[string]struct {
		q     host.Quota
		want  host.Resources
		limit int64
	}{
		"none":            {host.Quota{}, own, 100},
		"less and more":   {host.Quota{MilliCPU: at(1), Slots: at(20)}, host.Resources{MilliCPU: 1, MemBytes: 1 << 30, DiskBytes: 2 << 30, Slots: 20}, 100},
		"nothing":         {host.Quota{MilliCPU: at(0), MemBytes: at(0), DiskBytes: at(0), Slots: at(0), CreateLimit: at(0)}, host.Resources{}, 0},
		"under 0 is none": {host.Quota{MemBytes: at(-1), CreateLimit: at(-1)}, host.Resources{MilliCPU: 8000, DiskBytes: 2 << 30, Slots: 10}, 0},
	} {
		if got, limit := c.q.Over(own, 100); got != c.want || limit != c.limit {
			t.Errorf("%s: %+v and %d, want %+v and %d", name, got, limit, c.want, c.limit)
		}
	}
}

func TestHowFarADrainIs(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	asked := host.Drain{AskedAt: now.Add(-time.Minute)}
	later, over, force, forceLater := asked, asked, asked, asked
	later.Deadline, over.Deadline, force.Deadline, forceLater.Deadline = now.Add(time.Second), now, now, now.Add(time.Second)
	force.Force, forceLater.Force = true, true
	for _, c := range []struct {
		name string
		d    host.Drain
		left int
		want host.DrainState
		due  bool
	}{
		{"nobody asked", host.Drain{Force: true}, 3, host.NoDrain, false},
		{"no deadline", asked, 3, host.Draining, false},
		{"before the deadline", later, 3, host.Draining, false},
		{"at the deadline", over, 3, host.Overdue, false},
		{"at the deadline, by force", force, 3, host.Ending, true},
		{"before the deadline, by force", forceLater, 3, host.Draining, false},
		{"empty", over, 0, host.Drained, false},
		{"empty, by force", force, 0, host.Drained, true},
	} {
		if got, due := c.d.State(now, c.left), c.d.Due(now); got != c.want || due != c.due {
			t.Errorf("%s: %q, due %v; want %q, due %v", c.name, got, due, c.want, c.due)
		}
	}
}

func TestLabels(t *testing.T) {
	long := strings.Repeat("a", 64)
	for key, value := range map[string]string{"gpu": "a100", "example.com/rack": "r-1.x_2", "A": "", strings.Repeat("a", 63): strings.Repeat("b", 63), "a-b.example/x": "0"} {
		if err := host.CheckLabel(key, value); err != nil {
			t.Errorf("%s=%s: %v", key, value, err)
		}
	}
	for _, c := range [][2]string{
		{"", "x"},
		{"/x", "x"},
		{"x/", "y"},
		{"a/b/c", "x"},
		{"-x", "x"},
		{"x-", "x"},
		{"a b", "x"},
		{"Example.com/x", "x"},
		{"a_b/x", "x"},
		{"a..b/x", "x"},
		{long, "x"},
		{strings.Repeat("a.", 127) + "a/x", "x"},
		{"x", "-"},
		{"x", "a b"},
		{"x", "a,b"},
		{"x", long},
		{"x", "\x00"},
		{"ä", "x"},
		{"x", "ä"},
	} {
		if err := host.CheckLabel(c[0], c[1]); fault.Of(err) != fault.InvalidInput {
			t.Errorf("%q=%q: %v", c[0], c[1], err)
		}
	}
	many := map[string]string{}
	for i := range host.MaxLabels + 1 {
		many["l"+strings.Repeat("x", i%50)+string(rune('a'+i/50))] = ""
	}
	if err := host.CheckLabels(many); fault.Of(err) != fault.InvalidInput {
		t.Errorf("%d labels: %v", len(many), err)
	}
	for key, want := range map[string]bool{"gpu": false, "example.com/kubernetes.io": false, "kubernetes.io/cpu-type": true, "topology.kubernetes.io/zone": true, "cube.cloud.tencentcloud.com/scheduling-disabled": true, "paddock.dev/x": true} {
		if host.ReservedLabel(key) != want {
			t.Errorf("reserved %s: want %v", key, want)
		}
	}
}
