package sim_test

import (
	"bytes"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/host"
	"github.com/paddock-dev/paddock/internal/sandbox"
	"github.com/paddock-dev/paddock/internal/scheduler"
	"github.com/paddock-dev/paddock/internal/scheduler/sim"
)

func TestFleetsComeBackWhole(t *testing.T) {
	hosts := fleet(20).Build(3)
	hosts[1].Labels, hosts[1].ClusterLabel, hosts[1].Cordoned = map[string]string{"gpu": "a100"}, "c1", true
	hosts[2].Usage.MaxSandboxes, hosts[2].Usage.CreateLimit, hosts[2].Usage.CPUType, hosts[2].Ready = 7, 8, "arm", false
	var file bytes.Buffer
	if err := sim.WriteFleet(&file, hosts); err != nil {
		t.Fatal(err)
	}
	got, err := sim.ReadFleet(&file)
	if err != nil || !reflect.DeepEqual(got, hosts) {
		t.Errorf("%v, got\n%+v, want\n%+v", err, got, hosts)
	}
}

func TestBadFilesAreRefused(t *testing.T) {
	long := strings.Repeat("x", 300)
	for name, text := range map[string]string{
		"unknown field":        `{"sandbox":"a","colour":"red"}`,
		"something follows":    `{"sandbox":"a"}{}`,
		"unexpected EOF":       `{"sandbox":`,
		"line 1: EOF":          "\n",
		"asked for twice":      `{"sandbox":"a"}` + "\n" + `{"sandbox":"a"}`,
		"at most 744h":         `{"sandbox":"a","at":2700000000000000}`,
		"beyond all bounds":    `{"sandbox":"a","resources":{"mem_bytes":9000000000000000000}}`,
		"longer than 256":      `{"sandbox":"a","tenant":"` + long + `"}`,
		"operator":             `{"sandbox":"a","affinity":[[{"key":"zone","operator":"Near","values":["x"]}]]}`,
		"token too long":       strings.Repeat(" ", 2<<20),
		"line 2: the mistakes": `{"sandbox":"a"}` + "\n" + `{"sandbox":"b","life":-1}`,
	} {
		want, _, _ := strings.Cut(name, ":") // the rest tells two of them apart
		if got, err := sim.Read(strings.NewReader(text)); !errors.Is(err, fault.InvalidInput) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %d events, %v", name, len(got), err)
		}
	}
	for name, text := range map[string]string{
		"node_id":           `{"ready":true}`,
		"no other line's":   `{"node_id":"a"}` + "\n" + `{"node_id":"a"}`,
		"under 0":           `{"node_id":"a","allocatable":{"slots":-1}}`,
		"unknown field":     `{"node_id":"a","colour":"red"}`,
		"something follows": `{"node_id":"a"} x`,
	} {
		if _, err := sim.ReadFleet(strings.NewReader(text)); !errors.Is(err, fault.InvalidInput) || !strings.Contains(err.Error(), name) || !strings.Contains(err.Error(), "fleet, line") {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

func TestRecordedCreatesGoWhereTheyMay(t *testing.T) {
	r := sim.Defaults()
	r.Hosts, r.Masters = fleet(12).Build(1), 1
	size := host.Resources{MilliCPU: 1000, MemBytes: gib, DiskBytes: gib, Slots: 1}
	in := func(zone string) []scheduler.Term {
		return []scheduler.Term{{{Key: scheduler.LabelZone, Operator: scheduler.In, Values: []string{zone}}}}
	}
	for n := range 60 {
		e := sim.Event{At: time.Duration(n) * time.Millisecond, Sandbox: id(n), Kind: "cubebox", Size: size, Terms: in("zone-1")}
		if n%2 == 0 {
			e.Terms, e.Scope = nil, []host.ID{r.Hosts[0].ID}
		}
		r.Trace = append(r.Trace, e)
	}
	got, err := r.Do()
	if err != nil {
		t.Fatal(err)
	}
	// 30 of them may be only on one host, which has 32 cores; the others on a third of the hosts.
	if got.Placed != 60 || got.Active > 5 {
		t.Errorf("%+v", got)
	}
	r.Trace[3].Terms = in("nowhere")
	if got, err = r.Do(); err != nil || got.Refused != 1 {
		t.Errorf("%+v, %v", got, err)
	}
	r.Trace[3].Terms = []scheduler.Term{{{Operator: "Near"}}}
	if _, err = r.Do(); !errors.Is(err, fault.BadConfig) || !strings.Contains(err.Error(), "event 3") {
		t.Errorf("got %v", err)
	}
}

// What can be read can be written and read again, and simulated without a panic.
func FuzzFiles(f *testing.F) {
	var trace, hosts bytes.Buffer
	must := func(err error) {
		if err != nil {
			f.Fatal(err)
		}
	}
	must(sim.Write(&trace, sim.Generate(1, load(2, 100))))
	must(sim.WriteFleet(&hosts, fleet(1).Build(1)))
	f.Add(trace.String(), hosts.String())
	f.Add(`{"sandbox":"a","affinity":[[]],"distribution_scope":["host-00000",""],"life":1,"deadline":1}`, `{"node_id":"host-00000","ready":true,"allocatable":{"slots":1}}`)
	f.Fuzz(func(t *testing.T, trace, fleet string) {
		events, err1 := sim.Read(strings.NewReader(trace))
		machines, err2 := sim.ReadFleet(strings.NewReader(fleet))
		if err1 != nil || err2 != nil {
			return
		}
		var again bytes.Buffer
		if err := sim.WriteFleet(&again, machines); err != nil {
			t.Fatal(err)
		}
		if same, err := sim.ReadFleet(&again); err != nil || len(same) != len(machines) {
			t.Fatalf("%d hosts, then %d: %v", len(machines), len(same), err)
		}
		again.Reset()
		if err := sim.Write(&again, events); err != nil {
			t.Fatal(err)
		}
		if same, err := sim.Read(&again); err != nil || len(same) != len(events) {
			t.Fatalf("%d events, then %d: %v", len(events), len(same), err)
		}
		if len(events) == 0 || len(machines) == 0 || len(events) > 100 || len(machines) > 100 || events[len(events)-1].At > time.Minute {
			return
		}
		r := sim.Defaults()
		r.Hosts, r.Trace = machines, events
		got, err := r.Do()
		if err != nil || got.Oversold+got.Doubled != 0 || got.Placed+got.Refused+got.TurnedAway+got.Late+got.GivenUp != len(events) {
			t.Fatalf("%+v, %v", got, err)
		}
	})
}

func id(n int) sandbox.ID { return sandbox.ID(fmt.Sprintf("i%024x", n)) }
