// Package templatedb holds the statements of layer 1: definitions, jobs,
// artifacts, replicas and placements. It must never decide: what may become
// what is asked of the machines in internal/template.
package templatedb

import (
	"context"
	"time"

	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/host"
	"github.com/paddock-dev/paddock/internal/store"
	"github.com/paddock-dev/paddock/internal/template"
)

// Filter chooses jobs. Zero fields choose nothing away.
type Filter struct {
	States        []template.JobState
	ChangedBefore time.Time
	TemplateID    template.ID
	Limit         int // 0: 1000
}

// ArtifactFilter chooses artifacts. Zero fields choose nothing away.
type ArtifactFilter struct {
	States        []template.ArtifactState
	ChangedBefore time.Time
	Limit         int // 0: 1000
}

var errUnwritten = fault.New(fault.Bug, "this body follows its signature")

// AddJob stores a new job in the machine's initial state.
func AddJob(ctx context.Context, tx *store.Tx, j template.Job) (template.Job, error) {
	return template.Job{}, errUnwritten
}

// GetJob returns a job: fault.JobNotFound.
func GetJob(ctx context.Context, tx *store.Tx, id template.JobID) (template.Job, error) {
	return template.Job{}, errUnwritten
}

// JobByRequest returns the job that a request began.
func JobByRequest(ctx context.Context, tx *store.Tx, requestID string, op template.Operation) (template.Job, bool, error) {
	return template.Job{}, false, errUnwritten
}

// ActiveJob returns the job that works on a template.
func ActiveJob(ctx context.Context, tx *store.Tx, id template.ID) (template.Job, bool, error) {
	return template.Job{}, false, errUnwritten
}

// LatestJob returns the newest attempt of a template.
func LatestJob(ctx context.Context, tx *store.Tx, id template.ID) (template.Job, bool, error) {
	return template.Job{}, false, errUnwritten
}

// ListJobs returns jobs, oldest change first.
func ListJobs(ctx context.Context, tx *store.Tx, f Filter) ([]template.Job, error) {
	return nil, errUnwritten
}

// MoveJob changes a job's state and writes all its mutable fields.
func MoveJob(ctx context.Context, tx *store.Tx, j template.Job, on template.JobEvent) (template.Job, error) {
	return template.Job{}, errUnwritten
}

// TouchJob writes all mutable fields of a job and keeps its state.
func TouchJob(ctx context.Context, tx *store.Tx, j template.Job) (template.Job, error) {
	return template.Job{}, errUnwritten
}

// DeleteJobs removes the jobs of a template.
func DeleteJobs(ctx context.Context, tx *store.Tx, id template.ID) error {
	return errUnwritten
}

// AddArtifact stores a new artifact in the machine's initial state.
func AddArtifact(ctx context.Context, tx *store.Tx, a template.Artifact) (template.Artifact, error) {
	return template.Artifact{}, errUnwritten
}

// GetArtifact returns an artifact: fault.ArtifactNotFound.
func GetArtifact(ctx context.Context, tx *store.Tx, id template.ArtifactID) (template.Artifact, error) {
	return template.Artifact{}, errUnwritten
}

// ArtifactByContentKey returns the artifact with those bytes.
func ArtifactByContentKey(ctx context.Context, tx *store.Tx, key string) (template.Artifact, bool, error) {
	return template.Artifact{}, false, errUnwritten
}

// ListArtifacts returns artifacts, oldest change first.
func ListArtifacts(ctx context.Context, tx *store.Tx, f ArtifactFilter) ([]template.Artifact, error) {
	return nil, errUnwritten
}

// MoveArtifact changes an artifact's state and writes all its mutable fields.
func MoveArtifact(ctx context.Context, tx *store.Tx, a template.Artifact, on template.ArtifactEvent) (template.Artifact, error) {
	return template.Artifact{}, errUnwritten
}

// DeleteArtifact removes the row of an artifact that is gone.
func DeleteArtifact(ctx context.Context, tx *store.Tx, a template.Artifact) error {
	return errUnwritten
}

// ArtifactReferences counts definitions, active jobs and replicas that name an artifact.
func ArtifactReferences(ctx context.Context, tx *store.Tx, id template.ArtifactID) (int, error) {
	return 0, errUnwritten
}

// PutPlacement records that a host holds an artifact.
func PutPlacement(ctx context.Context, tx *store.Tx, p template.Placement) error {
	return errUnwritten
}

// ListPlacements returns who holds an artifact.
func ListPlacements(ctx context.Context, tx *store.Tx, id template.ArtifactID) ([]template.Placement, error) {
	return nil, errUnwritten
}

// PlacementsOfHost returns what a host holds.
func PlacementsOfHost(ctx context.Context, tx *store.Tx, id host.ID) ([]template.Placement, error) {
	return nil, errUnwritten
}

// DeletePlacement records that a host no longer holds an artifact.
func DeletePlacement(ctx context.Context, tx *store.Tx, artifact template.ArtifactID, on host.ID) error {
	return errUnwritten
}

// AddDefinition stores a new template: fault.AliasTaken.
func AddDefinition(ctx context.Context, tx *store.Tx, d template.Definition) (template.Definition, error) {
	return template.Definition{}, errUnwritten
}

// GetDefinition returns a template: fault.TemplateNotFound.
func GetDefinition(ctx context.Context, tx *store.Tx, id template.ID) (template.Definition, error) {
	return template.Definition{}, errUnwritten
}

// DefinitionByAlias returns a template: fault.TemplateNotFound.
func DefinitionByAlias(ctx context.Context, tx *store.Tx, alias string) (template.Definition, error) {
	return template.Definition{}, errUnwritten
}

// Resolve returns the template with that id or alias: fault.TemplateNotFound.
func Resolve(ctx context.Context, tx *store.Tx, idOrAlias string) (template.Definition, error) {
	return template.Definition{}, errUnwritten
}

// MoveDefinition changes a template's state and writes all its mutable fields.
func MoveDefinition(ctx context.Context, tx *store.Tx, d template.Definition, on template.Event) (template.Definition, error) {
	return template.Definition{}, errUnwritten
}

// SetAlias gives a template an alias, or none: fault.AliasTaken.
func SetAlias(ctx context.Context, tx *store.Tx, d template.Definition, alias string) (template.Definition, error) {
	return template.Definition{}, errUnwritten
}

// ListDefinitions returns templates by id, after the given one.
func ListDefinitions(ctx context.Context, tx *store.Tx, limit int, after template.ID) ([]template.Definition, error) {
	return nil, errUnwritten
}

// DeleteDefinition removes the row of a template that is gone.
func DeleteDefinition(ctx context.Context, tx *store.Tx, d template.Definition) error {
	return errUnwritten
}

// AddReplica stores a new replica in the machine's initial state: fault.Exists.
func AddReplica(ctx context.Context, tx *store.Tx, r template.Replica) (template.Replica, error) {
	return template.Replica{}, errUnwritten
}

// PutReplica returns the replica of that template and host, and adds it if there is none.
func PutReplica(ctx context.Context, tx *store.Tx, r template.Replica) (template.Replica, error) {
	return template.Replica{}, errUnwritten
}

// GetReplica returns a replica: fault.NoSuchThing.
func GetReplica(ctx context.Context, tx *store.Tx, id template.ID, on host.ID) (template.Replica, error) {
	return template.Replica{}, errUnwritten
}

// ListReplicas returns the replicas of a template.
func ListReplicas(ctx context.Context, tx *store.Tx, id template.ID) ([]template.Replica, error) {
	return nil, errUnwritten
}

// ReadyReplicas returns the replicas of a template that are ready.
func ReadyReplicas(ctx context.Context, tx *store.Tx, id template.ID) ([]template.Replica, error) {
	return nil, errUnwritten
}

// MoveReplica changes a replica's state and writes all its mutable fields.
func MoveReplica(ctx context.Context, tx *store.Tx, r template.Replica, on template.ReplicaEvent) (template.Replica, error) {
	return template.Replica{}, errUnwritten
}

// DeleteReplica removes the row of a replica that is gone.
func DeleteReplica(ctx context.Context, tx *store.Tx, r template.Replica) error {
	return errUnwritten
}
