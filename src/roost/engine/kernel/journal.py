"""The part of a kernel that changes rows: every change of a machine is in the sums that count it, and in the journal.

Not imported: `compiler` makes one module of this, `evaluation`, `tenants` and `choosing`, for each shape of zones. All
policies for such zones share it, compiled once.

`journal` is [revision, youngest machine of each cluster…, revision of each cluster…]; `links` chain the machines of a
cluster in the order they last changed, apart from the rows, so that a walk can fetch several rows at once.
"""

import numpy as np

from roost.engine.kernel.codes import ONE, ZERO
from roost.engine.kernel.native import asked, entry, inside  # noqa: F401  kernels take them over

READY = 0


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
def place_many(machines, racks, clusters, links, journal, at, which, signs, vms):
    """The same of many: the machine of each, its row among `vms`, and whether it comes (1) or goes (-1)."""
    for i in range(at.shape[0]):
        put(machines, racks, clusters, links, journal, at[i], vms[which[i]], signs[i])


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
