-- The zone: what it is, its machines, who runs what where, and the feed of all that changed.

CREATE TABLE zone (
    catalogue TEXT NOT NULL,   -- JSON: resources, bands, generations, VM types, …
    last BIGINT NOT NULL,      -- revision of the last entry of the feed
    trimmed BIGINT NOT NULL    -- revision of the last entry that was trimmed away
);

-- The amounts stand in columns of their own, so that the database itself refuses a machine over its capacity.
CREATE TABLE machines (
    name TEXT COLLATE "C" PRIMARY KEY,
    spec TEXT NOT NULL,        -- JSON: where it stands and what it is
    capacity_0 INTEGER NOT NULL DEFAULT 0,
    capacity_1 INTEGER NOT NULL DEFAULT 0,
    capacity_2 INTEGER NOT NULL DEFAULT 0,
    capacity_3 INTEGER NOT NULL DEFAULT 0,
    capacity_4 INTEGER NOT NULL DEFAULT 0,
    capacity_5 INTEGER NOT NULL DEFAULT 0,
    capacity_6 INTEGER NOT NULL DEFAULT 0,
    capacity_7 INTEGER NOT NULL DEFAULT 0,
    used_0 INTEGER NOT NULL DEFAULT 0 CHECK (used_0 >= 0 AND used_0 <= capacity_0),
    used_1 INTEGER NOT NULL DEFAULT 0 CHECK (used_1 >= 0 AND used_1 <= capacity_1),
    used_2 INTEGER NOT NULL DEFAULT 0 CHECK (used_2 >= 0 AND used_2 <= capacity_2),
    used_3 INTEGER NOT NULL DEFAULT 0 CHECK (used_3 >= 0 AND used_3 <= capacity_3),
    used_4 INTEGER NOT NULL DEFAULT 0 CHECK (used_4 >= 0 AND used_4 <= capacity_4),
    used_5 INTEGER NOT NULL DEFAULT 0 CHECK (used_5 >= 0 AND used_5 <= capacity_5),
    used_6 INTEGER NOT NULL DEFAULT 0 CHECK (used_6 >= 0 AND used_6 <= capacity_6),
    used_7 INTEGER NOT NULL DEFAULT 0 CHECK (used_7 >= 0 AND used_7 <= capacity_7),
    used TEXT NOT NULL,        -- JSON: by band, then resource
    classes TEXT NOT NULL,     -- JSON: VMs of each anti-colocation class
    vms INTEGER NOT NULL CHECK (vms >= 0),
    owner TEXT NOT NULL,       -- the tenant that holds it in isolation
    state INTEGER NOT NULL CHECK (state BETWEEN 0 AND 3),
    health INTEGER NOT NULL CHECK (health BETWEEN 0 AND 100),
    failures INTEGER NOT NULL CHECK (failures >= 0),
    versions_behind INTEGER NOT NULL CHECK (versions_behind >= 0),
    version BIGINT NOT NULL
);

CREATE TABLE clusters (
    name TEXT COLLATE "C" PRIMARY KEY,
    datacenter TEXT NOT NULL,
    generation TEXT NOT NULL,
    machines INTEGER NOT NULL CHECK (machines > 0),
    quarantined BOOLEAN NOT NULL
);

CREATE TABLE tenants (
    name TEXT COLLATE "C" PRIMARY KEY,
    constraints TEXT NOT NULL, -- JSON
    stamp BIGINT NOT NULL,     -- another one after every change
    vms INTEGER NOT NULL CHECK (vms > 0)
);

CREATE TABLE vms (
    name TEXT COLLATE "C" PRIMARY KEY,
    tenant TEXT NOT NULL,
    machine TEXT NOT NULL,
    spec TEXT NOT NULL         -- JSON: what was asked for
);

-- One row for each transaction; its entries have the revisions first to last.
CREATE TABLE feed (
    last BIGINT PRIMARY KEY,
    first BIGINT NOT NULL CHECK (first <= last),
    agent TEXT NOT NULL,
    round BIGINT NOT NULL,
    entries TEXT NOT NULL      -- JSON
);

-- Where transactions leave their entries. Numbers are handed out while a transaction holds its locks, but transactions
-- end in any order: a follower that went by these numbers would skip those that end late. So entries get their
-- revisions only here after they are committed, by whoever asks for changes first, one at a time.
CREATE TABLE inbox (
    number BIGINT PRIMARY KEY,
    agent TEXT NOT NULL,
    round BIGINT NOT NULL,
    count INTEGER NOT NULL CHECK (count > 0),
    entries TEXT NOT NULL      -- JSON
);

-- Also the stamps of tenants: a transaction has as many as it may have proposals.
CREATE SEQUENCE numbers INCREMENT BY 1024 START WITH 1024;

CREATE FUNCTION number_changes() RETURNS BIGINT LANGUAGE plpgsql AS $$
DECLARE
    head BIGINT;
    total BIGINT;
BEGIN
    PERFORM FROM inbox LIMIT 1;
    IF NOT FOUND THEN
        RETURN 0;
    END IF;
    -- Whoever holds this row is numbering; what it leaves is for the next one.
    SELECT last INTO head FROM zone FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN 0;
    END IF;
    -- A new statement, so it sees all that was committed before the lock was taken. Ordered by number, an entry
    -- follows those it rests on: they were committed, and so can be seen, before it could even get its number.
    WITH moved AS (
        DELETE FROM inbox RETURNING *
    ), numbered AS (
        SELECT *, head + sum(count) OVER (ORDER BY number) AS upto FROM moved
    ), appended AS (
        INSERT INTO feed (first, last, agent, round, entries)
        SELECT upto - count + 1, upto, agent, round, entries FROM numbered ORDER BY upto
        RETURNING last
    )
    SELECT max(last) - head INTO total FROM appended;
    IF total IS NULL THEN
        RETURN 0;
    END IF;
    UPDATE zone SET last = head + total;
    PERFORM pg_notify('roost_changes', '');
    RETURN total;
END
$$;
