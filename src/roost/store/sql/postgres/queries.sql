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

-- name: try_writing
-- Take a number for a transaction that writes nothing: a server that follows another one has none to give.
SELECT txid_current()

-- name: lock_zone
-- Number no changes meanwhile.
SELECT last, trimmed FROM zone FOR UPDATE

-- name: lock_tables
-- Nobody else writes anything meanwhile.
LOCK TABLE zone, machines, clusters, tenants, registry, vms, inbox IN EXCLUSIVE MODE

-- name: machines
-- The machines of a list of names, in the order in which they are locked.
SELECT spec, used, classes, vms, owner, state, health, failures, versions_behind, version
FROM machines WHERE name = ANY(%b) ORDER BY name

-- name: blocks
-- How many blocks a table has.
SELECT pg_relation_size(%s) / current_setting('block_size')::bigint

-- name: slice_of_machines
-- The machines in some blocks, a column a list in JSON; nulls, if there are none.
SELECT
    '[' || string_agg(spec, ',') || ']', '[' || string_agg(used, ',') || ']', '[' || string_agg(classes, ',') || ']',
    json_agg(vms)::text, json_agg(owner)::text, json_agg(state)::text, json_agg(health)::text,
    json_agg(failures)::text, json_agg(versions_behind)::text, json_agg(version)::text
FROM machines WHERE ctid >= %s::tid AND ctid < %s::tid

-- name: amounts
-- What the database itself compares, for every machine.
SELECT name, used_0, used_1, used_2, used_3, used_4, used_5, used_6, used_7, capacity_0, capacity_1, capacity_2, capacity_3, capacity_4, capacity_5, capacity_6, capacity_7 FROM machines

-- name: counted
-- What sums at the commit count, for every machine.
SELECT name, cluster, is_empty FROM machines

-- name: add_machines
-- New machines.
INSERT INTO machines (
    capacity_0, capacity_1, capacity_2, capacity_3, capacity_4, capacity_5, capacity_6, capacity_7, used_0, used_1, used_2, used_3, used_4, used_5, used_6, used_7,
    used, classes, vms, owner, state, health, failures, versions_behind, version, is_empty, spec, cluster, name
) SELECT * FROM unnest(
    %b::int[], %b::int[], %b::int[], %b::int[], %b::int[], %b::int[], %b::int[], %b::int[], %b::int[], %b::int[], %b::int[], %b::int[], %b::int[], %b::int[], %b::int[], %b::int[],
    %b::text[], %b::text[], %b::int[], %b::text[], %b::int[], %b::int[], %b::int[], %b::int[], %b::bigint[], %b::boolean[],
    %b::text[], %b::text[], %b::text[]
)

-- name: set_machines
-- Machines hold something else, or are in another condition.
UPDATE machines AS m SET
    used_0 = d.used_0, used_1 = d.used_1, used_2 = d.used_2, used_3 = d.used_3, used_4 = d.used_4, used_5 = d.used_5, used_6 = d.used_6, used_7 = d.used_7,
    used = d.used, classes = d.classes, vms = d.vms, owner = d.owner, state = d.state, health = d.health, failures = d.failures, versions_behind = d.versions_behind, version = d.version,
    is_empty = d.is_empty
FROM unnest(
    %b::int[], %b::int[], %b::int[], %b::int[], %b::int[], %b::int[], %b::int[], %b::int[],
    %b::text[], %b::text[], %b::int[], %b::text[], %b::int[], %b::int[], %b::int[], %b::int[], %b::bigint[], %b::boolean[], %b::text[]
) AS d (used_0, used_1, used_2, used_3, used_4, used_5, used_6, used_7,
    used, classes, vms, owner, state, health, failures, versions_behind, version, is_empty, name)
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

-- name: tenants
-- The tenants of a list of names, in the order in which they are locked.
SELECT name, constraints, stamp, vms FROM tenants WHERE name = ANY(%b) ORDER BY name

-- name: slice_of_tenants
-- The tenants in some blocks, a column a list in JSON; nulls, if there are none.
SELECT json_agg(name)::text, json_agg(constraints)::text, json_agg(stamp)::text, json_agg(vms)::text
FROM tenants WHERE ctid >= %s::tid AND ctid < %s::tid

-- name: list_tenants
-- Tenants with names between two, but not the one where the last page ended.
SELECT name, constraints, stamp, vms FROM tenants
WHERE name BETWEEN %s AND %s AND name <> %s ORDER BY name LIMIT %s

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
SELECT name, tenant, machine, spec, since FROM vms WHERE name = ANY(%b)

-- name: slice_of_vms
-- The VMs in some blocks, a column a list in JSON; nulls, if there are none. Times are written exactly, so there is
-- nothing to be added to them.
SELECT
    json_agg(name)::text, json_agg(tenant)::text, json_agg(machine)::text, json_agg(spec)::text,
    json_agg(since)::text, '[0]'
FROM vms WHERE ctid >= %s::tid AND ctid < %s::tid

-- name: list_vms
-- VMs after a name.
SELECT name, tenant, machine, spec, since FROM vms WHERE name > %s ORDER BY name LIMIT %s

-- name: list_vms_of_tenant
-- VMs of a tenant, after a name.
SELECT name, tenant, machine, spec, since FROM vms WHERE tenant = %s AND name > %s ORDER BY name LIMIT %s

-- name: list_vms_of_tenants
-- VMs of the tenants with names between two, after a name.
SELECT name, tenant, machine, spec, since FROM vms
WHERE tenant BETWEEN %s AND %s AND name > %s ORDER BY name LIMIT %s

-- name: list_vms_on_machine
-- VMs on a machine, of the tenants with names between two, after a name.
SELECT name, tenant, machine, spec, since FROM vms
WHERE machine = %s AND tenant BETWEEN %s AND %s AND name > %s ORDER BY name LIMIT %s

-- name: add_vms
-- VMs run.
INSERT INTO vms (name, tenant, machine, spec, since)
SELECT * FROM unnest(%b::text[], %b::text[], %b::text[], %b::text[], %b::double precision[])

-- name: remove_vms
-- VMs run no more.
DELETE FROM vms WHERE name = ANY(%b)

-- name: registry
-- Some entries of the registry, in the order in which they are locked.
SELECT kind, name, value FROM registry
WHERE (kind, name) IN (SELECT * FROM unnest(%b::text[], %b::text[])) ORDER BY kind, name

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
-- Stamps for the tenants of a transaction, and the entries of the registry of some kinds, as JSON: both in one go.
SELECT nextval('stamps'), (
    SELECT json_agg(json_build_array(kind, name, value))::text FROM registry WHERE kind = ANY(%b)
)

-- name: coming_stamps
-- The same, with the stamps that the next transaction will get, if it is the next.
SELECT last_value + CASE WHEN is_called THEN 1024 ELSE 0 END, (
    SELECT json_agg(json_build_array(kind, name, value))::text FROM registry WHERE kind = ANY(%b)
) FROM stamps

-- name: lock_scopes
-- Whoever holds the lock of a scope is the only one to take from it. Locks are known by number, and taken in that order.
SELECT pg_advisory_xact_lock(number) FROM unnest(%b::bigint[]) AS number

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

-- name: trim_some_feed
-- Forget some of the feed up to a revision.
DELETE FROM feed WHERE last IN (SELECT last FROM feed WHERE last <= %s LIMIT %s)

-- name: trim_some_rounds
-- Forget some of what agents saw before the feed begins.
DELETE FROM rounds WHERE (agent, number) IN (SELECT agent, number FROM rounds WHERE revision < %s LIMIT %s)

-- name: trim_some_decisions
-- Forget some of the decisions that were committed so many seconds ago.
DELETE FROM decisions WHERE key IN (
    SELECT key FROM decisions WHERE written <= extract(epoch FROM now())::double precision - %s::double precision LIMIT %s
)

-- name: trim_point
-- The last transaction that lies wholly within what may be forgotten.
SELECT max(last) FROM feed WHERE last <= %s

-- name: trim_rounds
-- What agents saw before the feed begins can no longer be rebuilt.
DELETE FROM rounds WHERE revision < %s

-- name: decisions
-- What came of the keys of a list.
SELECT key, outcome, request, record, placed FROM decisions WHERE key = ANY(%b)

-- name: list_decisions
-- Decisions before a time and key, latest first, of the keys between two.
SELECT key, outcome, request, record, placed FROM decisions
WHERE (decided, key) < (%s, %s) AND key BETWEEN %s AND %s ORDER BY decided DESC, key DESC LIMIT %s

-- name: policy_results
-- Sums over what each policy decided since a time, and the time that 99 of 100 decisions did not exceed.
SELECT how.policy, count(*), count(*) FILTER (WHERE outcome = 'committed'), sum(json_array_length(placed::json)),
    coalesce(sum(how.retries), 0)::bigint, coalesce(sum(how.decided_us), 0)::bigint,
    percentile_disc(0.99) WITHIN GROUP (ORDER BY coalesce(how.decided_us, 0))
FROM decisions, json_to_record(record::json) AS how (policy TEXT, retries BIGINT, decided_us BIGINT)
WHERE decided >= %s AND how.policy <> ''
GROUP BY how.policy ORDER BY how.policy COLLATE "C"

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

-- name: exchange
-- Tell something, forget what is too old, and hear what others told, all in one trip; ages by the server's own clock.
WITH own AS (
    INSERT INTO notes (kind, name, value, told) VALUES (%(kind)s, %(name)s, %(value)b, clock_timestamp())
    ON CONFLICT (kind, name) DO UPDATE SET value = excluded.value, told = excluded.told
), forgotten AS (
    DELETE FROM notes WHERE (kind, name) IN (
        SELECT kind, name FROM notes WHERE kind = %(kind)s AND name <> %(name)s
            AND told < clock_timestamp() - %(keep)s * interval '1 second'
        ORDER BY name FOR UPDATE SKIP LOCKED
    )
)
SELECT name, value, extract(epoch FROM clock_timestamp() - told)::double precision FROM notes
WHERE kind = %(kind)s AND name <> %(name)s AND told >= clock_timestamp() - %(keep)s * interval '1 second'
