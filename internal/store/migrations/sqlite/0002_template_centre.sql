-- Jobs that redo and migrate, a queue with priorities, what builds say while
-- they run, and who asked for what. Every statement can be run twice.

-- +goose Up
CREATE TABLE IF NOT EXISTS job_next (
	id TEXT NOT NULL PRIMARY KEY,
	template_id TEXT NOT NULL,
	request_id BLOB NOT NULL,
	operation TEXT NOT NULL,
	attempt_no INTEGER NOT NULL,
	retry_of TEXT NOT NULL,
	alias BLOB NOT NULL,
	state TEXT NOT NULL,
	version INTEGER NOT NULL,
	phase TEXT NOT NULL,
	progress INTEGER NOT NULL,
	error BLOB NOT NULL,
	error_code TEXT NOT NULL,
	request BLOB NOT NULL,
	result BLOB NOT NULL,
	pull BLOB NOT NULL,
	phase_times BLOB NOT NULL,
	image_ref BLOB NOT NULL,
	digest BLOB NOT NULL,
	artifact_id TEXT NOT NULL,
	spec BLOB NOT NULL,
	expected_hosts INTEGER NOT NULL,
	ready_hosts INTEGER NOT NULL,
	failed_hosts INTEGER NOT NULL,
	created_us INTEGER NOT NULL,
	changed_us INTEGER NOT NULL,
	priority INTEGER NOT NULL,
	plan BLOB NOT NULL,
	spec_key BLOB,
	private INTEGER NOT NULL DEFAULT 0,
	CONSTRAINT job_request_unique UNIQUE (request_id, operation),
	CONSTRAINT job_attempt_unique UNIQUE (template_id, attempt_no),
	CONSTRAINT job_spec_unique UNIQUE (spec_key),
	CONSTRAINT job_progress_valid CHECK (progress BETWEEN 0 AND 100),
	CONSTRAINT job_state_valid CHECK (state IN ('queued', 'building', 'built', 'distributing', 'migrating', 'ready', 'failed'))
) STRICT;
INSERT INTO job_next (id, template_id, request_id, operation, attempt_no, retry_of, alias, state, version, phase, progress, error, error_code, request, result, pull, phase_times, image_ref, digest, artifact_id, spec, expected_hosts, ready_hosts, failed_hosts, created_us, changed_us, priority, plan) SELECT id, template_id, request_id, operation, attempt_no, retry_of, alias, state, version, phase, progress, error, error_code, request, result, pull, phase_times, image_ref, digest, artifact_id, spec, expected_hosts, ready_hosts, failed_hosts, created_us, changed_us, 0, x'' FROM job;
DROP TABLE job;
ALTER TABLE job_next RENAME TO job;
CREATE INDEX IF NOT EXISTS job_changed ON job (state, changed_us);
CREATE INDEX IF NOT EXISTS job_template ON job (template_id, attempt_no);
CREATE INDEX IF NOT EXISTS job_queue ON job (state, private, priority DESC, created_us, id);
CREATE INDEX IF NOT EXISTS job_artifact ON job (artifact_id);

CREATE TABLE IF NOT EXISTS replica_next (
	template_id TEXT NOT NULL,
	host_id BLOB NOT NULL,
	state TEXT NOT NULL,
	version INTEGER NOT NULL,
	artifact_id TEXT NOT NULL,
	job_id TEXT NOT NULL,
	error BLOB NOT NULL,
	created_us INTEGER NOT NULL,
	changed_us INTEGER NOT NULL,
	phase TEXT NOT NULL,
	PRIMARY KEY (template_id, host_id),
	CONSTRAINT replica_state_valid CHECK (state IN ('pending', 'ready', 'failed', 'cleaning', 'gone'))
) STRICT;
INSERT INTO replica_next (template_id, host_id, state, version, artifact_id, job_id, error, created_us, changed_us, phase) SELECT template_id, host_id, state, version, artifact_id, job_id, error, created_us, changed_us, '' FROM replica;
DROP TABLE replica;
ALTER TABLE replica_next RENAME TO replica;
CREATE INDEX IF NOT EXISTS replica_artifact ON replica (artifact_id);

CREATE TABLE IF NOT EXISTS job_log (
	job_id TEXT NOT NULL,
	seq INTEGER NOT NULL,
	at_us INTEGER NOT NULL,
	source TEXT NOT NULL,
	line BLOB NOT NULL,
	PRIMARY KEY (job_id, seq)
) STRICT;

CREATE INDEX IF NOT EXISTS job_log_at ON job_log (at_us);

CREATE TABLE IF NOT EXISTS audit (
	id TEXT NOT NULL PRIMARY KEY,
	at_us INTEGER NOT NULL,
	actor BLOB NOT NULL,
	action TEXT NOT NULL,
	subject BLOB NOT NULL,
	request_id BLOB NOT NULL,
	detail BLOB NOT NULL
) STRICT;

CREATE INDEX IF NOT EXISTS audit_at ON audit (at_us);
CREATE INDEX IF NOT EXISTS audit_subject ON audit (subject, at_us);

CREATE TABLE IF NOT EXISTS alias_claim (
	alias BLOB NOT NULL PRIMARY KEY,
	asked_us INTEGER NOT NULL
) STRICT;

CREATE TABLE IF NOT EXISTS artifact_manifest (
	artifact_id TEXT NOT NULL PRIMARY KEY,
	sha256 TEXT NOT NULL
) STRICT;

CREATE TABLE IF NOT EXISTS artifact_version (
	artifact_id TEXT NOT NULL PRIMARY KEY,
	guest BLOB NOT NULL,
	noted_us INTEGER NOT NULL
) STRICT;

CREATE TABLE IF NOT EXISTS artifact_store (
	artifact_id TEXT NOT NULL PRIMARY KEY,
	store BLOB NOT NULL,
	noted_us INTEGER NOT NULL
) STRICT;
