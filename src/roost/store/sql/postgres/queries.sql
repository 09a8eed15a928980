-- name: make_zone
-- Begin a store with a zone that has no machines yet.
INSERT INTO zone (catalogue, last, trimmed) VALUES (%s, 0, 0)

-- name: catalogue
-- What the zone is.
SELECT catalogue FROM zone

-- name: head
-- How far the feed goes, and where it begins.
SELECT last, trimmed FROM zone

-- name: advance
-- The feed has grown.
UPDATE zone SET last = %s

-- name: set_trimmed
-- The feed begins later.
UPDATE zone SET trimmed = %s

-- name: lock_zone
-- Number no changes meanwhile.
SELECT last, trimmed FROM zone FOR UPDATE

-- name: lock_tables
-- Nobody else writes anything meanwhile.
LOCK TABLE zone, machines, clusters, tenants, registry, vms, inbox IN EXCLUSIVE MODE

-- name: lock_machines
-- The machines of a list of names, locked in the order of their names.
SELECT spec, used, classes, vms, owner, state, health, failures, versions_behind, version
FROM machines WHERE name = ANY(%b) ORDER BY name FOR UPDATE

-- name: all_machines
-- Every machine.
SELECT spec, used, classes, vms, owner, state, health, failures, versions_behind, version
FROM machines

-- name: amounts
-- What the database itself compares, for every machine.
SELECT name, used_0, used_1, used_2, used_3, used_4, used_5, used_6, used_7, capacity_0, capacity_1, capacity_2, capacity_3, capacity_4, capacity_5, capacity_6, capacity_7 FROM machines

-- name: add_machines
-- New machines.
INSERT INTO machines (
    capacity_0, capacity_1, capacity_2, capacity_3, capacity_4, capacity_5, capacity_6, capacity_7, used_0, used_1, used_2, used_3, used_4, used_5, used_6, used_7,
    used, classes, vms, owner, state, health, failures, versions_behind, version, spec, name
) SELECT * FROM unnest(
    %b::int[], %b::int[], %b::int[], %b::int[], %b::int[], %b::int[], %b::int[], %b::int[], %b::int[], %b::int[], %b::int[], %b::int[], %b::int[], %b::int[], %b::int[], %b::int[],
    %b::text[], %b::text[], %b::int[], %b::text[], %b::int[], %b::int[], %b::int[], %b::int[], %b::bigint[], %b::text[], %b::text[]
)

-- name: set_machines
-- Machines hold something else, or are in another condition.
UPDATE machines AS m SET
    used_0 = d.used_0, used_1 = d.used_1, used_2 = d.used_2, used_3 = d.used_3, used_4 = d.used_4, used_5 = d.used_5, used_6 = d.used_6, used_7 = d.used_7,
    used = d.used, classes = d.classes, vms = d.vms, owner = d.owner, state = d.state, health = d.health, failures = d.failures, versions_behind = d.versions_behind, version = d.version
FROM unnest(
    %b::int[], %b::int[], %b::int[], %b::int[], %b::int[], %b::int[], %b::int[], %b::int[],
    %b::text[], %b::text[], %b::int[], %b::text[], %b::int[], %b::int[], %b::int[], %b::int[], %b::bigint[], %b::text[]
) AS d (used_0, used_1, used_2, used_3, used_4, used_5, used_6, used_7,
    used, classes, vms, owner, state, health, failures, versions_behind, version, name)
WHERE m.name = d.name

-- name: remove_machines
-- Machines are no more.
DELETE FROM machines WHERE name = ANY(%b)

-- name: lock_clusters
-- Whoever changes clusters, or the machines they have, does so alone.
LOCK TABLE clusters IN SHARE ROW EXCLUSIVE MODE

-- name: all_clusters
-- Every cluster.
SELECT name, datacenter, generation, machines, quarantined FROM clusters

-- name: set_clusters
-- Clusters begin, have other machines, or are quarantined or not.
INSERT INTO clusters (name, datacenter, generation, machines, quarantined)
SELECT * FROM unnest(%b::text[], %b::text[], %b::text[], %b::int[], %b::boolean[])
ON CONFLICT (name) DO UPDATE SET
    datacenter = excluded.datacenter, generation = excluded.generation,
    machines = excluded.machines, quarantined = excluded.quarantined

-- name: remove_clusters
-- Clusters are no more.
DELETE FROM clusters WHERE name = ANY(%b)

-- name: lock_tenants
-- The tenants of a list of names, locked in the order of their names.
SELECT name, constraints, stamp, vms FROM tenants WHERE name = ANY(%b) ORDER BY name FOR UPDATE

-- name: all_tenants
-- Every tenant.
SELECT name, constraints, stamp, vms FROM tenants

-- name: add_tenants
-- Tenants begin; two transactions cannot begin the same one.
INSERT INTO tenants (name, constraints, stamp, vms)
SELECT * FROM unnest(%b::text[], %b::text[], %b::bigint[], %b::int[])

-- name: set_tenants
-- Tenants have other VMs.
UPDATE tenants AS t SET constraints = d.constraints, stamp = d.stamp, vms = d.vms
FROM unnest(%b::text[], %b::text[], %b::bigint[], %b::int[]) AS d (name, constraints, stamp, vms)
WHERE t.name = d.name

-- name: remove_tenants
-- Tenants have no VMs any more.
DELETE FROM tenants WHERE name = ANY(%b)

-- name: vms
-- The VMs of a list of names.
SELECT name, tenant, machine, spec FROM vms WHERE name = ANY(%b)

-- name: all_vms
-- Every VM.
SELECT name, tenant, machine, spec FROM vms

-- name: add_vms
-- VMs run.
INSERT INTO vms (name, tenant, machine, spec)
SELECT * FROM unnest(%b::text[], %b::text[], %b::text[], %b::text[])

-- name: remove_vms
-- VMs run no more.
DELETE FROM vms WHERE name = ANY(%b)

-- name: lock_registry
-- Some entries of the registry, locked in their order.
SELECT kind, name, value FROM registry
WHERE (kind, name) IN (SELECT * FROM unnest(%b::text[], %b::text[])) ORDER BY kind, name FOR UPDATE

-- name: registry_of_kind
-- The entries of a kind.
SELECT name, value FROM registry WHERE kind = %s ORDER BY name

-- name: all_registry
-- The whole registry.
SELECT kind, name, value FROM registry

-- name: add_registry
-- Entries of the registry begin; two transactions cannot begin the same one.
INSERT INTO registry (kind, name, value)
SELECT * FROM unnest(%b::text[], %b::text[], %b::text[])

-- name: set_registry
-- Entries of the registry have other values.
UPDATE registry AS r SET value = d.value
FROM unnest(%b::text[], %b::text[], %b::text[]) AS d (kind, name, value)
WHERE r.kind = d.kind AND r.name = d.name

-- name: remove_registry
-- Entries of the registry are no more.
DELETE FROM registry WHERE (kind, name) IN (SELECT * FROM unnest(%b::text[], %b::text[]))

-- name: next_stamps
-- Stamps for the tenants of a transaction.
SELECT nextval('stamps')

-- name: append
-- The entries of a transaction wait for their revisions. Its number is drawn here, when it holds all its locks.
INSERT INTO inbox (agent, round, count, entries) VALUES (%s, %s, %s, %s)

-- name: inbox
-- Entries that are committed and not numbered yet.
SELECT entries FROM inbox ORDER BY number

-- name: number_changes
-- Give committed entries their revisions; if somebody is just doing that, leave it to them, or be patient.
SELECT number_changes(%s)

-- name: changes
-- What follows a revision.
SELECT first, last, agent, round, entries FROM feed WHERE last > %s ORDER BY last LIMIT %s

-- name: trim_feed
-- Forget the feed up to a revision.
DELETE FROM feed WHERE last <= %s

-- name: trim_point
-- The last transaction that lies wholly within what may be forgotten.
SELECT max(last) FROM feed WHERE last <= %s

-- name: trim_rounds
-- What agents saw before the feed begins can no longer be rebuilt.
DELETE FROM rounds WHERE revision < %s

-- name: trim_decisions
-- Forget decisions made before a time.
DELETE FROM decisions WHERE decided < %s

-- name: decisions
-- What came of the keys of a list.
SELECT key, outcome, request, record, placed FROM decisions WHERE key = ANY(%b)

-- name: latest_decisions
-- The latest decisions.
SELECT key, outcome, request, record, placed FROM decisions ORDER BY decided DESC LIMIT %s

-- name: reconsider
-- What was declined is decided anew.
DELETE FROM decisions WHERE key = ANY(%b) AND outcome = 'declined'

-- name: decide
-- What came of keys; two transactions cannot answer the same one.
INSERT INTO decisions (key, outcome, decided, request, record, placed)
SELECT * FROM unnest(%b::text[], %b::text[], %b::double precision[], %b::text[], %b::text[], %b::text[])

-- name: add_round
-- What an agent saw.
INSERT INTO rounds (agent, number, revision, seen) VALUES (%s, %s, %s, %s)
ON CONFLICT (agent, number) DO UPDATE SET revision = excluded.revision, seen = excluded.seen

-- name: round
-- What an agent saw.
SELECT seen FROM rounds WHERE agent = %s AND number = %s
