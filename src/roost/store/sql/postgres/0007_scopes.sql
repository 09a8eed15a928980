-- Which cluster a machine is in, and whether it is empty: ready, with nobody of the highest band on it, nor anybody who
-- has it for himself. So the empty machines of a cluster can be counted at a commit, as far as that matters.

ALTER TABLE machines
    ADD COLUMN cluster TEXT COLLATE "C" NOT NULL DEFAULT '',
    ADD COLUMN is_empty BOOLEAN NOT NULL DEFAULT FALSE;
UPDATE machines SET cluster = spec::json->>2, is_empty = state = 0 AND owner = '' AND NOT EXISTS (
    SELECT 1 FROM json_array_elements_text(used::json) WITH ORDINALITY AS each (amount, position)
    WHERE position <= json_array_length(spec::json->7) AND amount <> '0'
);
CREATE INDEX machines_that_are_empty ON machines (cluster) WHERE is_empty;
