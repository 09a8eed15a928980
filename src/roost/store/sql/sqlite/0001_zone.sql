-- The zone: what it is, its machines, who runs what where, and the feed of all that changed.

CREATE TABLE zone (
    catalogue TEXT NOT NULL,   -- JSON: resources, bands, generations, VM types, …
    last INTEGER NOT NULL,     -- revision of the last entry of the feed
    trimmed INTEGER NOT NULL   -- revision of the last entry that was trimmed away
);

-- The amounts stand in columns of their own, so that the database itself refuses a machine over its capacity.
CREATE TABLE machines (
    name TEXT PRIMARY KEY,
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
    version INTEGER NOT NULL
) WITHOUT ROWID;

CREATE TABLE clusters (
    name TEXT PRIMARY KEY,
    datacenter TEXT NOT NULL,
    generation TEXT NOT NULL,
    machines INTEGER NOT NULL CHECK (machines > 0),
    quarantined INTEGER NOT NULL CHECK (quarantined IN (0, 1))
) WITHOUT ROWID;

CREATE TABLE tenants (
    name TEXT PRIMARY KEY,
    constraints TEXT NOT NULL, -- JSON
    stamp INTEGER NOT NULL,    -- another one after every change
    vms INTEGER NOT NULL CHECK (vms > 0)
) WITHOUT ROWID;

CREATE TABLE vms (
    name TEXT PRIMARY KEY,
    tenant TEXT NOT NULL,
    machine TEXT NOT NULL,
    spec TEXT NOT NULL         -- JSON: what was asked for
) WITHOUT ROWID;

-- One row for each transaction; its entries have the revisions first to last.
CREATE TABLE feed (
    last INTEGER PRIMARY KEY,
    first INTEGER NOT NULL CHECK (first <= last),
    agent TEXT NOT NULL,
    round INTEGER NOT NULL,
    entries TEXT NOT NULL      -- JSON
);
