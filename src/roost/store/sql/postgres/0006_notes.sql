-- What processes tell one another that is good for a while only: who was heard of lately. It is no part of the zone, is
-- in no feed, and may be lost, so it need not be written twice.

CREATE UNLOGGED TABLE notes (
    kind TEXT COLLATE "C" NOT NULL,
    name TEXT COLLATE "C" NOT NULL,
    value BYTEA NOT NULL,
    told TIMESTAMPTZ NOT NULL,
    PRIMARY KEY (kind, name)
);
