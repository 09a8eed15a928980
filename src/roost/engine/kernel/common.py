"""The part of a kernel that asks no rule itself. Not imported: `compiler` makes a module of it for each shape of zones.

All policies for zones of the same shape share it, compiled once. Where a choice depends on a policy, it is given
`rules`: the addresses of that policy's compiled functions (see `asking`), and the data they are given; and calls

    ask_cluster_key(addresses, …)               a cluster's packed buckets, INVALID, or beyond: a fault
    ask_refresh_cluster(addresses, c, …)        brings a cluster of an evaluation up to date
    ask_tenant_refusal(addresses, m, …)         the domain of the first tenant rule that refuses machine m, -1 for none
    ask_judge_one(addresses, m, …)              the verdict on one machine

An evaluation is three arrays: `keys` (one per machine), `racks` (lowest key, how many machines have it, bits of the
rack preferences) and `clusters` (lowest key with rack bits, ties, revision seen). Machine, rack, cluster: a change of
one machine costs a look at its rack and its cluster, whatever the zone's size; a cluster nobody asks for costs nothing.

`journal` is [revision, youngest machine of each cluster…, revision of each cluster…]; `links` chain the machines of a
cluster in the order they last changed, apart from the rows, so that a walk can fetch several rows at once.
"""

import numpy as np

from roost.engine.kernel.codes import (
    BITS,
    CHOSEN,
    CLUSTER,
    CLUSTER_FAULT,
    DATACENTER,
    HEAP,
    INVALID,
    KEY,
    LATE,
    LISTED,
    LOW,
    MACHINE,
    ONE,
    ORDER,
    RACK,
    SALT,
    SEEN,
    SINGLE,
    TIES,
    UPDATE_DOMAIN,
    ZERO,
)
from roost.engine.kernel.native import asked, entry, inside  # noqa: F401  kernels take them over

UNDO_KEY, UNDO_RACK, UNDO_BITS, UNDO_CLUSTER = np.int64(0), np.int64(1), np.int64(2), np.int64(3)
READY = 0

# ---------------------------------------------------------------------------------------------------------- journal


@entry
def touch(machines, links, journal, m):
    """Move m to the young end of its cluster's journal under a new revision."""
    c = machines[m].cluster
    clusters = (journal.shape[0] - 1) // 2
    journal[0] += 1
    links[m].revision = journal[0]
    journal[1 + clusters + c] = journal[0]
    last = journal[1 + c]
    if last == m:
        return
    older, newer = links[m].older, links[m].newer
    if newer >= 0:  # it was linked already: close the gap
        links[newer].older = older
        if older >= 0:
            links[older].newer = newer
    links[m].older = last
    links[m].newer = -1
    if last >= 0:
        links[last].newer = m
    journal[1 + c] = m


@entry
def touch_cluster(journal, c):
    """A cluster's own row changed, none of its machines."""
    journal[0] += 1
    journal[1 + (journal.shape[0] - 1) // 2 + c] = journal[0]


@inside
def hold(machine, vm, sign):
    """Let a machine hold a VM (sign 1) or no longer (sign -1): its own row, no sums."""
    for r in range(len(machine.capacity)):
        amount = sign * vm.demand[machine.generation][r]
        for b in range(vm.priority, len(machine.free)):
            machine.free[b][r] -= amount
    machine.vms += sign
    if vm.isolation > 0:
        machine.isolated += sign
        machine.owners += sign * vm.isolation
        machine.owner = machine.owners // machine.isolated if machine.isolated > 0 else 0
    if vm.colocation >= 0:
        machine.classes[vm.colocation] += sign


@inside
def overfills(machine, vm):
    """Whether others have to give way on a machine if a VM comes to it."""
    short = ZERO
    for r in range(len(machine.capacity)):
        short += machine.free[len(machine.free) - 1][r] < vm.demand[machine.generation][r]
    return short > 0


@inside
def is_empty(machine, b):
    """Whether nothing of a machine is used by band b or one above it, and nobody has it for himself."""
    used = np.int64(machine.owner != 0)
    for r in range(len(machine.capacity)):
        used += machine.free[b][r] != machine.capacity[r]
    return used == 0


@inside
def count_empty(machine, rack, cluster, first, step):
    """Count a machine in (step 1) or out (step -1) wherever it is empty to a band, from the first one on."""
    for b in range(first, len(machine.free)):
        if not is_empty(machine, b):
            return  # nor is it to a lower band, which sees no less of it used
        rack.empty[b] += step
        cluster.empty[b] += step


@inside
def put(machines, racks, clusters, links, journal, m, vm, sign):
    """Put a VM on machine m (sign 1) or take it off again (sign -1), in every sum that counts it."""
    machine, rack, cluster = machines[m], racks[machines[m].rack], clusters[machines[m].cluster]
    ready = machine.state == READY
    first = np.int64(vm.priority) if vm.isolation == 0 else ZERO  # who holds a machine holds it for all bands
    if ready:
        count_empty(machine, rack, cluster, first, -ONE)
    for b in range(vm.priority, len(machine.free)):
        for r in range(len(machine.capacity)):
            amount = sign * vm.demand[machine.generation][r]
            rack.used[b][r] += amount
            cluster.used[b][r] += amount
            if ready:
                rack.free[b][r] -= amount
                cluster.free[b][r] -= amount
    hold(machine, vm, sign)
    rack.vms += sign
    cluster.vms += sign
    if ready:
        count_empty(machine, rack, cluster, first, ONE)
    touch(machines, links, journal, m)


# What Python calls for every VM takes its row in an array of one: a row by itself takes four times as long to pass.


@entry
def place(machines, racks, clusters, links, journal, m, vm, sign):
    """The same as `put`."""
    put(machines, racks, clusters, links, journal, m, vm[0], sign)


@entry
def dismiss(machines, m, vm):
    """At commit: a machine no longer holds a VM."""
    hold(machines[m], vm[0], -ONE)


@entry
def adopt(machines, racks, clusters, links, journal, m, fresh):
    """Let machine m hold what a fresher row of it holds, and be as that says it is, in every sum that counts it."""
    machine, rack, cluster = machines[m], racks[machines[m].rack], clusters[machines[m].cluster]
    was, now = np.int64(machine.state == READY), np.int64(fresh.state == READY)
    count_empty(machine, rack, cluster, ZERO, -was)
    for b in range(len(machine.free)):
        for r in range(len(machine.capacity)):
            more = machine.free[b][r] - fresh.free[b][r]
            rack.used[b][r] += more
            cluster.used[b][r] += more
            change = now * fresh.free[b][r] - was * machine.free[b][r]
            rack.free[b][r] += change
            cluster.free[b][r] += change
            machine.free[b][r] = fresh.free[b][r]
    rack.vms += fresh.vms - machine.vms
    cluster.vms += fresh.vms - machine.vms
    for c in range(len(machine.classes)):
        machine.classes[c] = fresh.classes[c]
    machine.vms, machine.owner, machine.isolated = fresh.vms, fresh.owner, fresh.isolated
    count_empty(machine, rack, cluster, ZERO, now)
    machine.owners, machine.state, machine.health = fresh.owners, fresh.state, fresh.health
    machine.failures, machine.versions_behind = fresh.failures, fresh.versions_behind
    touch(machines, links, journal, m)


@entry
def set_state(machines, racks, clusters, links, journal, m, state):
    """Change a machine's state; only ready machines count as free in the sums of racks and clusters."""
    machine, rack, cluster = machines[m], racks[machines[m].rack], clusters[machines[m].cluster]
    step = np.int64(state == READY) - np.int64(machine.state == READY)
    if step != 0:
        for b in range(len(machine.free)):
            for r in range(len(machine.capacity)):
                rack.free[b][r] += step * machine.free[b][r]
                cluster.free[b][r] += step * machine.free[b][r]
        count_empty(machine, rack, cluster, ZERO, step)
    machine.state = state
    touch(machines, links, journal, m)


# ------------------------------------------------------------------------------------------- bringing up to date


@inside
def scan_rack(r, racks, keys, rack_sums):
    """The lowest key of a rack and how many of its machines have it: two plain passes, which vectorise."""
    first = racks[r].first
    mine = keys[first : first + racks[r].machines]
    low, ties = INVALID, 0
    for i in range(mine.shape[0]):
        low = min(low, mine[i])
    for i in range(mine.shape[0]):
        ties += mine[i] == low
    rack_sums[r, LOW], rack_sums[r, TIES] = low, ties


@inside
def scan_cluster(c, clusters, rack_sums, cluster_sums):
    """The lowest key of a cluster, rack preferences included, and how many machines have it."""
    first = clusters[c].first_rack
    mine = rack_sums[first : first + clusters[c].racks]
    low, ties = INVALID, 0
    for i in range(mine.shape[0]):
        low = min(low, mine[i, LOW] | mine[i, BITS])
    for i in range(mine.shape[0]):
        ties += mine[i, TIES] if (mine[i, LOW] | mine[i, BITS]) == low else 0
    cluster_sums[c, LOW], cluster_sums[c, TIES] = low, ties


@inside
def change_key(m, key, machines, racks, keys, rack_sums):
    """Give machine m a new key and keep its rack's lowest key right."""
    old = keys[m]
    if key == old:
        return
    keys[m] = key
    r = np.int64(machines[m].rack)
    low = rack_sums[r, LOW]
    if key < low:
        rack_sums[r, LOW], rack_sums[r, TIES] = key, 1
    elif key == low:
        rack_sums[r, TIES] += 1
    elif old == low:
        rack_sums[r, TIES] -= 1
        if rack_sums[r, TIES] == 0:
            scan_rack(r, racks, keys, rack_sums)


@inside
def follow_rack(r, c, old, old_ties, clusters, rack_sums, cluster_sums):
    """Keep a cluster's lowest key right after rack r changed from `old` with `old_ties`; mostly that is no work."""
    full, ties = rack_sums[r, LOW] | rack_sums[r, BITS], rack_sums[r, TIES]
    low = cluster_sums[c, LOW]
    if old == low:
        cluster_sums[c, TIES] -= old_ties
    if full < low:
        cluster_sums[c, LOW], cluster_sums[c, TIES] = full, ties
    elif full == low:
        cluster_sums[c, TIES] += ties
    elif old == low and cluster_sums[c, TIES] == 0:
        scan_cluster(c, clusters, rack_sums, cluster_sums)


@inside
def rank(rules, clusters, journal, vm, ranking):
    """Bring the order of clusters up to date: best key first, invalid last, ties in the ranking's own random order."""
    n = clusters.shape[0]
    changed, fault = False, 0
    for c in range(n):
        revision = journal[1 + n + c]
        if ranking[SEEN, c] != revision:
            ranking[SEEN, c] = revision
            key = ask_cluster_key(rules[0], clusters[c], vm, rules[1])
            if key > INVALID:
                fault, key = key - INVALID + CLUSTER_FAULT, INVALID
            if key != ranking[KEY, c]:
                ranking[KEY, c] = key
                changed = True
    if changed:  # nearly sorted already, so insertion is quick
        for i in range(1, n):
            c = ranking[ORDER, i]
            key, salt = ranking[KEY, c], ranking[SALT, c]
            j = i - 1
            while j >= 0:
                d = ranking[ORDER, j]
                if ranking[KEY, d] < key or (ranking[KEY, d] == key and ranking[SALT, d] < salt):
                    break
                ranking[ORDER, j + 1] = d
                j -= 1
            ranking[ORDER, j + 1] = c
    return fault


# ------------------------------------------------------------------------------------------------------- tenants


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


# ------------------------------------------------------------------------------------------------------ choosing


@inside
def below(rng, n):
    """A uniform random number from 0 to n - 1 (SplitMix64)."""
    rng[0] += np.uint64(0x9E3779B97F4A7C15)
    z = rng[0]
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z = z ^ (z >> np.uint64(31))
    return np.int64(z % np.uint64(n))


@entry
def lot(rng, n):
    """The same, for those outside."""
    return below(rng, n)


@inside
def nth_with_key(nth, key, chosen, found, racks, clusters, keys, rack_sums):
    """The nth machine (from 0) of the chosen clusters whose full key is `key`, -1 if there are fewer."""
    for i in range(found):
        c = chosen[i]
        first_rack = clusters[c].first_rack
        for r in range(first_rack, first_rack + clusters[c].racks):
            bits = rack_sums[r, BITS]
            if (rack_sums[r, LOW] | bits) > key:
                continue
            if (rack_sums[r, LOW] | bits) == key and nth >= rack_sums[r, TIES]:
                nth -= rack_sums[r, TIES]
                continue
            first = racks[r].first
            for m in range(first, first + racks[r].machines):
                if (keys[m] | bits) == key:
                    if nth == 0:
                        return m
                    nth -= 1
    return -1


@inside
def pick_best(chosen, found, racks, clusters, keys, rack_sums, cluster_sums, rng):
    """A machine drawn uniformly from the best of the chosen clusters, and how many tied."""
    best, ties = INVALID, ZERO
    for i in range(found):
        low = cluster_sums[chosen[i], LOW]
        if low < best:
            best, ties = low, cluster_sums[chosen[i], TIES]
        elif low == best:
            ties += cluster_sums[chosen[i], TIES]
    nth = below(rng, ties)
    for i in range(found):
        c = chosen[i]
        if cluster_sums[c, LOW] != best:
            continue
        if nth < cluster_sums[c, TIES]:
            return nth_with_key(nth, best, chosen[i:], ONE, racks, clusters, keys, rack_sums), ties
        nth -= cluster_sums[c, TIES]
    return -1, 0


@inside
def best_keys(top, chosen, found, racks, clusters, keys, rack_sums, heap):
    """The `top` lowest keys of the chosen clusters, in a heap with the highest of them first; returns how many."""
    size = ZERO  # of a heap whose root is the worst of the best keys so far
    for i in range(found):
        c = chosen[i]
        first_rack = clusters[c].first_rack
        for r in range(first_rack, first_rack + clusters[c].racks):
            bits = rack_sums[r, BITS]
            if bits >= INVALID or (size == top and (rack_sums[r, LOW] | bits) >= heap[0]):
                continue
            first = racks[r].first
            for m in range(first, first + racks[r].machines):
                key = keys[m] | bits
                if key >= INVALID or (size == top and key >= heap[0]):
                    continue
                if size < top:
                    j = size
                    size += 1
                    while j > 0 and heap[(j - 1) // 2] < key:
                        heap[j] = heap[(j - 1) // 2]
                        j = (j - 1) // 2
                    heap[j] = key
                else:
                    j = 0
                    while 2 * j + 1 < size:
                        child = 2 * j + 1
                        if child + 1 < size and heap[child + 1] > heap[child]:
                            child += 1
                        if heap[child] <= key:
                            break
                        heap[j] = heap[child]
                        j = child
                    heap[j] = key
    return size


@inside
def draw_of_best(size, chosen, found, racks, clusters, keys, rack_sums, heap, rng):
    """A machine drawn uniformly from the best; which of those that tie at the border belong to them is drawn, too."""
    worst, better = heap[0], 0
    for i in range(size):
        better += heap[i] < worst
    draw = below(rng, size)
    if draw < better:  # any of the keys strictly better than the border
        key, nth = heap[0], ZERO
        seen = -1
        for i in range(size):
            if heap[i] < worst:
                seen += 1
                if seen == draw:
                    key = heap[i]
                    for j in range(i):
                        nth += heap[j] == key
        return nth_with_key(nth, key, chosen, found, racks, clusters, keys, rack_sums)
    ties = ZERO
    for i in range(found):
        c = chosen[i]
        first_rack = clusters[c].first_rack
        for r in range(first_rack, first_rack + clusters[c].racks):
            bits = rack_sums[r, BITS]
            if (rack_sums[r, LOW] | bits) > worst:
                continue
            for m in range(racks[r].first, racks[r].first + racks[r].machines):
                ties += (keys[m] | bits) == worst
    return nth_with_key(below(rng, ties), worst, chosen, found, racks, clusters, keys, rack_sums)


@inside
def liking(m, salt):
    """How much an agent likes a machine, whatever is on it: always the same, and in another order for other salts."""
    z = (np.uint64(m) + salt) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@inside
def favourite(border, chosen, found, racks, clusters, keys, rack_sums, salt):
    """Of the machines of the chosen clusters with a key up to `border`, the one that the agent likes most."""
    best, most = -ONE, np.uint64(0)
    for i in range(found):
        c = chosen[i]
        first_rack = clusters[c].first_rack
        for r in range(first_rack, first_rack + clusters[c].racks):
            bits = rack_sums[r, BITS]
            if bits >= INVALID or (rack_sums[r, LOW] | bits) > border:
                continue
            for m in range(racks[r].first, racks[r].first + racks[r].machines):
                if (keys[m] | bits) <= border:
                    likes = liking(m, salt)
                    if best < 0 or likes > most:
                        best, most = m, likes
    return best


@inside
def refusal(rules, m, machines, racks, clusters, tenant, counts):
    """The domain of whatever keeps the tenant's VMs off machine m, -1 for nothing.

    A count below zero says that the machine is set aside; the machine by itself, as with an update domain.
    """
    if counts[m] < 0:
        return np.int64(UPDATE_DOMAIN)
    return np.int64(ask_tenant_refusal(rules[0], m, machines, racks, clusters, tenant, counts, rules[1]))


@inside
def mask_refused(
    rules, border, chosen, found, machines, racks, clusters, keys, rack_sums, cluster_sums, tenant, counts, undo, undone
):
    """Take out every machine with a key up to `border` that a tenant rule refuses."""
    for i in range(found):
        c = chosen[i]
        first_rack = clusters[c].first_rack
        for r in range(first_rack, first_rack + clusters[c].racks):
            for m in range(racks[r].first, racks[r].first + racks[r].machines):
                if (keys[m] | rack_sums[r, BITS]) <= border:
                    domain = refusal(rules, m, machines, racks, clusters, tenant, counts)
                    if domain >= 0:
                        undone = mask(
                            m, domain, machines, racks, clusters, keys, rack_sums, cluster_sums, counts, undo, undone
                        )
    return undone


@inside
def choose_clusters(
    rules, machines, racks, clusters, links, journal, columns, column_seen, tally, tenant, counts, scratch, undo,
    top_clusters, last_resort, constrained, vm, keys, rack_sums, cluster_sums, slots, ranking
):  # fmt: skip
    """Bring clusters up to date in order of preference, until `top_clusters` of them have a valid machine.

    They are left in `scratch`, the best first. What the tenant's rules refuse is masked as far as was needed to know.
    Keys from `last_resort` on are of machines that are valid only if no cluster has a better one.
    Returns machines looked at, a rule's fault or 0, how many clusters were found, how much is masked.
    """
    fault = rank(rules, clusters, journal, vm, ranking)
    updated, found, waiting, undone = 0, ZERO, ZERO, ZERO
    chosen, late = scratch[CHOSEN], scratch[LATE]
    for i in range(clusters.shape[0]):
        c = ranking[ORDER, i]
        if ranking[KEY, c] >= INVALID or found == top_clusters:
            break
        looked, wrong = ask_refresh_cluster(
            rules[0], c, machines, racks, clusters, links, journal, vm, keys, rack_sums, cluster_sums,
            columns, column_seen, slots, tally, rules[1]
        )  # fmt: skip
        updated += looked
        fault = max(fault, wrong)
        if constrained:  # the cluster counts only if one of its machines is fine for the tenant, too
            while cluster_sums[c, LOW] < INVALID:
                scratch[SINGLE, 0] = c
                m = nth_with_key(ZERO, cluster_sums[c, LOW], scratch[SINGLE], ONE, racks, clusters, keys, rack_sums)
                domain = refusal(rules, m, machines, racks, clusters, tenant, counts)
                if domain < 0:
                    break
                undone = mask(m, domain, machines, racks, clusters, keys, rack_sums, cluster_sums, counts, undo, undone)
        if cluster_sums[c, LOW] < last_resort:
            chosen[found] = c
            found += 1
        elif cluster_sums[c, LOW] < INVALID and waiting < top_clusters:
            late[waiting] = c
            waiting += 1
    if found == 0:
        found = waiting
        for i in range(waiting):
            chosen[i] = late[i]
    return updated, fault, found, undone


@inside
def best_allowed(
    rules, few, constrained, chosen, found, machines, racks, clusters, keys, rack_sums, cluster_sums,
    tenant, counts, heap, undo, undone
):  # fmt: skip
    """The `few` lowest keys of machines that the tenant's rules allow, in a heap; how many, and how much is masked."""
    size = best_keys(few, chosen, found, racks, clusters, keys, rack_sums, heap)
    masked = -ONE
    while constrained and masked != undone:  # until none of the best is refused
        masked = undone
        undone = mask_refused(
            rules, heap[0], chosen, found, machines, racks, clusters, keys, rack_sums, cluster_sums,
            tenant, counts, undo, undone
        )  # fmt: skip
        size = best_keys(few, chosen, found, racks, clusters, keys, rack_sums, heap)
    return size, undone


@inside
def count_valid(chosen, found, racks, clusters, keys, rack_sums):
    """How many machines of the chosen clusters are valid."""
    valid = ZERO
    for i in range(found):
        first_rack = clusters[chosen[i]].first_rack
        for r in range(first_rack, first_rack + clusters[chosen[i]].racks):
            bits = rack_sums[r, BITS]
            for m in range(racks[r].first, racks[r].first + racks[r].machines):
                valid += (keys[m] | bits) < INVALID
    return valid


@inside
def list_up_to(border, chosen, found, racks, clusters, keys, rack_sums, listed, rng):
    """List machines of the chosen clusters with a key up to `border`, as many as there is place for.

    Of those that tie there, and too many of which do, any.
    """
    count, start = ZERO, below(rng, found)
    for border_too in range(2):
        for i in range(found):
            c = chosen[(start + i) % found]
            first_rack = clusters[c].first_rack
            for r in range(first_rack, first_rack + clusters[c].racks):
                bits = rack_sums[r, BITS]
                if bits >= INVALID or (rack_sums[r, LOW] | bits) > border:
                    continue
                for m in range(racks[r].first, racks[r].first + racks[r].machines):
                    key = keys[m] | bits
                    if count < listed.shape[0] and (key == border if border_too else key < border):
                        listed[count] = m
                        count += 1
    return count


@inside
def settle(machines, racks, clusters, links, journal, tenant, counts, placing, homes, constrained, vm, m):
    """Put a VM of the tenant at the desk on the machine that was chosen for it."""
    placing[0] = m
    placing[1] |= np.int64(overfills(machines[m], vm))
    put(machines, racks, clusters, links, journal, m, vm, ONE)
    if constrained:
        seat(machines, racks, clusters, tenant, counts, homes, placing[:1])
        tenant[0].remaining -= 1


@entry
def settle_at(machines, racks, clusters, links, journal, tenant, counts, placing, homes, constrained, vm_row, m):
    """The same, of one that `assign` has listed."""
    settle(machines, racks, clusters, links, journal, tenant, counts, placing, homes, constrained, vm_row[0], m)


@entry
def assign(
    rules, machines, racks, clusters, links, journal, columns, column_seen, tally, tenant, counts, scratch, undo,
    rng, placing, top_clusters, last_resort, homes, constrained, vm_row, keys, rack_sums, cluster_sums, slots, ranking,
    top_machines, among
):  # fmt: skip
    """Choose a machine for one VM and put the VM on it.

    Clusters in order of preference are brought up to date until `top_clusters` of them have a valid machine; among
    these the lowest key wins, ties are drawn uniformly; `top_machines` > 1 draws from that many best instead, and
    below -1 the agent takes the one of that many best that it likes most. No valid machine is ever missed: clusters
    without one do not count towards the bound, nor do those with none below `last_resort`, if others have one.

    If others have to give way on that machine, and `among` is not below 0, nothing is placed: the best machines, that
    share of the valid ones and those as good, are left in `scratch`, for somebody to choose from who knows who would
    have to go.

    The machine is also left in `placing`, for a caller that is interrupted before it hears the answer; beside it is
    noted if VMs of lower priority have to give way there.
    Returns machine or -1, machines looked at, a rule's fault or 0, how many the draw was among, clusters found, how
    many machines are listed.
    """
    vm, chosen, heap = vm_row[0], scratch[CHOSEN], scratch[HEAP]
    updated, fault, found, undone = choose_clusters(
        rules, machines, racks, clusters, links, journal, columns, column_seen, tally, tenant, counts, scratch, undo,
        top_clusters, last_resort, constrained, vm, keys, rack_sums, cluster_sums, slots, ranking
    )  # fmt: skip
    m, ties, few, listed = -ONE, ZERO, abs(top_machines), ZERO
    if fault != 0:
        found = ZERO
    if found > 0 and few > 1:
        ties, undone = best_allowed(
            rules, few, constrained, chosen, found, machines, racks, clusters, keys, rack_sums, cluster_sums,
            tenant, counts, heap, undo, undone
        )  # fmt: skip
        if top_machines > 0:
            m = draw_of_best(ties, chosen, found, racks, clusters, keys, rack_sums, heap, rng)
        else:
            m = favourite(heap[0], chosen, found, racks, clusters, keys, rack_sums, rng[1])
        if among >= 0.0 and overfills(machines[m], vm):  # perhaps nobody has to give way to the very best choice
            few = 1
    while found > 0 and few == 1:
        m, ties = pick_best(chosen, found, racks, clusters, keys, rack_sums, cluster_sums, rng)
        domain = refusal(rules, m, machines, racks, clusters, tenant, counts) if constrained else -1
        if domain < 0:
            break
        undone = mask(m, domain, machines, racks, clusters, keys, rack_sums, cluster_sums, counts, undo, undone)
    if m >= 0 and among >= 0.0 and overfills(machines[m], vm):
        if constrained:
            undone = mask_refused(
                rules, INVALID - ONE, chosen, found, machines, racks, clusters, keys, rack_sums, cluster_sums,
                tenant, counts, undo, undone
            )  # fmt: skip
        share = np.int64(np.ceil(among * count_valid(chosen, found, racks, clusters, keys, rack_sums)))
        few = min(max(ONE, share), np.int64(heap.shape[0]))
        best_keys(few, chosen, found, racks, clusters, keys, rack_sums, heap)
        listed = list_up_to(heap[0], chosen, found, racks, clusters, keys, rack_sums, scratch[LISTED], rng)
    unmask(keys, rack_sums, cluster_sums, undo, undone)
    if m >= 0 and listed == 0:
        settle(machines, racks, clusters, links, journal, tenant, counts, placing, homes, constrained, vm, m)
    return m, updated, fault, ties, found, listed


@entry
def look(
    rules, machines, racks, clusters, links, journal, columns, column_seen, tally, tenant, counts, scratch, undo,
    top_clusters, last_resort, constrained, vm_row, keys, rack_sums, cluster_sums, slots, ranking, held, judged
):  # fmt: skip
    """What `assign` would choose for a VM that is on machine `held` (-1: nowhere), were it not there; and how machine
    `judged` compares. Nothing stays changed, and nothing is drawn.

    Returns a rule's fault or 0; one of the best machines or -1 and its key; the verdict on `judged`, its detail and its
    key (see `judge`); the cluster's key, whether it is among the chosen, and the key of the last that is.
    """
    vm, chosen = vm_row[0], scratch[CHOSEN]
    if held >= 0:
        put(machines, racks, clusters, links, journal, held, vm, -ONE)
    _, fault, found, undone = choose_clusters(
        rules, machines, racks, clusters, links, journal, columns, column_seen, tally, tenant, counts, scratch, undo,
        top_clusters, last_resort, constrained, vm, keys, rack_sums, cluster_sums, slots, ranking
    )  # fmt: skip
    best, low, at, last = -ONE, INVALID, ZERO, INVALID
    for i in range(found):
        if cluster_sums[chosen[i], LOW] < low:
            low, at = cluster_sums[chosen[i], LOW], i
    if found > 0:  # the first with a cluster's lowest key is one that the tenant's rules let through
        best = nth_with_key(ZERO, low, chosen[at:], ONE, racks, clusters, keys, rack_sums)
        last = ranking[KEY, chosen[found - 1]]
    unmask(keys, rack_sums, cluster_sums, undo, undone)
    verdict, detail, key, cluster, selected = -ONE, ZERO, INVALID, INVALID, ZERO
    if judged >= 0:
        c = np.int64(machines[judged].cluster)
        cluster = ranking[KEY, c]
        for i in range(found):
            selected += chosen[i] == c
        verdict, detail, key, wrong = ask_judge_one(
            rules[0], judged, machines, racks, clusters, links, journal, vm,
            columns, column_seen, slots, tally, rules[1], tenant, counts, constrained
        )  # fmt: skip
        fault = max(fault, wrong)
    if held >= 0:
        put(machines, racks, clusters, links, journal, held, vm, ONE)
    return fault, best, low, verdict, detail, key, cluster, selected, last
