package templatedb

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/fsm"
	"github.com/paddock-dev/paddock/internal/host"
	"github.com/paddock-dev/paddock/internal/store"
	"github.com/paddock-dev/paddock/internal/template"
)

const definitionColumns = `id, alias, instance_type, state, version, artifact_id, job_id, image_ref, digest, request, error, created_us, changed_us`

// AddDefinition stores a new template in its first state, without an alias:
// ClaimAlias gives it one.
func AddDefinition(ctx context.Context, tx *store.Tx, d template.Definition) (template.Definition, error) {
	d.State, d.Version, d.Alias, d.CreatedAt, d.ChangedAt = template.Definitions.Initial(), 1, "", tx.Now, tx.Now
	return d, tx.Insert(ctx, fault.New(fault.Exists, "template %s", d.ID),
		`INSERT INTO definition (`+definitionColumns+`) VALUES (?, NULL, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
		string(d.ID), []byte(d.InstanceType), string(d.State), d.Version, string(d.ArtifactID), string(d.JobID), []byte(d.ImageRef), []byte(d.Digest), bytesOf(d.Request), []byte(d.Error), d.CreatedAt.UnixMicro(), d.ChangedAt.UnixMicro())
}

func scanDefinition(r store.Scanner) (d template.Definition, err error) {
	var alias sql.NullString
	var failure []byte
	var created, changed int64
	err = r.Scan(&d.ID, &alias, &d.InstanceType, &d.State, &d.Version, &d.ArtifactID, &d.JobID, &d.ImageRef, &d.Digest, &d.Request, &failure, &created, &changed)
	d.Alias, d.Error, d.CreatedAt, d.ChangedAt = alias.String, string(failure), time.UnixMicro(created), time.UnixMicro(changed)
	return d, err
}

// GetDefinition returns a template, or fault.TemplateNotFound.
func GetDefinition(ctx context.Context, tx *store.Tx, id template.ID) (template.Definition, error) {
	d, ok, err := store.First(ctx, tx, scanDefinition, `SELECT `+definitionColumns+` FROM definition WHERE id = ?`, string(id))
	if err == nil && (!ok || d.ID != id) { // MySQL takes "x " for "x"
		err = fault.New(fault.TemplateNotFound, "template %.128q", id)
	}
	return d, err
}

// DefinitionByAlias returns the template that has an alias now.
func DefinitionByAlias(ctx context.Context, tx *store.Tx, alias string) (template.Definition, bool, error) {
	return store.First(ctx, tx, scanDefinition, `SELECT `+definitionColumns+` FROM definition WHERE alias = ?`, []byte(alias))
}

// Resolve returns the template called name, an id or an alias, or
// fault.TemplateNotFound.
func Resolve(ctx context.Context, tx *store.Tx, name string) (template.Definition, error) {
	d, ok, err := DefinitionByAlias(ctx, tx, name)
	if err != nil || ok {
		return d, err
	}
	return GetDefinition(ctx, tx, template.ID(name))
}

// MoveDefinition is the only statement that changes a template's state. It
// writes what else the caller changed in d too, but not the alias.
func MoveDefinition(ctx context.Context, tx *store.Tx, d template.Definition, on template.Event) (template.Definition, error) {
	to, err := template.Definitions.Step(d.State, on, fsm.None{})
	if err != nil {
		return d, fmt.Errorf("template %s: %w", d.ID, err)
	}
	n, err := tx.Exec(ctx, `UPDATE definition SET state = ?, version = version + 1, artifact_id = ?, job_id = ?, error = ?, changed_us = ? WHERE id = ? AND state = ? AND version = ?`,
		string(to), string(d.ArtifactID), string(d.JobID), []byte(d.Error), tx.Now.UnixMicro(), string(d.ID), string(d.State), d.Version)
	if err == nil && n == 0 {
		err = fault.VersionConflict
	}
	if err != nil {
		return d, fmt.Errorf("template %s: %s: %w", d.ID, on, err)
	}
	tx.Moved("template", string(d.ID), string(on), string(d.State), string(to))
	d.State, d.Version, d.ChangedAt = to, d.Version+1, tx.Now
	return d, nil
}

// ClaimAlias gives d an alias that was asked for at the given time, and takes it
// from who has it: from is that template, if any. Of two who ask for one alias
// the later has it, whoever is ready first: one that was asked for later is
// fault.AliasTaken.
func ClaimAlias(ctx context.Context, tx *store.Tx, d template.Definition, alias string, asked time.Time) (named template.Definition, from template.ID, err error) {
	other, held, err := DefinitionByAlias(ctx, tx, alias)
	if err != nil {
		return d, "", err
	}
	if held && other.ID != d.ID {
		var last int64
		if _, err := tx.Row(ctx, `SELECT asked_us FROM alias_claim WHERE alias = ?`, []any{[]byte(alias)}, &last); err != nil {
			return d, "", err
		}
		if last > asked.UnixMicro() {
			return d, other.ID, fault.New(fault.AliasTaken, "alias %q, given to %s by a later request", alias, other.ID)
		}
		if _, err := ClearAlias(ctx, tx, other); err != nil {
			return d, "", err
		}
		from = other.ID
	}
	if d.Alias != "" && d.Alias != alias {
		if err := forgetClaim(ctx, tx, d.Alias); err != nil {
			return d, "", err
		}
	}
	if d, err = writeAlias(ctx, tx, d, alias, []byte(alias)); err != nil {
		return d, "", err
	}
	if err := forgetClaim(ctx, tx, alias); err != nil {
		return d, "", err
	}
	return d, from, tx.Insert(ctx, fault.VersionConflict, `INSERT INTO alias_claim (alias, asked_us) VALUES (?, ?)`, []byte(alias), asked.UnixMicro())
}

// ClearAlias takes d's alias away.
func ClearAlias(ctx context.Context, tx *store.Tx, d template.Definition) (template.Definition, error) {
	if err := forgetClaim(ctx, tx, d.Alias); err != nil {
		return d, err
	}
	return writeAlias(ctx, tx, d, "", nil)
}

func forgetClaim(ctx context.Context, tx *store.Tx, alias string) error {
	_, err := tx.Exec(ctx, `DELETE FROM alias_claim WHERE alias = ?`, []byte(alias))
	return err
}

func writeAlias(ctx context.Context, tx *store.Tx, d template.Definition, alias string, value any) (template.Definition, error) {
	n, err := tx.ExecUnique(ctx, fault.VersionConflict, // given to another meanwhile: look again
		`UPDATE definition SET alias = ?, version = version + 1, changed_us = ? WHERE id = ? AND version = ?`, value, tx.Now.UnixMicro(), string(d.ID), d.Version)
	if err == nil && n == 0 {
		err = fmt.Errorf("template %s: alias: %w", d.ID, fault.VersionConflict)
	}
	if err != nil {
		return d, err
	}
	d.Alias, d.Version, d.ChangedAt = alias, d.Version+1, tx.Now
	return d, nil
}

// RemoveDefinition ends a template that is being deleted, with its row, its
// replicas' rows and its jobs.
func RemoveDefinition(ctx context.Context, tx *store.Tx, d template.Definition) error {
	d, err := MoveDefinition(ctx, tx, d, template.OnRemoved)
	if err != nil {
		return err
	}
	for _, q := range []string{`DELETE FROM replica WHERE template_id = ?`, `DELETE FROM definition WHERE id = ?`} {
		if _, err := tx.Exec(ctx, q, string(d.ID)); err != nil {
			return err
		}
	}
	return DeleteJobs(ctx, tx, d.ID)
}

const replicaColumns = `template_id, host_id, state, version, artifact_id, job_id, error, created_us, changed_us, phase`

func scanReplica(r store.Scanner) (p template.Replica, err error) {
	var failure []byte
	var created, changed int64
	err = r.Scan(&p.TemplateID, &p.HostID, &p.State, &p.Version, &p.ArtifactID, &p.JobID, &failure, &created, &changed, &p.Phase)
	p.Error, p.CreatedAt, p.ChangedAt = string(failure), time.UnixMicro(created), time.UnixMicro(changed)
	return p, err
}

// AddReplica stores a new replica in its first, pessimistic state.
func AddReplica(ctx context.Context, tx *store.Tx, p template.Replica) (template.Replica, error) {
	p.State, p.Version, p.CreatedAt, p.ChangedAt = template.Replicas.Initial(), 1, tx.Now, tx.Now
	return p, tx.Insert(ctx, fault.New(fault.Exists, "replica of %s on %s", p.TemplateID, p.HostID),
		`INSERT INTO replica (`+replicaColumns+`) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
		string(p.TemplateID), []byte(p.HostID), string(p.State), p.Version, string(p.ArtifactID), string(p.JobID), []byte(p.Error), p.CreatedAt.UnixMicro(), p.ChangedAt.UnixMicro(), string(p.Phase))
}

// GetReplica returns a template's replica on one host.
func GetReplica(ctx context.Context, tx *store.Tx, id template.ID, h host.ID) (template.Replica, bool, error) {
	return store.First(ctx, tx, scanReplica, `SELECT `+replicaColumns+` FROM replica WHERE template_id = ? AND host_id = ?`, string(id), []byte(h))
}

// ListReplicas returns a template's replicas by host.
func ListReplicas(ctx context.Context, tx *store.Tx, id template.ID) ([]template.Replica, error) {
	return store.Collect(ctx, tx, scanReplica, `SELECT `+replicaColumns+` FROM replica WHERE template_id = ? ORDER BY host_id`, string(id))
}

// MoveReplica is the only statement that changes a replica's state.
func MoveReplica(ctx context.Context, tx *store.Tx, p template.Replica, on template.ReplicaEvent) (template.Replica, error) {
	to, err := template.Replicas.Step(p.State, on, fsm.None{})
	if err != nil {
		return p, fmt.Errorf("replica of %s on %s: %w", p.TemplateID, p.HostID, err)
	}
	if to == template.ReplicaReady {
		p.Phase = "" // it is at nothing
	}
	n, err := tx.Exec(ctx, `UPDATE replica SET state = ?, version = version + 1, artifact_id = ?, job_id = ?, error = ?, changed_us = ?, phase = ? WHERE template_id = ? AND host_id = ? AND state = ? AND version = ?`,
		string(to), string(p.ArtifactID), string(p.JobID), []byte(p.Error), tx.Now.UnixMicro(), string(p.Phase), string(p.TemplateID), []byte(p.HostID), string(p.State), p.Version)
	if err == nil && n == 0 {
		err = fault.VersionConflict
	}
	if err != nil {
		return p, fmt.Errorf("replica of %s on %s: %s: %w", p.TemplateID, p.HostID, on, err)
	}
	tx.Moved("replica", string(p.TemplateID)+"@"+string(p.HostID), string(on), string(p.State), string(to))
	p.State, p.Version, p.ChangedAt = to, p.Version+1, tx.Now
	return p, nil
}
