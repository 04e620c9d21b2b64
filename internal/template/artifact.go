package template

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"time"

	"github.com/paddock-dev/paddock/internal/fsm"
	"github.com/paddock-dev/paddock/internal/host"
)

// ArtifactState is where an artifact stands.
type ArtifactState string

// The states of an artifact. The two states of deletion differ in who may act:
// cleanup_pending waits for the hosts, deleting lets the bytes go.
const (
	ArtifactBuilding ArtifactState = "building"
	ArtifactReady    ArtifactState = "ready"
	ArtifactFailed   ArtifactState = "failed"
	ArtifactCleanup  ArtifactState = "cleanup_pending"
	ArtifactDeleting ArtifactState = "deleting"
	ArtifactGone     ArtifactState = "gone"
)

// ArtifactEvent is what happened to an artifact.
type ArtifactEvent string

// The events of an artifact.
const (
	OnArtifactStored     ArtifactEvent = "stored"
	OnArtifactLost       ArtifactEvent = "lost"
	OnArtifactFailed     ArtifactEvent = "failed"
	OnArtifactClaimed    ArtifactEvent = "claimed"
	OnArtifactUnused     ArtifactEvent = "unused"
	OnArtifactUsed       ArtifactEvent = "used"
	OnArtifactHostsClean ArtifactEvent = "hosts_clean"
	OnArtifactRemoved    ArtifactEvent = "removed"
	OnArtifactKept       ArtifactEvent = "kept"
)

// Artifacts is the life of an artifact. A row in gone is deleted in the same
// transaction; the state exists so that the end of the life can be drawn.
var Artifacts = fsm.Must(fsm.Spec[ArtifactState, ArtifactEvent, fsm.None]{
	Name:    "artifact",
	Initial: ArtifactBuilding,
	States:  []ArtifactState{ArtifactBuilding, ArtifactReady, ArtifactFailed, ArtifactCleanup, ArtifactDeleting, ArtifactGone},
	Final:   []ArtifactState{ArtifactGone},
	Rules: []fsm.Rule[ArtifactState, ArtifactEvent]{
		{On: OnArtifactStored, From: []ArtifactState{ArtifactBuilding, ArtifactReady}, To: ArtifactReady, Why: "bytes stored and verified"},
		{On: OnArtifactFailed, From: []ArtifactState{ArtifactBuilding}, To: ArtifactFailed},
		{On: OnArtifactLost, From: []ArtifactState{ArtifactReady}, To: ArtifactFailed, Why: "the store says that the bytes are gone"},
		{On: OnArtifactClaimed, From: []ArtifactState{ArtifactFailed, ArtifactCleanup}, To: ArtifactBuilding, Why: "wanted again"},
		{On: OnArtifactUnused, From: []ArtifactState{ArtifactReady, ArtifactFailed, ArtifactBuilding}, To: ArtifactCleanup, Why: "no reference is left"},
		{On: OnArtifactUsed, From: []ArtifactState{ArtifactCleanup}, To: ArtifactReady, Why: "a reference came back in time"},
		{On: OnArtifactHostsClean, From: []ArtifactState{ArtifactCleanup}, To: ArtifactDeleting, Why: "no host holds it"},
		{On: OnArtifactKept, From: []ArtifactState{ArtifactDeleting}, To: ArtifactCleanup, Why: "removing the bytes failed"},
		{On: OnArtifactRemoved, From: []ArtifactState{ArtifactDeleting}, To: ArtifactGone},
	},
})

// BuildLock names the lock of an artifact's bytes. Who makes or removes them has
// it, and so has who takes the artifact for unused: a build may just be finding
// that it needs not be made.
func (id ArtifactID) BuildLock() string { return "tc_build_" + string(id) }

// Artifact is the ext4 image of a template's root filesystem, as a row.
type Artifact struct {
	ID         ArtifactID
	ContentKey string // names the bytes
	State      ArtifactState
	Version    int64
	ImageRef   string
	Digest     string
	SHA256     string
	SizeBytes  int64
	Backend    string // dir or s3
	Location   string // path in the store
	Token      string // of downloads
	ImageConfig
	Error     string
	CreatedAt time.Time
	ChangedAt time.Time
}

// ImageConfig is what an image says about how it wants to run.
type ImageConfig struct {
	Entrypoint []string `json:"entrypoint,omitempty"`
	Cmd        []string `json:"cmd,omitempty"`
	Env        []string `json:"env,omitempty"`
	WorkingDir string   `json:"working_dir,omitempty"`
	User       string   `json:"user,omitempty"`
}

// Placement is an artifact's bytes held by one host.
type Placement struct {
	ArtifactID ArtifactID
	HostID     host.ID
	CreatedAt  time.Time
}

// ContentInputs are everything that decides an artifact's bytes, and nothing
// else: ports or overrides never cause a rebuild of equal bytes.
type ContentInputs struct {
	Format      string // of the writer; a new layout of equal files is other bytes
	ImageDigest string // of what the image holds: its config, and its layers decompressed
	GuestSHA256 string
	CASHA256    string // empty: no certificate injected
	Policy      string // what becomes of devices, set-id bits and capabilities
}

// ContentKey returns the sha256, in hex, that names the bytes made from in.
func ContentKey(in ContentInputs) string {
	return fingerprint("content", in.Format, in.ImageDigest, in.GuestSHA256, in.CASHA256, in.Policy)
}

// ArtifactIDOf returns the id of the artifact with that content key.
func ArtifactIDOf(contentKey string) ArtifactID {
	return ArtifactID(ArtifactPrefix + contentKey[:24])
}

// fingerprint hashes parts so that no two lists of parts look alike.
func fingerprint(parts ...string) string {
	h := sha256.New()
	for _, p := range parts {
		h.Write([]byte(strings.ReplaceAll(p, "\x00", "\x00\x01")))
		h.Write([]byte{0, 0})
	}
	return hex.EncodeToString(h.Sum(nil))
}
