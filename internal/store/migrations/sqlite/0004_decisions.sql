-- Why sandboxes are where they are. Every statement can be run twice.

-- +goose Up
CREATE TABLE IF NOT EXISTS decision (
	sandbox_id TEXT NOT NULL,
	attempt INTEGER NOT NULL,
	at_us INTEGER NOT NULL,
	kind TEXT NOT NULL,
	host_id BLOB NOT NULL,
	body BLOB NOT NULL,
	PRIMARY KEY (sandbox_id, attempt),
	CONSTRAINT decision_kind_valid CHECK (kind IN ('placed', 'refused'))
) STRICT;
CREATE INDEX IF NOT EXISTS decision_at ON decision (at_us, sandbox_id, attempt);
