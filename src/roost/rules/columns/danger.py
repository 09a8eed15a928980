"""Column: how soon something on the machine may have to give way."""

import math

from roost.engine.rule import PerResource, derived
from roost.engine.side_tables import FORESIGHT
from roost.model.rows import PACKINGS
from roost.model.scarcity import SCARCITY

WEIGHTS = PerResource(**SCARCITY)
MANY = 2.0**31
SLACK = 1e-3  # of a VM: quotients are of single precision


@derived(traits=("vm_type", "priority"), of_cluster=True, reads=(FORESIGHT,))
def danger(machine, vm, cluster, foresight, weights=WEIGHTS):
    """How often, in an hour, a VM on the machine would have to give way, if this one came to it.

    VMs of a type t come at a rate; those of higher priority are put where they pack best, and there rather where nobody
    has to give way. So before one of them comes to this machine and somebody has to go,

        ahead[t]    of its type find room on machines that are filled before, and
        spare       find room here, beside what runs here and the new VM

    The safety distance is the time until one more has come, (ahead + spare + 1) / rate; the danger is the sum of its
    inverse over the types that fit here. A type of which no more fit than are spare never makes anybody go by itself:
    it takes one of another type after it, so it counts no more often than these come.
    """
    total = 0.0
    if vm.priority == 0:
        return total  # nothing is above it
    lowest, own = machine.free[len(machine.free) - 1], vm.demand[machine.generation]
    highest, empty, left, weight = machine.free[0], True, 0.0, 0.0
    for r in range(len(own)):
        if highest[r] < machine.capacity[r]:
            empty = False
        if machine.capacity[r] > 0:
            left += weights[r] * highest[r] / machine.capacity[r]
            weight += weights[r]
    if weight > 0.0:
        left /= weight
    rates, everything = foresight.arrivals[vm.priority], 0.0
    for t in range(len(rates)):
        everything += rates[t]
    for t in range(len(rates)):
        if rates[t] <= 0.0 or not cluster.supports[t]:
            continue
        need, per, fit, spare = cluster.demands[t], cluster.per_demand[t], MANY, MANY
        for r in range(len(own)):
            if need[r] > 0:
                fit = min(fit, highest[r] * per[r])
                spare = min(spare, (lowest[r] - own[r]) * per[r])
        fit, spare, rate = math.floor(fit + SLACK), max(0.0, math.floor(spare + SLACK)), rates[t]
        if fit <= spare:
            rate = min(rate, everything - rate)
        if fit < 1.0 or rate <= 0.0:
            continue
        packing = PACKINGS - 1
        if not empty:
            packing = min(PACKINGS - 2, max(0, math.ceil((PACKINGS - 2) * (left - cluster.takes[t]))))
        total += rate / (foresight.ahead[t][packing] + spare + 1.0)
    return total
