-- When each decision was committed, by the store's own clock: how long it is remembered must not depend on the clocks of
-- those who decide.

ALTER TABLE decisions ADD COLUMN written REAL NOT NULL DEFAULT 0;
UPDATE decisions SET written = decided;
CREATE INDEX decisions_by_writing ON decisions (written);
