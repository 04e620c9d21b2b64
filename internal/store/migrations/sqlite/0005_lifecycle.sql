-- Sandboxes are paused, resumed and rolled back, and have snapshots. Every
-- statement can be run twice.

-- +goose Up
CREATE TABLE IF NOT EXISTS sandbox_next (
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
	generation INTEGER NOT NULL DEFAULT 0,
	timeout_us INTEGER NOT NULL DEFAULT 0,
	on_timeout TEXT NOT NULL DEFAULT 'kill',
	auto_resume INTEGER NOT NULL DEFAULT 0,
	driver TEXT NOT NULL DEFAULT '',
	snapshot_id TEXT NOT NULL DEFAULT '',
	with_memory INTEGER NOT NULL DEFAULT 0,
	kept_bytes INTEGER NOT NULL DEFAULT 0,
	network BLOB NOT NULL DEFAULT x'',
	revision INTEGER NOT NULL DEFAULT 0,
	access_token BLOB NOT NULL DEFAULT x'',
	traffic_token BLOB NOT NULL DEFAULT x'',
	wish BLOB NOT NULL DEFAULT x'',
	CONSTRAINT sandbox_on_timeout_valid CHECK (on_timeout IN ('kill', 'pause')),
	CONSTRAINT sandbox_host_known CHECK (LENGTH(host_id) > 0 OR state IN ('allocating', 'terminating', 'terminated')),
	CONSTRAINT sandbox_state_valid CHECK (state IN ('allocating', 'starting', 'running', 'pausing', 'paused', 'resuming', 'rolling_back', 'terminating', 'terminated'))
) STRICT;
INSERT INTO sandbox_next (id, template_id, host_id, state, version, milli_cpu, mem_bytes, disk_bytes, ip, metadata, request, reason, expires_us, created_us, changed_us) SELECT id, template_id, host_id, state, version, milli_cpu, mem_bytes, disk_bytes, ip, metadata, request, reason, expires_us, created_us, changed_us FROM sandbox;
DROP TABLE sandbox;
ALTER TABLE sandbox_next RENAME TO sandbox;
CREATE INDEX IF NOT EXISTS sandbox_changed ON sandbox (state, changed_us);
CREATE INDEX IF NOT EXISTS sandbox_host ON sandbox (host_id);
CREATE INDEX IF NOT EXISTS sandbox_template ON sandbox (template_id);
CREATE INDEX IF NOT EXISTS sandbox_expires ON sandbox (expires_us);
CREATE INDEX IF NOT EXISTS sandbox_changed_at ON sandbox (changed_us, id);

CREATE TABLE IF NOT EXISTS snapshot (
	id TEXT NOT NULL PRIMARY KEY,
	name BLOB NOT NULL,
	sandbox_id TEXT NOT NULL,
	template_id TEXT NOT NULL,
	artifact_id TEXT NOT NULL,
	host_id BLOB NOT NULL,
	state TEXT NOT NULL,
	version INTEGER NOT NULL,
	driver TEXT NOT NULL,
	with_memory INTEGER NOT NULL,
	size_bytes INTEGER NOT NULL,
	request BLOB NOT NULL,
	error BLOB NOT NULL,
	expires_us INTEGER NOT NULL,
	created_us INTEGER NOT NULL,
	changed_us INTEGER NOT NULL,
	CONSTRAINT snapshot_state_valid CHECK (state IN ('creating', 'ready', 'failed', 'deleting', 'gone'))
) STRICT;
CREATE INDEX IF NOT EXISTS snapshot_changed ON snapshot (state, changed_us);
CREATE INDEX IF NOT EXISTS snapshot_artifact ON snapshot (artifact_id);
CREATE INDEX IF NOT EXISTS snapshot_host ON snapshot (host_id);
CREATE INDEX IF NOT EXISTS snapshot_sandbox ON snapshot (sandbox_id);
