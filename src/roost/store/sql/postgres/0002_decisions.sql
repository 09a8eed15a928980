-- What was decided, by the key of what was asked for, and what the agent saw that decided it.

CREATE TABLE decisions (
    key TEXT COLLATE "C" PRIMARY KEY,
    outcome TEXT NOT NULL CHECK (outcome IN ('committed', 'declined')),
    decided DOUBLE PRECISION NOT NULL, -- seconds since 1970
    request TEXT NOT NULL,     -- JSON
    record TEXT NOT NULL,      -- JSON: how it came about
    placed TEXT NOT NULL       -- JSON
);

CREATE INDEX decisions_by_time ON decisions USING brin (decided);

CREATE TABLE rounds (
    agent TEXT NOT NULL,
    number BIGINT NOT NULL,
    revision BIGINT NOT NULL,  -- of the feed, as the agent had followed it
    seen TEXT NOT NULL,        -- JSON
    PRIMARY KEY (agent, number)
);
