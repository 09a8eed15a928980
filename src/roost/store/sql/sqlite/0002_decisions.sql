-- What was decided, by the key of what was asked for, and what the agent saw that decided it.

CREATE TABLE decisions (
    key TEXT PRIMARY KEY,
    outcome TEXT NOT NULL CHECK (outcome IN ('committed', 'declined')),
    decided REAL NOT NULL,     -- seconds since 1970
    request TEXT NOT NULL,     -- JSON
    record TEXT NOT NULL,      -- JSON: how it came about
    placed TEXT NOT NULL       -- JSON
) WITHOUT ROWID;

CREATE INDEX decisions_by_time ON decisions (decided);

CREATE TABLE rounds (
    agent TEXT NOT NULL,
    number INTEGER NOT NULL,
    revision INTEGER NOT NULL, -- of the feed, as the agent had followed it
    seen TEXT NOT NULL,        -- JSON
    PRIMARY KEY (agent, number)
) WITHOUT ROWID;
