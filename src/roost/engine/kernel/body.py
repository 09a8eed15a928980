"""The part of a kernel that asks rules. Not imported: `compiler` puts the rules' own code above it.

The generated part takes over all that kernels share (see `journal`) and defines, from the rules of one policy:

    machine_failure(machine, vm, m, columns, slots, data)  the first validator that says no, -1 for none
    machine_score(machine, vm, m, columns, slots, data)    packed buckets of its preferences, or beyond INVALID: a fault
    machine_detail(machine, vm, rule)                which word completes that validator's reason; cluster_detail alike
    recheck_failure(machine, vm, numbers)            the first validator marked for re-check that says no, -1 for none
    rack_bits(rack, vm, data)                        buckets of the rack preferences, in their place in the key
    cluster_key(cluster, vm, data), cluster_failure(cluster, vm, data)
    column_value(j, machine, cluster, vm, m, columns, slots, data)  derived column j
    tenant_failure(m, machine, tenant, counts, racks_at, clusters_at, datacenters_at, updates_at, data)
    TENANT_DOMAINS                                   the domain of each tenant rule, as in `codes`

`data` is what rules are given besides rows: the numbers of the policy, then the side tables.
"""

from math import ceil  # noqa: F401  used by the generated part

import numpy as np

from roost.engine.kernel.codes import BITS, CLUSTER_FAULT, INVALID, LOW, ONE, SEEN, TIES, ZERO
from roost.engine.kernel.prefetch import prefetch

# --------------------------------------------------------------------------------------------------------------- commit


@entry
def admit(machines, m, vm, plain, numbers):
    """At commit: let a machine hold a VM if every re-checked validator agrees; else the number of one that does not.

    `plain`: the same row without the policy's own traits.
    """
    failure = recheck_failure(machines[m], vm[0], numbers)
    if failure < 0:
        hold(machines[m], plain[0], ONE)
    return failure


# -------------------------------------------------------------------------------------------------- bringing up to date


@inside
def machine_key(machine, vm, m, columns, slots, data):
    """A machine's key: INVALID if a validator says no."""
    if machine_failure(machine, vm, m, columns, slots, data) >= 0:
        return INVALID
    return machine_score(machine, vm, m, columns, slots, data)


@inside
def refresh_columns(c, machines, clusters, links, journal, vm, columns, column_seen, slots, tally, data):
    """Bring the derived columns up to date for cluster c, each after those it needs."""
    revision = journal[1 + clusters.shape[0] + c]
    for j in range(slots.shape[0]):
        slot = slots[j]
        seen = column_seen[slot, c]
        if seen == revision:
            continue
        if seen < 0:
            first = clusters[c].first
            for m in range(first, first + clusters[c].machines):
                columns[slot, m] = column_value(j, machines[m], clusters[c], vm, m, columns, slots, data)
            tally[1, j] += clusters[c].machines
        else:
            m = journal[1 + c]
            while m >= 0 and links[m].revision > seen:
                columns[slot, m] = column_value(j, machines[m], clusters[c], vm, m, columns, slots, data)
                tally[0, j] += 1
                m = links[m].older
        column_seen[slot, c] = revision


@asked
def refresh_cluster(
    c, machines, racks, clusters, links, journal, vm, keys, rack_sums, cluster_sums,
    columns, column_seen, slots, tally, data
):  # fmt: skip
    """Bring cluster c of an evaluation up to date: only machines that changed since, all of them the first time.

    Returns how many machines were looked at, and the fault of a rule if one gave a score outside 0 to 1.
    """
    revision = journal[1 + clusters.shape[0] + c]
    seen = cluster_sums[c, SEEN]
    if seen == revision:
        return 0, 0
    if slots.shape[0] > 0:
        refresh_columns(c, machines, clusters, links, journal, vm, columns, column_seen, slots, tally, data)
    updated, fault = 0, 0
    if seen < 0:
        first_rack = clusters[c].first_rack
        for r in range(first_rack, first_rack + clusters[c].racks):
            first = racks[r].first
            for m in range(first, first + racks[r].machines):
                key = machine_key(machines[m], vm, m, columns, slots, data)
                if key > INVALID:
                    fault, key = key - INVALID, INVALID
                keys[m] = key
                updated += 1
            scan_rack(r, racks, keys, rack_sums)
            rack_sums[r, BITS] = rack_bits(racks[r], vm, data)
            if rack_sums[r, BITS] > INVALID:
                fault = rack_sums[r, BITS] - INVALID
        scan_cluster(c, clusters, rack_sums, cluster_sums)
    else:
        m = journal[1 + c]
        while m >= 0 and links[m].revision > seen:  # the chain is quick to walk; the rows it leads to are not at hand
            prefetch(machines, m, 0)
            prefetch(machines, m, 64)
            prefetch(keys, m, 0)
            prefetch(racks, links[m].rack, 0)
            prefetch(rack_sums, links[m].rack, 0)
            m = links[m].older
        m = journal[1 + c]
        while m >= 0 and links[m].revision > seen:
            key = machine_key(machines[m], vm, m, columns, slots, data)
            if key > INVALID:
                fault, key = key - INVALID, INVALID
            r = np.int64(machines[m].rack)
            old, old_ties = rack_sums[r, LOW] | rack_sums[r, BITS], rack_sums[r, TIES]
            change_key(m, key, machines, racks, keys, rack_sums)
            rack_sums[r, BITS] = rack_bits(racks[r], vm, data)
            if rack_sums[r, BITS] > INVALID:
                fault = rack_sums[r, BITS] - INVALID
            follow_rack(r, c, old, old_ties, clusters, rack_sums, cluster_sums)
            updated += 1
            m = links[m].older
    cluster_sums[c, SEEN] = revision
    return updated, fault


@entry
def refresh_known_clusters(
    machines, racks, clusters, links, journal, vm_row, keys, rack_sums, cluster_sums,
    columns, column_seen, slots, tally, data
):  # fmt: skip
    """Bring up to date every cluster of an evaluation that was ever asked for."""
    updated, fault = 0, 0
    for c in range(clusters.shape[0]):
        if cluster_sums[c, SEEN] >= 0:
            looked, wrong = refresh_cluster(
                c, machines, racks, clusters, links, journal, vm_row[0], keys, rack_sums, cluster_sums,
                columns, column_seen, slots, tally, data
            )  # fmt: skip
            updated += looked
            fault = max(fault, wrong)
    return updated, fault


# -------------------------------------------------------------------------------------------------------------- tenants


@inside
def tenant_verdict(m, machines, racks, clusters, tenant, counts, data):
    """The first tenant rule that refuses machine m, -1 for none."""
    racks_at, clusters_at = machines.shape[0], machines.shape[0] + racks.shape[0]
    datacenters_at, updates_at = clusters_at + clusters.shape[0], clusters_at + 2 * clusters.shape[0]
    return tenant_failure(m, machines[m], tenant[0], counts, racks_at, clusters_at, datacenters_at, updates_at, data)


@asked
def tenant_refusal(m, machines, racks, clusters, tenant, counts, data):
    """The domain of the first tenant rule that refuses machine m, -1 for none."""
    rule = tenant_verdict(m, machines, racks, clusters, tenant, counts, data)
    return np.int64(TENANT_DOMAINS[rule]) if rule >= 0 else -ONE


# ----------------------------------------------------------------------------------------------------------- explaining


@inside
def judge_machine(m, failed, bits, machines, racks, clusters, vm, columns, slots, data, tenant, counts, constrained):
    """A machine's verdict, which word completes its reason, its full key, and a rule's fault or 0; see `judge`.

    `failed`: the cluster validator that says no, -1 for none; `bits`: of the rack's preferences.
    """
    if failed >= 0:
        detail = np.int64(cluster_detail(clusters[machines[m].cluster], vm, failed))
        return np.int64(failed), detail, INVALID, ZERO
    verdict = np.int64(machine_failure(machines[m], vm, m, columns, slots, data))
    if verdict >= 0:
        return CLUSTER_VALIDATORS + verdict, np.int64(machine_detail(machines[m], vm, verdict)), INVALID, ZERO
    key = np.int64(machine_score(machines[m], vm, m, columns, slots, data))
    if key > INVALID:
        return -ONE, ZERO, INVALID, key - INVALID
    if constrained:
        verdict = np.int64(tenant_verdict(m, machines, racks, clusters, tenant, counts, data))
        if verdict >= 0:
            return CLUSTER_VALIDATORS + VALIDATORS + verdict, ZERO, key | bits, ZERO
    return -ONE, ZERO, key | bits, ZERO


@asked
def judge_one(
    m, machines, racks, clusters, links, journal, vm, columns, column_seen, slots, tally, data,
    tenant, counts, constrained
):  # fmt: skip
    """The same for one machine by itself, whose derived columns and rack may not be up to date."""
    c = np.int64(machines[m].cluster)
    refresh_columns(c, machines, clusters, links, journal, vm, columns, column_seen, slots, tally, data)
    failed, bits = cluster_failure(clusters[c], vm, data), rack_bits(racks[machines[m].rack], vm, data)
    verdict, detail, key, wrong = judge_machine(
        m, failed, bits, machines, racks, clusters, vm, columns, slots, data, tenant, counts, constrained
    )
    return verdict, detail, key, np.int64(max(wrong, bits - INVALID))


@entry
def judge(
    machines, racks, clusters, links, journal, vm_row, columns, column_seen, slots, tally, data,
    tenant, counts, constrained, cluster_keys, verdicts, details, full_keys
):  # fmt: skip
    """Every cluster's key and every machine's verdict and full key, from scratch: no evaluation, no cluster selection.

    A verdict is the number of the first rule that says no: cluster validators from 0, then machine validators, then
    tenant rules; -1 for a valid machine. Returns the fault of a rule, or 0.
    """
    vm, fault = vm_row[0], 0
    for c in range(clusters.shape[0]):
        refresh_columns(c, machines, clusters, links, journal, vm, columns, column_seen, slots, tally, data)
        failed = cluster_failure(clusters[c], vm, data)
        cluster_keys[c] = cluster_key(clusters[c], vm, data)
        if cluster_keys[c] > INVALID:
            fault = cluster_keys[c] - INVALID + CLUSTER_FAULT
        first_rack = clusters[c].first_rack
        for r in range(first_rack, first_rack + clusters[c].racks):
            bits = rack_bits(racks[r], vm, data)
            if bits > INVALID:
                fault = bits - INVALID
            for m in range(racks[r].first, racks[r].first + racks[r].machines):
                verdicts[m], details[m], full_keys[m], wrong = judge_machine(
                    m, failed, bits, machines, racks, clusters, vm, columns, slots, data, tenant, counts, constrained
                )
                fault = max(fault, wrong)
    return fault
