-- When each decision was committed, by the store's own clock: how long it is remembered must not depend on the clocks of
-- those who decide.

-- Those of before count from now on: when they were decided is what clocks said that may have been wrong.

ALTER TABLE decisions ADD COLUMN written REAL NOT NULL DEFAULT 0;
UPDATE decisions SET written = (julianday('now') - 2440587.5) * 86400.0;
CREATE INDEX decisions_by_writing ON decisions (written);
