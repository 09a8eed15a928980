-- When each VM was first placed, in seconds since 1970; 0 of those that were there before this was written down.

ALTER TABLE vms ADD COLUMN since DOUBLE PRECISION NOT NULL DEFAULT 0;
