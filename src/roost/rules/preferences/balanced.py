"""Soft rule: use a machine's resources evenly, so that none is stranded (DistFromDiag)."""

import math

from roost.engine.rule import preference


@preference(traits=("vm_type", "priority"))
def balanced(machine, vm):
    """Prefer the machine whose resources the VM would leave most evenly used.

    With each use as a share of capacity, equal use is the diagonal of the unit cube. The score is the distance from it
    after placing, over the longest there is: n/2 of n resources (rounded down) full and the others unused.
    """
    free, need = machine.free[vm.priority], vm.demand[machine.generation]
    count, total, squares = 0, 0.0, 0.0
    for r in range(len(need)):
        if machine.capacity[r] > 0:
            use = min(1.0, max(0.0, 1.0 - (free[r] - need[r]) / machine.capacity[r]))
            count += 1
            total += use
            squares += use * use
    if count < 2:
        return 0.0
    full = count // 2
    longest = full * (count - full) / count
    return min(1.0, math.sqrt(max(0.0, squares - total * total / count) / longest))
