package sim

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/host"
	"github.com/paddock-dev/paddock/internal/sandbox"
	"github.com/paddock-dev/paddock/internal/scheduler"
	"github.com/paddock-dev/paddock/internal/template"
)

// Event is one create of a trace. Drawn traces number their templates, recorded
// ones name them.
type Event struct {
	At         time.Duration       `json:"at"` // since the begin of the trace, in nanoseconds
	Sandbox    sandbox.ID          `json:"sandbox"`
	Tenant     string              `json:"tenant,omitempty"`
	Template   int                 `json:"template,omitempty"` // 0: none, or named
	TemplateID template.ID         `json:"template_id,omitempty"`
	Artifact   template.ArtifactID `json:"artifact_id,omitempty"`
	Kind       string              `json:"instance_type,omitempty"`
	Size       host.Resources      `json:"resources"`
	Labels     map[string]string   `json:"labels,omitempty"`
	Scope      []host.ID           `json:"distribution_scope,omitempty"`
	Terms      []scheduler.Term    `json:"affinity,omitempty"` // one of them must hold
	Life       time.Duration       `json:"life,omitempty"`     // 0: it stays
	Deadline   time.Duration       `json:"deadline,omitempty"` // after At; 0: none
	// Refused: where it was recorded no host took it, so nobody knows how long
	// it would have lived.
	Refused bool `json:"refused,omitempty"`
}

// ids are those of the template.
func (e *Event) ids() (template.ID, template.ArtifactID) {
	if e.Artifact != "" || e.Template == 0 {
		return e.TemplateID, e.Artifact
	}
	return template.ID(fmt.Sprintf("tpl-%d", e.Template)), template.ArtifactID(artifact(e.Template))
}

// where is the affinity of e; nil: everywhere.
func (e *Event) where() (*scheduler.Affinity, error) {
	if len(e.Terms) == 0 {
		return nil, nil
	}
	return scheduler.Affinity{Terms: e.Terms}.Checked()
}

// Bounds of the files that are read.
const (
	maxEvents = 2_000_000
	maxHosts  = 100_000
	maxLine   = 1 << 20 // bytes
	maxName   = 256
	maxAmount = int64(1) << 50
	maxAt     = 31 * 24 * time.Hour // hosts report for as long, however little happens
	maxLife   = 10 * 365 * 24 * time.Hour
)

// each gives the lines of a file to do, numbered from 1. What is wrong is told
// with fault.InvalidInput and the line.
func each(r io.Reader, what string, most int, do func(line []byte) error) error {
	lines := bufio.NewScanner(r)
	lines.Buffer(make([]byte, 0, 64<<10), maxLine)
	n := 1
	for ; lines.Scan(); n++ {
		err := do(lines.Bytes())
		if n > most {
			err = fmt.Errorf("more than %d lines", most)
		}
		if err != nil {
			return fault.Wrap(fault.InvalidInput, err, "%s, line %d", what, n)
		}
	}
	if err := lines.Err(); err != nil {
		return fault.Wrap(fault.InvalidInput, err, "%s, line %d", what, n)
	}
	return nil
}

// strict reads one JSON object that has no field that v lacks.
func strict(line []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(line))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("something follows the object")
	}
	return nil
}

// Read reads a trace, one JSON object a line, in the order of time.
func Read(r io.Reader) ([]Event, error) {
	var all []Event
	seen := map[sandbox.ID]bool{}
	return all, each(r, "trace", maxEvents, func(line []byte) error {
		var e Event
		if err := strict(line, &e); err != nil {
			return err
		}
		if err := e.check(all); err != nil {
			return err
		}
		if seen[e.Sandbox] {
			return fmt.Errorf("sandbox %.64q is asked for twice", e.Sandbox)
		}
		seen[e.Sandbox] = true
		all = append(all, e)
		return nil
	})
}

func (e *Event) check(before []Event) error {
	switch {
	case e.Sandbox == "":
		return errors.New("no sandbox")
	case len(before) > 0 && e.At < before[len(before)-1].At || e.At < 0:
		return fmt.Errorf("at %s: goes back in time", e.At)
	case e.At > maxAt:
		return fmt.Errorf("at %s: a trace is at most %s long", e.At, maxAt)
	case e.Life < 0 || e.Deadline < 0 || e.Template < 0 || !amounts(e.Size, 0):
		return errors.New("a value is under 0")
	case e.Life > maxLife || e.Deadline > maxLife || !amounts(e.Size, maxAmount):
		return errors.New("a value is beyond all bounds")
	case len(e.Sandbox) > maxName || len(e.Tenant) > maxName || len(e.Kind) > maxName || len(e.TemplateID) > maxName || len(e.Artifact) > maxName:
		return fmt.Errorf("a name is longer than %d bytes", maxName)
	}
	_, err := e.where()
	return err
}

// amounts reports whether all of r are at least 0, or, if most is not 0, at most
// that.
func amounts(r host.Resources, most int64) bool {
	for _, n := range []int64{r.MilliCPU, r.MemBytes, r.DiskBytes, r.Slots} {
		if n < 0 || most > 0 && n > most {
			return false
		}
	}
	return true
}

// Write writes a trace as Read reads it.
func Write(w io.Writer, trace []Event) error {
	e := json.NewEncoder(w)
	for i := range trace {
		if err := e.Encode(trace[i]); err != nil {
			return err
		}
	}
	return nil
}

// Live gives the events that were refused where they were recorded the mean
// life of the others, so that they do not fill the hosts for ever.
func Live(trace []Event) {
	var sum, n time.Duration
	for i := range trace {
		if trace[i].Life > 0 {
			sum, n = sum+trace[i].Life/1000, n+1 // so that no sum is too large
		}
	}
	for i := range trace {
		if e := &trace[i]; e.Refused && e.Life == 0 && n > 0 {
			e.Life = sum / n * 1000
		}
	}
}

// machine is a host in a file: what it is, and not what it holds of sandboxes.
type machine struct {
	ID           host.ID           `json:"node_id"`
	Kind         string            `json:"instance_type,omitempty"`
	Cluster      string            `json:"cluster_label,omitempty"`
	Zone         string            `json:"zone,omitempty"`
	CPUType      string            `json:"cpu_type,omitempty"`
	Labels       map[string]string `json:"labels,omitempty"`
	Capacity     host.Resources    `json:"capacity"`
	Allocatable  host.Resources    `json:"allocatable"`
	Artifacts    []string          `json:"local_templates,omitempty"`
	Ready        bool              `json:"ready"`
	Cordoned     bool              `json:"cordoned,omitempty"`
	MaxSandboxes int64             `json:"max_sandboxes,omitempty"`
	CreateLimit  int64             `json:"create_limit,omitempty"`
}

// ReadFleet reads hosts, one JSON object a line. They hold no sandboxes.
func ReadFleet(r io.Reader) ([]host.Facts, error) {
	var all []host.Facts
	seen := map[host.ID]bool{}
	return all, each(r, "fleet", maxHosts, func(line []byte) error {
		var m machine
		if err := strict(line, &m); err != nil {
			return err
		}
		switch {
		case m.ID == "" || len(m.ID) > maxName || seen[m.ID]:
			return fmt.Errorf("node_id %.64q: must be there, short, and no other line's", m.ID)
		case !amounts(m.Capacity, maxAmount) || !amounts(m.Allocatable, maxAmount) || m.MaxSandboxes < 0 || m.CreateLimit < 0 || m.MaxSandboxes > maxAmount || m.CreateLimit > maxAmount:
			return errors.New("a value is under 0, or beyond all bounds")
		}
		seen[m.ID] = true
		all = append(all, host.Facts{
			Registration: host.Registration{ID: m.ID, InstanceType: m.Kind, ClusterLabel: m.Cluster, Zone: m.Zone, Labels: m.Labels, Capacity: m.Capacity, Allocatable: m.Allocatable},
			Status:       host.Status{Ready: m.Ready, Artifacts: m.Artifacts, Usage: host.Usage{CPUType: m.CPUType, MaxSandboxes: m.MaxSandboxes, CreateLimit: m.CreateLimit}},
			Cordoned:     m.Cordoned, HeardAt: epoch,
		})
		return nil
	})
}

// WriteFleet writes hosts as ReadFleet reads them.
func WriteFleet(w io.Writer, hosts []host.Facts) error {
	e := json.NewEncoder(w)
	for _, h := range hosts {
		m := machine{
			ID: h.ID, Kind: h.InstanceType, Cluster: h.ClusterLabel, Zone: h.Zone, CPUType: h.Usage.CPUType, Labels: h.Labels, Capacity: h.Capacity, Allocatable: h.Allocatable,
			Artifacts: h.Artifacts, Ready: h.Ready, Cordoned: h.Cordoned, MaxSandboxes: h.Usage.MaxSandboxes, CreateLimit: h.Usage.CreateLimit,
		}
		m.Capacity = cmp.Or(m.Capacity, h.Allocatable)
		if err := e.Encode(m); err != nil {
			return err
		}
	}
	return nil
}
