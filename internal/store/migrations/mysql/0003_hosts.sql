-- Hosts count what they hold, and operators want things of them. The statement
-- can be run twice.

-- +goose Up
SET @add = IF((SELECT COUNT(*) FROM information_schema.columns WHERE table_schema = DATABASE() AND table_name = 'host' AND column_name = 'revision') = 0, 'ALTER TABLE host ADD COLUMN revision BIGINT NOT NULL DEFAULT 0, ADD COLUMN registered_us BIGINT NOT NULL DEFAULT 0, ADD COLUMN wish LONGBLOB NULL, ADD COLUMN wish_version BIGINT NOT NULL DEFAULT 0', 'DO 0');
PREPARE add_column FROM @add;
EXECUTE add_column;
DEALLOCATE PREPARE add_column;
