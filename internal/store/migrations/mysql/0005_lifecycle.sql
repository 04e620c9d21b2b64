-- Sandboxes are paused, resumed and rolled back, and have snapshots. Every
-- statement can be run twice.

-- +goose Up
ALTER TABLE sandbox DROP CONSTRAINT sandbox_state_valid, ADD CONSTRAINT sandbox_state_valid CHECK (state IN ('allocating', 'starting', 'running', 'pausing', 'paused', 'resuming', 'rolling_back', 'terminating', 'terminated'));
SET @add = IF((SELECT COUNT(*) FROM information_schema.columns WHERE table_schema = DATABASE() AND table_name = 'sandbox' AND column_name = 'generation') = 0, 'ALTER TABLE sandbox ADD COLUMN generation BIGINT NOT NULL DEFAULT 0, ADD COLUMN timeout_us BIGINT NOT NULL DEFAULT 0, ADD COLUMN on_timeout VARCHAR(16) CHARACTER SET ascii COLLATE ascii_bin NOT NULL DEFAULT \'kill\', ADD COLUMN auto_resume TINYINT NOT NULL DEFAULT 0, ADD COLUMN driver VARCHAR(32) CHARACTER SET ascii COLLATE ascii_bin NOT NULL DEFAULT \'\', ADD COLUMN snapshot_id VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL DEFAULT \'\', ADD COLUMN with_memory TINYINT NOT NULL DEFAULT 0, ADD COLUMN kept_bytes BIGINT NOT NULL DEFAULT 0, ADD COLUMN network LONGBLOB NULL, ADD COLUMN revision BIGINT NOT NULL DEFAULT 0, ADD COLUMN access_token VARBINARY(128) NOT NULL DEFAULT \'\', ADD COLUMN traffic_token VARBINARY(128) NOT NULL DEFAULT \'\', ADD COLUMN wish VARBINARY(512) NOT NULL DEFAULT \'\', ADD CONSTRAINT sandbox_on_timeout_valid CHECK (on_timeout IN (\'kill\', \'pause\')), ADD KEY sandbox_changed_at (changed_us, id)', 'DO 0');
PREPARE add_column FROM @add;
EXECUTE add_column;
DEALLOCATE PREPARE add_column;
UPDATE sandbox SET network = '' WHERE network IS NULL;
ALTER TABLE sandbox MODIFY network LONGBLOB NOT NULL;

CREATE TABLE IF NOT EXISTS snapshot (
	id VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL PRIMARY KEY,
	name VARBINARY(256) NOT NULL,
	sandbox_id VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
	template_id VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
	artifact_id VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
	host_id VARBINARY(128) NOT NULL,
	state VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
	version BIGINT NOT NULL,
	driver VARCHAR(32) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
	with_memory TINYINT NOT NULL,
	size_bytes BIGINT NOT NULL,
	request LONGBLOB NOT NULL,
	error VARBINARY(1024) NOT NULL,
	expires_us BIGINT NOT NULL,
	created_us BIGINT NOT NULL,
	changed_us BIGINT NOT NULL,
	CONSTRAINT snapshot_state_valid CHECK (state IN ('creating', 'ready', 'failed', 'deleting', 'gone')),
	KEY snapshot_changed (state, changed_us),
	KEY snapshot_artifact (artifact_id),
	KEY snapshot_host (host_id),
	KEY snapshot_sandbox (sandbox_id)
) ENGINE=InnoDB;
