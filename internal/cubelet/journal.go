package cubelet

import (
	"cmp"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"time"

	"github.com/paddock-dev/paddock/internal/cubelet/durable"
	"github.com/paddock-dev/paddock/internal/cubelet/network"
	"github.com/paddock-dev/paddock/internal/cubelet/runtime"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/host"
	"github.com/paddock-dev/paddock/internal/sandbox"
)

// entry is what the host owns for one sandbox. It is on disk before anything
// is made, so that a restarted cubelet finds all of it.
type entry struct {
	ID         string            `json:"id"`
	Box        string            `json:"box,omitempty"` // see box
	TemplateID string            `json:"template_id"`
	ArtifactID string            `json:"artifact_id"`
	Resources  host.Resources    `json:"resources"`
	Writable   int64             `json:"writable_bytes"`
	Envs       map[string]string `json:"envs,omitempty"`
	Command    []string          `json:"command,omitempty"`
	WorkingDir string            `json:"working_dir,omitempty"`
	User       string            `json:"user,omitempty"`
	Hostname   string            `json:"hostname"`
	Metadata   map[string]string `json:"metadata,omitempty"`
	Probe      *sandbox.Probe    `json:"probe,omitempty"`
	Network    network.Network   `json:"network"`
	CreatedAt  time.Time         `json:"created_at"`
	Egress     *network.Policy   `json:"egress,omitempty"` // nil: nothing
	Resolver   *resolver         `json:"resolver,omitempty"`
	OpenFiles  uint64            `json:"open_files,omitempty"` // 0: as the runtime has it
	Ports      []int32           `json:"ports,omitempty"`      // that others may reach; none: every one
	// NetworkRevision is which revision of Egress and Ports holds.
	NetworkRevision int64 `json:"network_revision,omitempty"`
	// AccessToken is what the guest asks of callers; empty: nothing. A restarted
	// cubelet is one of them.
	AccessToken string `json:"access_token,omitempty"`

	// Kernel is set once the sandbox is usable: without it, the sandbox was
	// never whole.
	Kernel runtime.Process          `json:"kernel,omitzero"`
	Steps  map[string]time.Duration `json:"steps_ns,omitempty"`

	// EndedAt and Reason are set when it ended by itself: then nothing of it is
	// left but this.
	EndedAt time.Time `json:"ended_at,omitzero"`
	Reason  string    `json:"reason,omitempty"`

	// Released is set when its network was given back: another may have the
	// address since.
	Released bool `json:"released,omitempty"`

	// Generation is the highest life of it that the host has met. Snapshot is
	// what it began with; empty: its template alone.
	Generation int64  `json:"generation,omitempty"`
	Snapshot   string `json:"snapshot,omitempty"`
	// Phase is what it goes through, or that it is kept.
	Phase phase `json:"phase,omitempty"`
	// Kept is set from when it is kept whole, until it runs again.
	Kept *kept `json:"kept,omitempty"`
	// Failed is what the last passage came to that failed.
	Failed *failure `json:"failed,omitempty"`
}

// phase is where a sandbox is between two states that last.
type phase string

const (
	toPause    phase = "pausing"
	atRest     phase = "paused"
	toRun      phase = "resuming"
	toSnapshot phase = "rolling_back"
)

// failure is a passage's end that its caller may not have heard of.
type failure struct {
	Generation int64        `json:"generation"`
	Detail     fault.Detail `json:"detail"`
	HTTP       int          `json:"http"`
}

// box is the name under which the runtime, the cgroups and the directory of the
// sandbox go. One that was started ahead keeps the name that it was started
// under: the entry says whose it is by now.
func (e entry) box() string { return cmp.Or(e.Box, e.ID) }

const journalFile = "journal.json"

// journal is a directory with one directory per box.
type journal struct{ dir string }

func (j journal) path(box string) string { return filepath.Join(j.dir, box) }

// put writes e so that it is there after a crash.
func (j journal) put(e entry) error {
	dir := j.path(e.box())
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	b, err := json.Marshal(e)
	if err != nil {
		return err
	}
	return durable.Replace(filepath.Join(dir, journalFile), b)
}

// list returns every entry, and the names of directories without a whole one:
// nothing was made for those yet.
func (j journal) list() (whole []entry, torn []string, err error) {
	names, err := os.ReadDir(j.dir)
	if err != nil {
		return nil, nil, err
	}
	for _, n := range names {
		b, err := os.ReadFile(filepath.Join(j.dir, n.Name(), journalFile))
		var e entry
		if err == nil {
			err = json.Unmarshal(b, &e)
		}
		if err != nil || e.box() != n.Name() {
			torn = append(torn, n.Name())
			continue
		}
		whole = append(whole, e)
	}
	return whole, torn, nil
}

// remove forgets a box with all its files, the journal's last: what is
// left of a removal that broke off is still found.
func (j journal) remove(box string) error {
	names, err := os.ReadDir(j.path(box))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	for _, n := range names {
		if n.Name() == journalFile {
			continue
		}
		if err := os.RemoveAll(filepath.Join(j.path(box), n.Name())); err != nil {
			return err
		}
	}
	return os.RemoveAll(j.path(box))
}
