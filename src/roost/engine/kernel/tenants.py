"""The part of a kernel that knows where a tenant's VMs are, and masks what its rules refuse.

Not imported: see `journal`.
"""

import numpy as np

from roost.engine.kernel.codes import BITS, CLUSTER, DATACENTER, INVALID, LOW, MACHINE, RACK, TIES, UPDATE_DOMAIN, ZERO
from roost.engine.kernel.native import entry, inside

UNDO_KEY, UNDO_RACK, UNDO_BITS, UNDO_CLUSTER = np.int64(0), np.int64(1), np.int64(2), np.int64(3)


@entry
def seat(machines, racks, clusters, tenant, counts, homes, new):
    """Count more VMs of the tenant, on the machines `new`, and sum up where all of its VMs are."""
    racks_at, clusters_at = machines.shape[0], machines.shape[0] + racks.shape[0]
    datacenters_at, updates_at = clusters_at + clusters.shape[0], clusters_at + 2 * clusters.shape[0]
    t = tenant[0]
    for i in range(new.shape[0]):
        m = new[i]
        homes[t.placed] = m
        t.placed += 1
        counts[m] += 1
        counts[racks_at + machines[m].rack] += 1
        counts[clusters_at + machines[m].cluster] += 1
        counts[datacenters_at + machines[m].datacenter] += 1
        counts[updates_at + machines[m].update_domain] += 1
    t.least_in_rack = t.least_in_update_domain = t.placed
    t.most_in_rack = t.most_in_update_domain = 0
    distinct_racks, distinct_updates = 0.0, 0.0
    for i in range(t.placed):
        in_rack = counts[racks_at + machines[homes[i]].rack]
        in_update = counts[updates_at + machines[homes[i]].update_domain]
        t.least_in_rack, t.most_in_rack = min(t.least_in_rack, in_rack), max(t.most_in_rack, in_rack)
        t.least_in_update_domain = min(t.least_in_update_domain, in_update)
        t.most_in_update_domain = max(t.most_in_update_domain, in_update)
        distinct_racks += 1.0 / in_rack
        distinct_updates += 1.0 / in_update
    t.racks, t.update_domains = round(distinct_racks), round(distinct_updates)


@entry
def leave(machines, racks, clusters, tenant, counts, homes):
    """Forget where the tenant's VMs are, so that the counts are zero for the next one."""
    clusters_at = machines.shape[0] + racks.shape[0]
    datacenters_at, updates_at = clusters_at + clusters.shape[0], clusters_at + 2 * clusters.shape[0]
    for i in range(tenant[0].placed):
        m = homes[i]
        counts[m] = 0
        counts[machines.shape[0] + machines[m].rack] = 0
        counts[clusters_at + machines[m].cluster] = 0
        counts[datacenters_at + machines[m].datacenter] = 0
        counts[updates_at + machines[m].update_domain] = 0
    tenant[0].placed = tenant[0].racks = tenant[0].update_domains = 0
    tenant[0].least_in_rack = tenant[0].most_in_rack = 0
    tenant[0].least_in_update_domain = tenant[0].most_in_update_domain = 0


@inside
def mask(m, domain, machines, racks, clusters, keys, rack_sums, cluster_sums, counts, undo, undone):
    """Take out of an evaluation, for one pick, all that a tenant rule's refusal of machine m proves refused.

    The verdict depends on the machine only through how many of the tenant's VMs are in its unit of the rule's domain.
    So it holds for the whole unit; and where that count is zero, for every unit that has none of the tenant's VMs.
    """
    r, c = np.int64(machines[m].rack), np.int64(machines[m].cluster)
    racks_at, clusters_at = machines.shape[0], machines.shape[0] + racks.shape[0]
    in_rack, in_cluster = counts[racks_at + r], counts[clusters_at + c]
    if domain == UPDATE_DOMAIN:  # crosses all racks: nothing larger than the machine is inside one
        extent = MACHINE
    elif domain in (DATACENTER, CLUSTER):
        extent = CLUSTER
    else:
        here = counts[m] if domain == MACHINE else in_rack
        if here == 0 and in_cluster == 0:
            extent = CLUSTER
        elif here == 0 and in_rack == 0:
            extent = RACK
        else:
            extent = domain
    if extent == CLUSTER:
        undone = remember(undo, undone, UNDO_CLUSTER, c, cluster_sums[c, LOW], cluster_sums[c, TIES])
        cluster_sums[c, LOW], cluster_sums[c, TIES] = INVALID, 0
        return undone
    old, old_ties = rack_sums[r, LOW] | rack_sums[r, BITS], rack_sums[r, TIES]
    if extent == RACK:
        undone = remember(undo, undone, UNDO_BITS, r, rack_sums[r, BITS], ZERO)
        rack_sums[r, BITS] = INVALID
    else:
        undone = remember(undo, undone, UNDO_RACK, r, rack_sums[r, LOW], rack_sums[r, TIES])
        undone = remember(undo, undone, UNDO_KEY, m, keys[m], ZERO)
        change_key(m, INVALID, machines, racks, keys, rack_sums)
    undone = remember(undo, undone, UNDO_CLUSTER, c, cluster_sums[c, LOW], cluster_sums[c, TIES])
    follow_rack(r, c, old, old_ties, clusters, rack_sums, cluster_sums)
    return undone


@inside
def remember(undo, undone, kind, index, a, b):
    """Note what a mask changes."""
    undo[undone, 0], undo[undone, 1], undo[undone, 2], undo[undone, 3] = kind, index, a, b
    return undone + 1


@inside
def unmask(keys, rack_sums, cluster_sums, undo, undone):
    """Put an evaluation back exactly as it was before any mask."""
    while undone > 0:
        undone -= 1
        kind, index = undo[undone, 0], undo[undone, 1]
        if kind == UNDO_KEY:
            keys[index] = undo[undone, 2]
        elif kind == UNDO_RACK:
            rack_sums[index, LOW], rack_sums[index, TIES] = undo[undone, 2], undo[undone, 3]
        elif kind == UNDO_BITS:
            rack_sums[index, BITS] = undo[undone, 2]
        else:
            cluster_sums[index, LOW], cluster_sums[index, TIES] = undo[undone, 2], undo[undone, 3]
