"""Soft rule: fill machines up."""

from roost.engine.rule import PerResource, preference
from roost.model.scarcity import SCARCITY

WEIGHTS = PerResource(**SCARCITY)


@preference(traits=("vm_type", "priority"))
def best_fit(machine, vm, weights=WEIGHTS):
    """Prefer the machine that the VM would leave with the least room.

    The score is the mean of (free - demand) / capacity over the resources that the machine has. A resource's weight in
    it says how scarce the resource is.
    """
    free, need = machine.free[vm.priority], vm.demand[machine.generation]
    left, total = 0.0, 0.0
    for r in range(len(need)):
        if machine.capacity[r] > 0:
            left += weights[r] * (free[r] - need[r]) / machine.capacity[r]
            total += weights[r]
    if total <= 0.0:
        return 0.0
    return min(1.0, max(0.0, left / total))
