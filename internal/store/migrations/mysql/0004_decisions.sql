-- Why sandboxes are where they are. Every statement can be run twice.

-- +goose Up
CREATE TABLE IF NOT EXISTS decision (
	sandbox_id VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
	attempt BIGINT NOT NULL,
	at_us BIGINT NOT NULL,
	kind VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
	host_id VARBINARY(128) NOT NULL,
	body LONGBLOB NOT NULL,
	PRIMARY KEY (sandbox_id, attempt),
	KEY decision_at (at_us, sandbox_id, attempt),
	CONSTRAINT decision_kind_valid CHECK (kind IN ('placed', 'refused'))
) ENGINE=InnoDB;
