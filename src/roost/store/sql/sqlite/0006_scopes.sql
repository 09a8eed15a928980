-- Which cluster a machine is in, and whether it is empty: ready, with nobody of the highest band on it, nor anybody who
-- has it for himself. So the empty machines of a cluster can be counted at a commit, as far as that matters.

ALTER TABLE machines ADD COLUMN cluster TEXT NOT NULL DEFAULT '';
ALTER TABLE machines ADD COLUMN is_empty INTEGER NOT NULL DEFAULT 0 CHECK (is_empty IN (0, 1));
UPDATE machines SET cluster = json_extract(spec, '$[2]'), is_empty = state = 0 AND owner = '' AND NOT EXISTS (
    SELECT 1 FROM json_each(used) WHERE key < json_array_length(spec, '$[7]') AND value <> 0
);
CREATE INDEX machines_that_are_empty ON machines (cluster) WHERE is_empty;
