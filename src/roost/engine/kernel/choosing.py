"""The part of a kernel that chooses a machine. Not imported: see `journal`.

Where a choice depends on a policy, it is given `rules`: the addresses of that policy's compiled functions (see
`asking`), and the data they are given; and calls

    ask_cluster_key(addresses, …)         a cluster's packed buckets, INVALID, or beyond: a fault
    ask_refresh_cluster(addresses, c, …)  brings a cluster of an evaluation up to date
    ask_tenant_refusal(addresses, m, …)   the domain of the first tenant rule that refuses machine m, -1 for none
    ask_judge_one(addresses, m, …)        the verdict on one machine
"""

import numpy as np

from roost.engine.kernel.codes import (
    BITS,
    CHOSEN,
    HEAP,
    INVALID,
    KEY,
    LATE,
    LISTED,
    LOW,
    ONE,
    ORDER,
    SINGLE,
    TIES,
    UPDATE_DOMAIN,
    ZERO,
)
from roost.engine.kernel.native import entry, inside


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
def put_chosen(machines, racks, clusters, links, journal, tenant, counts, placing, homes, constrained, vm, m):
    """Put a VM of the tenant at the desk on the machine that was chosen for it."""
    placing[0] = m
    placing[1] |= np.int64(overfills(machines[m], vm))
    put(machines, racks, clusters, links, journal, m, vm, ONE)
    if constrained:
        seat(machines, racks, clusters, tenant, counts, homes, placing[:1])
        tenant[0].remaining -= 1


@entry
def put_listed(machines, racks, clusters, links, journal, tenant, counts, placing, homes, constrained, vm_row, m):
    """The same, of one that `assign` has listed."""
    put_chosen(machines, racks, clusters, links, journal, tenant, counts, placing, homes, constrained, vm_row[0], m)


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
        put_chosen(machines, racks, clusters, links, journal, tenant, counts, placing, homes, constrained, vm, m)
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
