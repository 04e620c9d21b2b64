-- The first schema: templates, sandboxes, and what every transaction needs.
-- Every statement can be run twice.

-- +goose Up
CREATE TABLE IF NOT EXISTS definition (
	id TEXT NOT NULL PRIMARY KEY,
	alias BLOB,
	instance_type BLOB NOT NULL,
	state TEXT NOT NULL,
	version INTEGER NOT NULL,
	artifact_id TEXT NOT NULL,
	job_id TEXT NOT NULL,
	image_ref BLOB NOT NULL,
	digest BLOB NOT NULL,
	request BLOB NOT NULL,
	error BLOB NOT NULL,
	created_us INTEGER NOT NULL,
	changed_us INTEGER NOT NULL,
	CONSTRAINT definition_alias_unique UNIQUE (alias),
	CONSTRAINT definition_state_valid CHECK (state IN ('creating', 'ready', 'partially_ready', 'failed', 'deleting', 'gone'))
) STRICT;

CREATE TABLE IF NOT EXISTS job (
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
	CONSTRAINT job_request_unique UNIQUE (request_id, operation),
	CONSTRAINT job_attempt_unique UNIQUE (template_id, attempt_no),
	CONSTRAINT job_progress_valid CHECK (progress BETWEEN 0 AND 100),
	CONSTRAINT job_state_valid CHECK (state IN ('queued', 'building', 'built', 'distributing', 'ready', 'failed'))
) STRICT;

CREATE TABLE IF NOT EXISTS artifact (
	id TEXT NOT NULL PRIMARY KEY,
	content_key BLOB NOT NULL,
	state TEXT NOT NULL,
	version INTEGER NOT NULL,
	image_ref BLOB NOT NULL,
	digest BLOB NOT NULL,
	sha256 BLOB NOT NULL,
	size_bytes INTEGER NOT NULL,
	backend TEXT NOT NULL,
	location BLOB NOT NULL,
	token BLOB NOT NULL,
	image_config BLOB NOT NULL,
	error BLOB NOT NULL,
	created_us INTEGER NOT NULL,
	changed_us INTEGER NOT NULL,
	CONSTRAINT artifact_content_unique UNIQUE (content_key),
	CONSTRAINT artifact_state_valid CHECK (state IN ('building', 'ready', 'failed', 'cleanup_pending', 'deleting', 'gone'))
) STRICT;

CREATE TABLE IF NOT EXISTS replica (
	template_id TEXT NOT NULL,
	host_id BLOB NOT NULL,
	state TEXT NOT NULL,
	version INTEGER NOT NULL,
	artifact_id TEXT NOT NULL,
	job_id TEXT NOT NULL,
	error BLOB NOT NULL,
	created_us INTEGER NOT NULL,
	changed_us INTEGER NOT NULL,
	PRIMARY KEY (template_id, host_id),
	CONSTRAINT replica_state_valid CHECK (state IN ('pending', 'ready', 'failed', 'cleaning', 'gone'))
) STRICT;

CREATE TABLE IF NOT EXISTS placement (
	artifact_id TEXT NOT NULL,
	host_id BLOB NOT NULL,
	created_us INTEGER NOT NULL,
	PRIMARY KEY (artifact_id, host_id)
) STRICT;

CREATE TABLE IF NOT EXISTS host (
	id BLOB NOT NULL PRIMARY KEY,
	ip BLOB NOT NULL,
	registration BLOB NOT NULL,
	status BLOB NOT NULL,
	cordoned INTEGER NOT NULL,
	heard_us INTEGER NOT NULL,
	created_us INTEGER NOT NULL,
	CONSTRAINT host_cordoned_valid CHECK (cordoned IN (0, 1))
) STRICT;

CREATE TABLE IF NOT EXISTS sandbox (
	id TEXT NOT NULL PRIMARY KEY,
	template_id TEXT NOT NULL,
	host_id BLOB NOT NULL,
	state TEXT NOT NULL,
	version INTEGER NOT NULL,
	milli_cpu INTEGER NOT NULL,
	mem_bytes INTEGER NOT NULL,
	disk_bytes INTEGER NOT NULL,
	ip BLOB NOT NULL,
	metadata BLOB NOT NULL,
	request BLOB NOT NULL,
	reason BLOB NOT NULL,
	expires_us INTEGER NOT NULL,
	created_us INTEGER NOT NULL,
	changed_us INTEGER NOT NULL,
	CONSTRAINT sandbox_host_known CHECK (LENGTH(host_id) > 0 OR state IN ('allocating', 'terminating', 'terminated')),
	CONSTRAINT sandbox_state_valid CHECK (state IN ('allocating', 'starting', 'running', 'pausing', 'paused', 'terminating', 'terminated'))
) STRICT;

CREATE TABLE IF NOT EXISTS outbox (
	id TEXT NOT NULL PRIMARY KEY,
	topic TEXT NOT NULL,
	message_key BLOB NOT NULL,
	payload BLOB NOT NULL,
	trace BLOB NOT NULL,
	attempts INTEGER NOT NULL,
	last_error BLOB NOT NULL,
	due_us INTEGER NOT NULL,
	claimed_until_us INTEGER NOT NULL,
	dead INTEGER NOT NULL,
	created_us INTEGER NOT NULL,
	CONSTRAINT outbox_dead_valid CHECK (dead IN (0, 1))
) STRICT;

CREATE TABLE IF NOT EXISTS submission (
	holder BLOB NOT NULL,
	id BLOB NOT NULL,
	fingerprint BLOB NOT NULL,
	answer BLOB NOT NULL,
	created_us INTEGER NOT NULL,
	PRIMARY KEY (holder, id)
) STRICT;

CREATE TABLE IF NOT EXISTS lease (
	subject BLOB NOT NULL PRIMARY KEY,
	holder BLOB NOT NULL,
	epoch INTEGER NOT NULL,
	until_us INTEGER NOT NULL
) STRICT;

CREATE INDEX IF NOT EXISTS job_changed ON job (state, changed_us);
CREATE INDEX IF NOT EXISTS job_template ON job (template_id, attempt_no);
CREATE INDEX IF NOT EXISTS definition_created ON definition (created_us);
CREATE INDEX IF NOT EXISTS definition_artifact ON definition (artifact_id);
CREATE INDEX IF NOT EXISTS replica_artifact ON replica (artifact_id);
CREATE INDEX IF NOT EXISTS placement_host ON placement (host_id);
CREATE INDEX IF NOT EXISTS sandbox_changed ON sandbox (state, changed_us);
CREATE INDEX IF NOT EXISTS sandbox_host ON sandbox (host_id);
CREATE INDEX IF NOT EXISTS sandbox_template ON sandbox (template_id);
CREATE INDEX IF NOT EXISTS sandbox_expires ON sandbox (expires_us);
CREATE INDEX IF NOT EXISTS outbox_dead ON outbox (dead, due_us);
CREATE INDEX IF NOT EXISTS outbox_due ON outbox (topic, dead, due_us);
CREATE INDEX IF NOT EXISTS outbox_key ON outbox (topic, message_key, created_us);
CREATE INDEX IF NOT EXISTS submission_created ON submission (created_us);
