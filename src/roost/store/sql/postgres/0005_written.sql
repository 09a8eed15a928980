-- When each decision was committed, by the database's clock: how long it is remembered must not depend on the clocks of
-- those who decide. Of those that were there before: now.

ALTER TABLE decisions ADD COLUMN written DOUBLE PRECISION NOT NULL DEFAULT extract(epoch FROM now());
CREATE INDEX decisions_by_writing ON decisions (written);
