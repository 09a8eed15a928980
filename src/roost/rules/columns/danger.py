"""Column: how soon something on the machine may have to give way."""

import math

from roost.engine.rule import PerResource, derived
from roost.model.rows import PACKINGS
from roost.model.scarcity import SCARCITY

WEIGHTS = PerResource(**SCARCITY)
MANY = 2**31


@derived(traits=("vm_type", "priority"), of_cluster=True)
def danger(machine, vm, cluster, weights=WEIGHTS):
    """How often, in an hour, a VM on the machine would have to give way, if this one came to it.

    VMs of a type t come at a rate; those of higher priority are put where they pack best, and there rather where nobody
    has to give way. So before one of them comes to this machine and somebody has to go,

        ahead[t]    of its type find room on machines that are filled before, and
        spare       find room here, beside what runs here and the new VM

    The safety distance is the time until one more has come, (ahead + spare + 1) / rate; the danger is the sum of its
    inverse over the types that fit here at all.
    """
    total = 0.0
    if vm.priority == 0:
        return total  # nothing is above it
    lowest, own = machine.free[len(machine.free) - 1], vm.demand[machine.generation]
    highest, empty = machine.free[0], True
    for r in range(len(own)):
        if highest[r] < machine.capacity[r]:
            empty = False
    for t in range(len(cluster.demands)):
        rate = cluster.arrivals[vm.priority][t]
        if rate <= 0.0:
            continue
        need, fits, spare, left, weight = cluster.demands[t], MANY, MANY, 0.0, 0.0
        for r in range(len(own)):
            if need[r] > 0:
                fits = min(fits, highest[r] // need[r])
                spare = min(spare, max(0, lowest[r] - own[r]) // need[r])
            if machine.capacity[r] > 0:
                left += weights[r] * (highest[r] - need[r]) / machine.capacity[r]
                weight += weights[r]
        if fits <= 0:
            continue
        packing = PACKINGS - 1
        if not empty:
            packing = min(PACKINGS - 2, max(0, math.ceil((PACKINGS - 2) * left / weight))) if weight > 0.0 else 0
        total += rate / (cluster.ahead[t][packing] + spare + 1.0)
    return total
