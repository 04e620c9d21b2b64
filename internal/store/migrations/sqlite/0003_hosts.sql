-- Hosts count what they hold, and operators want things of them. The table is
-- made anew in one transaction: what broke off left nothing.

-- +goose Up
CREATE TABLE IF NOT EXISTS host_next (
	id BLOB NOT NULL PRIMARY KEY,
	ip BLOB NOT NULL,
	registration BLOB NOT NULL,
	status BLOB NOT NULL,
	cordoned INTEGER NOT NULL,
	heard_us INTEGER NOT NULL,
	created_us INTEGER NOT NULL,
	revision INTEGER NOT NULL DEFAULT 0,
	registered_us INTEGER NOT NULL DEFAULT 0,
	wish BLOB,
	wish_version INTEGER NOT NULL DEFAULT 0,
	CONSTRAINT host_cordoned_valid CHECK (cordoned IN (0, 1))
) STRICT;
DELETE FROM host_next;
INSERT INTO host_next (id, ip, registration, status, cordoned, heard_us, created_us) SELECT id, ip, registration, status, cordoned, heard_us, created_us FROM host;
DROP TABLE host;
ALTER TABLE host_next RENAME TO host;
