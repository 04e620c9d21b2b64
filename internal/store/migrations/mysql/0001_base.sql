-- The first schema: templates, sandboxes, and what every transaction needs.
-- Every statement can be run twice.

-- +goose Up
CREATE TABLE IF NOT EXISTS definition (
	id VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL PRIMARY KEY,
	alias VARBINARY(64),
	instance_type VARBINARY(128) NOT NULL,
	state VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
	version BIGINT NOT NULL,
	artifact_id VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
	job_id VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
	image_ref VARBINARY(1024) NOT NULL,
	digest VARBINARY(128) NOT NULL,
	request LONGBLOB NOT NULL,
	error LONGBLOB NOT NULL,
	created_us BIGINT NOT NULL,
	changed_us BIGINT NOT NULL,
	CONSTRAINT definition_alias_unique UNIQUE (alias),
	CONSTRAINT definition_state_valid CHECK (state IN ('creating', 'ready', 'partially_ready', 'failed', 'deleting', 'gone')),
	KEY definition_created (created_us),
	KEY definition_artifact (artifact_id)
) ENGINE=InnoDB;

CREATE TABLE IF NOT EXISTS job (
	id VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL PRIMARY KEY,
	template_id VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
	request_id VARBINARY(190) NOT NULL,
	operation VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
	attempt_no BIGINT NOT NULL,
	retry_of VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
	alias VARBINARY(64) NOT NULL,
	state VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
	version BIGINT NOT NULL,
	phase VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
	progress BIGINT NOT NULL,
	error LONGBLOB NOT NULL,
	error_code VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
	request LONGBLOB NOT NULL,
	result LONGBLOB NOT NULL,
	pull LONGBLOB NOT NULL,
	phase_times LONGBLOB NOT NULL,
	image_ref VARBINARY(1024) NOT NULL,
	digest VARBINARY(128) NOT NULL,
	artifact_id VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
	spec VARBINARY(64) NOT NULL,
	expected_hosts BIGINT NOT NULL,
	ready_hosts BIGINT NOT NULL,
	failed_hosts BIGINT NOT NULL,
	created_us BIGINT NOT NULL,
	changed_us BIGINT NOT NULL,
	CONSTRAINT job_request_unique UNIQUE (request_id, operation),
	CONSTRAINT job_attempt_unique UNIQUE (template_id, attempt_no),
	CONSTRAINT job_progress_valid CHECK (progress BETWEEN 0 AND 100),
	CONSTRAINT job_state_valid CHECK (state IN ('queued', 'building', 'built', 'distributing', 'ready', 'failed')),
	KEY job_changed (state, changed_us),
	KEY job_template (template_id, attempt_no)
) ENGINE=InnoDB;

CREATE TABLE IF NOT EXISTS artifact (
	id VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL PRIMARY KEY,
	content_key VARBINARY(64) NOT NULL,
	state VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
	version BIGINT NOT NULL,
	image_ref VARBINARY(1024) NOT NULL,
	digest VARBINARY(128) NOT NULL,
	sha256 VARBINARY(64) NOT NULL,
	size_bytes BIGINT NOT NULL,
	backend VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
	location VARBINARY(1024) NOT NULL,
	token VARBINARY(128) NOT NULL,
	image_config LONGBLOB NOT NULL,
	error LONGBLOB NOT NULL,
	created_us BIGINT NOT NULL,
	changed_us BIGINT NOT NULL,
	CONSTRAINT artifact_content_unique UNIQUE (content_key),
	CONSTRAINT artifact_state_valid CHECK (state IN ('building', 'ready', 'failed', 'cleanup_pending', 'deleting', 'gone'))
) ENGINE=InnoDB;

CREATE TABLE IF NOT EXISTS replica (
	template_id VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
	host_id VARBINARY(128) NOT NULL,
	state VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
	version BIGINT NOT NULL,
	artifact_id VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
	job_id VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
	error LONGBLOB NOT NULL,
	created_us BIGINT NOT NULL,
	changed_us BIGINT NOT NULL,
	PRIMARY KEY (template_id, host_id),
	CONSTRAINT replica_state_valid CHECK (state IN ('pending', 'ready', 'failed', 'cleaning', 'gone')),
	KEY replica_artifact (artifact_id)
) ENGINE=InnoDB;

CREATE TABLE IF NOT EXISTS placement (
	artifact_id VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
	host_id VARBINARY(128) NOT NULL,
	created_us BIGINT NOT NULL,
	PRIMARY KEY (artifact_id, host_id),
	KEY placement_host (host_id)
) ENGINE=InnoDB;

CREATE TABLE IF NOT EXISTS host (
	id VARBINARY(128) NOT NULL PRIMARY KEY,
	ip VARBINARY(64) NOT NULL,
	registration LONGBLOB NOT NULL,
	status LONGBLOB NOT NULL,
	cordoned BIGINT NOT NULL,
	heard_us BIGINT NOT NULL,
	created_us BIGINT NOT NULL,
	CONSTRAINT host_cordoned_valid CHECK (cordoned IN (0, 1))
) ENGINE=InnoDB;

CREATE TABLE IF NOT EXISTS sandbox (
	id VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL PRIMARY KEY,
	template_id VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
	host_id VARBINARY(128) NOT NULL,
	state VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
	version BIGINT NOT NULL,
	milli_cpu BIGINT NOT NULL,
	mem_bytes BIGINT NOT NULL,
	disk_bytes BIGINT NOT NULL,
	ip VARBINARY(64) NOT NULL,
	metadata LONGBLOB NOT NULL,
	request LONGBLOB NOT NULL,
	reason VARBINARY(512) NOT NULL,
	expires_us BIGINT NOT NULL,
	created_us BIGINT NOT NULL,
	changed_us BIGINT NOT NULL,
	CONSTRAINT sandbox_host_known CHECK (LENGTH(host_id) > 0 OR state IN ('allocating', 'terminating', 'terminated')),
	CONSTRAINT sandbox_state_valid CHECK (state IN ('allocating', 'starting', 'running', 'pausing', 'paused', 'terminating', 'terminated')),
	KEY sandbox_changed (state, changed_us),
	KEY sandbox_expires (expires_us),
	KEY sandbox_host (host_id),
	KEY sandbox_template (template_id)
) ENGINE=InnoDB;

CREATE TABLE IF NOT EXISTS outbox (
	id VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL PRIMARY KEY,
	topic VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
	message_key VARBINARY(190) NOT NULL,
	payload LONGBLOB NOT NULL,
	trace LONGBLOB NOT NULL,
	attempts BIGINT NOT NULL,
	last_error LONGBLOB NOT NULL,
	due_us BIGINT NOT NULL,
	claimed_until_us BIGINT NOT NULL,
	dead BIGINT NOT NULL,
	created_us BIGINT NOT NULL,
	CONSTRAINT outbox_dead_valid CHECK (dead IN (0, 1)),
	KEY outbox_due (topic, dead, due_us),
	KEY outbox_dead (dead, due_us),
	KEY outbox_key (topic, message_key, created_us)
) ENGINE=InnoDB;

CREATE TABLE IF NOT EXISTS submission (
	holder VARBINARY(128) NOT NULL,
	id VARBINARY(190) NOT NULL,
	fingerprint LONGBLOB NOT NULL,
	answer LONGBLOB NOT NULL,
	created_us BIGINT NOT NULL,
	PRIMARY KEY (holder, id),
	KEY submission_created (created_us)
) ENGINE=InnoDB;

CREATE TABLE IF NOT EXISTS lease (
	subject VARBINARY(128) NOT NULL PRIMARY KEY,
	holder VARBINARY(190) NOT NULL,
	epoch BIGINT NOT NULL,
	until_us BIGINT NOT NULL
) ENGINE=InnoDB;
