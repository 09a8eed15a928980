"""The part of a kernel that keeps evaluations and the order of clusters right. Not imported: see `journal`.

An evaluation is three arrays: `keys` (one per machine), `racks` (lowest key, how many machines have it, bits of the
rack preferences) and `clusters` (lowest key with rack bits, ties, revision seen). Machine, rack, cluster: a change of
one machine costs a look at its rack and its cluster, whatever the zone's size; a cluster nobody asks for costs nothing.
"""

import numpy as np

from roost.engine.kernel.codes import BITS, CLUSTER_FAULT, INVALID, KEY, LOW, ORDER, SALT, SEEN, TIES
from roost.engine.kernel.native import inside


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
