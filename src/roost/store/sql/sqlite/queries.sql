-- name: make_zone
-- Begin a store with a zone that has no machines yet.
INSERT INTO zone (catalogue, last, trimmed) VALUES (?, 0, 0)

-- name: catalogue
-- What the zone is.
SELECT catalogue FROM zone

-- name: head
-- How far the feed goes, and where it begins.
SELECT last, trimmed FROM zone

-- name: last_and_limits
-- How far the feed goes, and the entries of the registry of some kinds (JSON), as JSON.
SELECT last, (
    SELECT json_group_array(json_array(kind, name, value)) FROM registry WHERE kind IN (SELECT value FROM json_each(?))
) FROM zone

-- name: advance
-- The feed has grown.
UPDATE zone SET last = ?

-- name: set_trimmed
-- The feed begins later.
UPDATE zone SET trimmed = ?

-- name: machines
-- The machines of a list of names (JSON).
SELECT spec, used, classes, vms, owner, state, health, failures, versions_behind, version
FROM machines WHERE name IN (SELECT value FROM json_each(?))

-- name: slice_after_machines
-- The machine that begins the slice after the one that begins with a name, if there is one.
SELECT name FROM machines WHERE name >= ? ORDER BY name LIMIT 1 OFFSET ?

-- name: slice_of_machines
-- The machines from one name up to another, a column a list in JSON.
SELECT
    coalesce('[' || group_concat(spec) || ']', '[]'),
    coalesce('[' || group_concat(used) || ']', '[]'), coalesce('[' || group_concat(classes) || ']', '[]'),
    json_group_array(vms), json_group_array(owner), json_group_array(state), json_group_array(health),
    json_group_array(failures), json_group_array(versions_behind), json_group_array(version)
FROM machines WHERE name >= ? AND name < ?

-- name: amounts
-- What the database itself compares, for every machine.
SELECT name, used_0, used_1, used_2, used_3, used_4, used_5, used_6, used_7, capacity_0, capacity_1, capacity_2, capacity_3, capacity_4, capacity_5, capacity_6, capacity_7 FROM machines

-- name: counted
-- What sums at the commit count, for every machine.
SELECT name, cluster, is_empty FROM machines

-- name: add_machine
-- A new machine.
INSERT INTO machines (
    capacity_0, capacity_1, capacity_2, capacity_3, capacity_4, capacity_5, capacity_6, capacity_7, used_0, used_1, used_2, used_3, used_4, used_5, used_6, used_7, 
    used, classes, vms, owner, state, health, failures, versions_behind, version, is_empty, spec, cluster, name
) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: set_machine
-- A machine holds something else, or is in another condition.
UPDATE machines SET
    used_0 = ?, used_1 = ?, used_2 = ?, used_3 = ?, used_4 = ?, used_5 = ?, used_6 = ?, used_7 = ?, 
    used = ?, classes = ?, vms = ?, owner = ?, state = ?, health = ?, failures = ?, versions_behind = ?, version = ?,
    is_empty = ?
WHERE name = ?

-- name: remove_machine
-- A machine is no more.
DELETE FROM machines WHERE name = ?

-- name: all_clusters
-- Every cluster.
SELECT name, datacenter, generation, machines, quarantined FROM clusters

-- name: set_cluster
-- A cluster begins, has other machines, or is quarantined or not.
INSERT INTO clusters (name, datacenter, generation, machines, quarantined) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (name) DO UPDATE SET
    datacenter = excluded.datacenter, generation = excluded.generation,
    machines = excluded.machines, quarantined = excluded.quarantined

-- name: remove_cluster
-- A cluster is no more.
DELETE FROM clusters WHERE name = ?

-- name: tenants
-- The tenants of a list of names (JSON).
SELECT name, constraints, stamp, vms FROM tenants WHERE name IN (SELECT value FROM json_each(?))

-- name: slice_after_tenants
-- The tenant that begins the slice after the one that begins with a name, if there is one.
SELECT name FROM tenants WHERE name >= ? ORDER BY name LIMIT 1 OFFSET ?

-- name: slice_of_tenants
-- The tenants from one name up to another, a column a list in JSON.
SELECT json_group_array(name), json_group_array(constraints), json_group_array(stamp), json_group_array(vms)
FROM tenants WHERE name >= ? AND name < ?

-- name: list_tenants
-- Tenants with names between two, but not the one where the last page ended.
SELECT name, constraints, stamp, vms FROM tenants
WHERE name BETWEEN ? AND ? AND name <> ? ORDER BY name LIMIT ?

-- name: set_tenant
-- A tenant begins or has other VMs.
INSERT INTO tenants (name, constraints, stamp, vms) VALUES (?, ?, ?, ?)
ON CONFLICT (name) DO UPDATE SET constraints = excluded.constraints, stamp = excluded.stamp, vms = excluded.vms

-- name: remove_tenant
-- A tenant has no VMs any more.
DELETE FROM tenants WHERE name = ?

-- name: vms
-- The VMs of a list of names (JSON).
SELECT name, tenant, machine, spec, since FROM vms WHERE name IN (SELECT value FROM json_each(?))

-- name: slice_after_vms
-- The VM that begins the slice after the one that begins with a name, if there is one.
SELECT name FROM vms WHERE name >= ? ORDER BY name LIMIT 1 OFFSET ?

-- name: slice_of_vms
-- The VMs from one name up to another, a column a list in JSON. SQLite writes numbers with fifteen digits, and times have
-- more: they come as whole seconds, and what is beyond these as a multiple of 2^-62 seconds. Together they are exact, but
-- for times in the first millisecond of 1970.
SELECT
    json_group_array(name), json_group_array(tenant), json_group_array(machine), json_group_array(spec),
    json_group_array(CAST(since AS INTEGER)),
    json_group_array(CAST((since - CAST(since AS INTEGER)) * 4611686018427387904 AS INTEGER))
FROM vms WHERE name >= ? AND name < ?

-- name: list_vms
-- VMs after a name.
SELECT name, tenant, machine, spec, since FROM vms WHERE name > ? ORDER BY name LIMIT ?

-- name: list_vms_of_tenant
-- VMs of a tenant, after a name.
SELECT name, tenant, machine, spec, since FROM vms WHERE tenant = ? AND name > ? ORDER BY name LIMIT ?

-- name: list_vms_of_tenants
-- VMs of the tenants with names between two, after a name.
SELECT name, tenant, machine, spec, since FROM vms
WHERE tenant BETWEEN ? AND ? AND name > ? ORDER BY name LIMIT ?

-- name: list_vms_on_machine
-- VMs on a machine, of the tenants with names between two, after a name.
SELECT name, tenant, machine, spec, since FROM vms
WHERE machine = ? AND tenant BETWEEN ? AND ? AND name > ? ORDER BY name LIMIT ?

-- name: add_vm
-- A VM runs.
INSERT INTO vms (name, tenant, machine, spec, since) VALUES (?, ?, ?, ?, ?)

-- name: remove_vm
-- A VM runs no more.
DELETE FROM vms WHERE name = ?

-- name: registry
-- An entry of the registry.
SELECT kind, name, value FROM registry WHERE kind = ? AND name = ?

-- name: registry_of_kind
-- The entries of a kind.
SELECT name, value FROM registry WHERE kind = ? ORDER BY name

-- name: all_registry
-- The whole registry.
SELECT kind, name, value FROM registry

-- name: set_registry
-- An entry of the registry begins or has another value.
INSERT INTO registry (kind, name, value) VALUES (?, ?, ?)
ON CONFLICT (kind, name) DO UPDATE SET value = excluded.value

-- name: remove_registry
-- An entry of the registry is no more.
DELETE FROM registry WHERE kind = ? AND name = ?

-- name: append
-- The entries of a transaction join the feed.
INSERT INTO feed (first, last, agent, round, entries) VALUES (?, ?, ?, ?, ?)

-- name: changes
-- What follows a revision.
SELECT first, last, agent, round, entries FROM feed WHERE last > ? ORDER BY last LIMIT ?

-- name: trim_feed
-- Forget the feed up to a revision.
DELETE FROM feed WHERE last <= ?

-- name: trim_some_feed
-- Forget some of the feed up to a revision.
DELETE FROM feed WHERE last IN (SELECT last FROM feed WHERE last <= ? LIMIT ?)

-- name: trim_some_rounds
-- Forget some of what agents saw before the feed begins.
DELETE FROM rounds WHERE (agent, number) IN (SELECT agent, number FROM rounds WHERE revision < ? LIMIT ?)

-- name: trim_some_decisions
-- Forget some of the decisions that were committed up to a time of the store's clock.
DELETE FROM decisions WHERE key IN (SELECT key FROM decisions WHERE written <= ? LIMIT ?)

-- name: last_written
-- The time of the store's clock when it was last heard.
SELECT max(written) FROM decisions

-- name: trim_point
-- The last transaction that lies wholly within what may be forgotten.
SELECT max(last) FROM feed WHERE last <= ?

-- name: trim_rounds
-- What agents saw before the feed begins can no longer be rebuilt.
DELETE FROM rounds WHERE revision < ?

-- name: decisions
-- What came of the keys of a list (JSON).
SELECT key, outcome, request, record, placed FROM decisions WHERE key IN (SELECT value FROM json_each(?))

-- name: list_decisions
-- Decisions before a time and key, latest first, of the keys between two.
SELECT key, outcome, request, record, placed FROM decisions
WHERE (decided, key) < (?, ?) AND +key BETWEEN ? AND ? ORDER BY decided DESC, key DESC LIMIT ?

-- name: policy_results
-- Sums over what each policy decided since a time, and the time that 99 of 100 decisions did not exceed.
WITH made AS (
    SELECT outcome, json_array_length(placed) AS vms, json_extract(record, '$.policy') AS policy,
        coalesce(json_extract(record, '$.retries'), 0) AS retries,
        coalesce(json_extract(record, '$.decided_us'), 0) AS decided_us
    FROM decisions WHERE decided >= ?
), ranked AS (
    SELECT *, row_number() OVER (PARTITION BY policy ORDER BY decided_us) AS rank,
        count(*) OVER (PARTITION BY policy) AS requests
    FROM made WHERE policy <> ''
)
SELECT policy, count(*), count(*) FILTER (WHERE outcome = 'committed'), sum(vms), sum(retries), sum(decided_us),
    min(decided_us) FILTER (WHERE rank >= 0.99 * requests)
FROM ranked GROUP BY policy ORDER BY policy

-- name: decide
-- What came of a key; what was declined before may be decided anew.
INSERT INTO decisions (key, outcome, decided, request, record, placed, written) VALUES (?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (key) DO UPDATE SET
    outcome = excluded.outcome, decided = excluded.decided, record = excluded.record, placed = excluded.placed,
    written = excluded.written
WHERE decisions.outcome = 'declined'

-- name: add_round
-- What an agent saw.
INSERT OR REPLACE INTO rounds (agent, number, revision, seen) VALUES (?, ?, ?, ?)

-- name: try_writing
-- What nobody saw, of some size: whether there is room for more than a page.
INSERT OR REPLACE INTO rounds (agent, number, revision, seen) VALUES ('', -1, -1, zeroblob(?))

-- name: tried_writing
-- Nobody needs it.
DELETE FROM rounds WHERE agent = '' AND number = -1

-- name: round
-- What an agent saw.
SELECT seen FROM rounds WHERE agent = ? AND number = ?
