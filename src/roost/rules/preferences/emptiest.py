"""Soft rule: spread VMs over the machines (worst fit)."""

from roost.engine.rule import PerResource, preference
from roost.model.scarcity import SCARCITY

WEIGHTS = PerResource(**SCARCITY)


@preference(traits=("vm_type", "priority"))
def emptiest(machine, vm, weights=WEIGHTS):
    """Prefer the machine that the VM would leave with the most room: the opposite of `best_fit`."""
    free, need = machine.free[vm.priority], vm.demand[machine.generation]
    left, total = 0.0, 0.0
    for r in range(len(need)):
        if machine.capacity[r] > 0:
            left += weights[r] * (free[r] - need[r]) / machine.capacity[r]
            total += weights[r]
    if total <= 0.0:
        return 1.0
    return 1.0 - min(1.0, max(0.0, left / total))
