// Package host says what a machine that runs a cubelet is, and whether it may
// be chosen.
//
// A host is what the wire of layers 1 and 2 calls a node; in Go the word Node
// belongs to layer 3. Health is a view of facts, never stored. This package
// must never read a clock or a database.
package host

import "time"

// ID names one host for its whole life. On the wire: node_id.
type ID string

// Resources are what a host has or a sandbox asks for. All are integers, so
// that sums are exact: CPU in thousandths of a core, memory and disk in bytes.
type Resources struct {
	MilliCPU  int64 `json:"milli_cpu"`
	MemBytes  int64 `json:"mem_bytes"`
	DiskBytes int64 `json:"disk_bytes"`
	Slots     int64 `json:"slots"`
}

// Add returns r + o.
func (r Resources) Add(o Resources) Resources {
	return Resources{r.MilliCPU + o.MilliCPU, r.MemBytes + o.MemBytes, r.DiskBytes + o.DiskBytes, r.Slots + o.Slots}
}

// Sub returns r - o.
func (r Resources) Sub(o Resources) Resources {
	return Resources{r.MilliCPU - o.MilliCPU, r.MemBytes - o.MemBytes, r.DiskBytes - o.DiskBytes, r.Slots - o.Slots}
}

// Fits reports whether r is at most room in every dimension.
func (r Resources) Fits(room Resources) bool {
	return r.MilliCPU <= room.MilliCPU && r.MemBytes <= room.MemBytes && r.DiskBytes <= room.DiskBytes && r.Slots <= room.Slots
}

// Registration is what a cubelet says about its host when it starts. The host
// reports Allocatable: over-commit is decided there and nowhere else.
type Registration struct {
	ID           ID
	IP           string // where others reach it
	GRPCPort     int
	InstanceType string
	ClusterLabel string
	Zone         string
	Labels       map[string]string
	Capacity     Resources
	Allocatable  Resources
	Version      string // of the cubelet
	// Revision is the host's count when it registered: what it counted lower
	// is of an earlier life.
	Revision int64
}

// Status is what a cubelet says again and again.
type Status struct {
	Ready     bool
	Reason    string // why it is not ready
	Allocated Resources
	Sandboxes int
	Artifacts []string // artifact ids held whole and verified
	CPUUtil   float64  // 0..100, of the whole machine
	Usage     Usage
	// Room is what the host lets sandboxes have by now; nil: as it registered.
	Room *Resources
	// QuotaRevision is that of the quota that the host follows; 0: none.
	QuotaRevision int64
}

// Usage is what was measured on a host, beside its accounts.
type Usage struct {
	CPUType      string
	CPULoad      float64 // runnable tasks, as load averages have them
	MemUsedBytes int64   // of the whole machine
	DataDisk     float64 // 0..100, each disk
	StorageDisk  float64
	SysDisk      float64
	Creating     int64 // creates in flight, as the host itself counts
	CreateLimit  int64 // how many it takes at once; 0: the configured limit
	MaxSandboxes int64 // 0: the configured limit
	// Revision counts what the host admitted and let go. A report of a higher
	// revision is newer, whenever it arrives; 0: the host does not count.
	Revision int64
	// When the host measured, when the measure arrived, when its registration
	// was read. Zero: as old as HeardAt.
	MetricAt, LocalMetricAt, MetadataAt time.Time
}

// Facts are all that is known of a host at one moment. HeardAt is by the
// database's clock.
type Facts struct {
	Registration
	Status
	Cordoned     bool
	HeardAt      time.Time
	RegisteredAt time.Time
	Wish         Wish
}

// Health is what a host is fit for.
type Health string

// Unknown is not Dead: nobody said so.
const (
	Healthy  Health = "healthy"
	NotReady Health = "not_ready"
	Cordoned Health = "cordoned"
	Unknown  Health = "unknown"
)

// HealthOf judges f at now. A host not heard of for longer than staleAfter is
// Unknown: what it said last is no longer a fact.
func HealthOf(f Facts, now time.Time, staleAfter time.Duration) Health {
	switch {
	case now.Sub(f.HeardAt) > staleAfter:
		return Unknown
	case !f.Ready:
		return NotReady
	case f.Cordoned:
		return Cordoned
	}
	return Healthy
}
