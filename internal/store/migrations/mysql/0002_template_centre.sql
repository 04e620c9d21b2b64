-- Jobs that redo and migrate, a queue with priorities, what builds say while
-- they run, and who asked for what. Every statement can be run twice.

-- +goose Up
ALTER TABLE job DROP CONSTRAINT job_state_valid, ADD CONSTRAINT job_state_valid CHECK (state IN ('queued', 'building', 'built', 'distributing', 'migrating', 'ready', 'failed'));
SET @add = IF((SELECT COUNT(*) FROM information_schema.columns WHERE table_schema = DATABASE() AND table_name = 'job' AND column_name = 'priority') = 0, 'ALTER TABLE job ADD COLUMN priority BIGINT NOT NULL DEFAULT 0', 'DO 0');
PREPARE add_column FROM @add;
EXECUTE add_column;
DEALLOCATE PREPARE add_column;
SET @add = IF((SELECT COUNT(*) FROM information_schema.columns WHERE table_schema = DATABASE() AND table_name = 'job' AND column_name = 'plan') = 0, 'ALTER TABLE job ADD COLUMN plan LONGBLOB NULL', 'DO 0');
PREPARE add_column FROM @add;
EXECUTE add_column;
DEALLOCATE PREPARE add_column;
UPDATE job SET plan = '' WHERE plan IS NULL;
ALTER TABLE job MODIFY plan LONGBLOB NOT NULL;
SET @add = IF((SELECT COUNT(*) FROM information_schema.columns WHERE table_schema = DATABASE() AND table_name = 'job' AND column_name = 'spec_key') = 0, 'ALTER TABLE job ADD COLUMN spec_key VARBINARY(64) NULL, ADD CONSTRAINT job_spec_unique UNIQUE (spec_key)', 'DO 0');
PREPARE add_column FROM @add;
EXECUTE add_column;
DEALLOCATE PREPARE add_column;
SET @add = IF((SELECT COUNT(*) FROM information_schema.columns WHERE table_schema = DATABASE() AND table_name = 'job' AND column_name = 'private') = 0, 'ALTER TABLE job ADD COLUMN private TINYINT NOT NULL DEFAULT 0', 'DO 0');
PREPARE add_column FROM @add;
EXECUTE add_column;
DEALLOCATE PREPARE add_column;
SET @add = IF((SELECT COUNT(*) FROM information_schema.statistics WHERE table_schema = DATABASE() AND table_name = 'job' AND index_name = 'job_queue') = 0, 'ALTER TABLE job ADD KEY job_queue (state, private, priority DESC, created_us, id)', 'DO 0');
PREPARE add_key FROM @add;
EXECUTE add_key;
DEALLOCATE PREPARE add_key;
SET @add = IF((SELECT COUNT(*) FROM information_schema.statistics WHERE table_schema = DATABASE() AND table_name = 'job' AND index_name = 'job_artifact') = 0, 'ALTER TABLE job ADD KEY job_artifact (artifact_id)', 'DO 0');
PREPARE add_key FROM @add;
EXECUTE add_key;
DEALLOCATE PREPARE add_key;

SET @add = IF((SELECT COUNT(*) FROM information_schema.columns WHERE table_schema = DATABASE() AND table_name = 'replica' AND column_name = 'phase') = 0, 'ALTER TABLE replica ADD COLUMN phase VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL DEFAULT \'\'', 'DO 0');
PREPARE add_column FROM @add;
EXECUTE add_column;
DEALLOCATE PREPARE add_column;

CREATE TABLE IF NOT EXISTS job_log (
	job_id VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
	seq BIGINT NOT NULL,
	at_us BIGINT NOT NULL,
	source VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
	line LONGBLOB NOT NULL,
	PRIMARY KEY (job_id, seq),
	KEY job_log_at (at_us)
) ENGINE=InnoDB;

CREATE TABLE IF NOT EXISTS audit (
	id VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL PRIMARY KEY,
	at_us BIGINT NOT NULL,
	actor VARBINARY(190) NOT NULL,
	action VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
	subject VARBINARY(190) NOT NULL,
	request_id VARBINARY(190) NOT NULL,
	detail LONGBLOB NOT NULL,
	KEY audit_at (at_us),
	KEY audit_subject (subject, at_us)
) ENGINE=InnoDB;

CREATE TABLE IF NOT EXISTS alias_claim (
	alias VARBINARY(190) NOT NULL PRIMARY KEY,
	asked_us BIGINT NOT NULL
) ENGINE=InnoDB;

CREATE TABLE IF NOT EXISTS artifact_manifest (
	artifact_id VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL PRIMARY KEY,
	sha256 VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL
) ENGINE=InnoDB;

CREATE TABLE IF NOT EXISTS artifact_version (
	artifact_id VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL PRIMARY KEY,
	guest VARBINARY(64) NOT NULL,
	noted_us BIGINT NOT NULL
) ENGINE=InnoDB;

CREATE TABLE IF NOT EXISTS artifact_store (
	artifact_id VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL PRIMARY KEY,
	store VARBINARY(700) NOT NULL,
	noted_us BIGINT NOT NULL
) ENGINE=InnoDB;
