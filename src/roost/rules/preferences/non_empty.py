"""Soft rule: open an empty machine last."""

from roost.engine.rule import preference


@preference(traits=("priority",))
def non_empty(machine, vm):
    """Prefer a machine that already runs a VM of this priority or a higher one: lower ones give way."""
    free = machine.free[vm.priority]
    for r in range(len(free)):
        if free[r] < machine.capacity[r]:
            return 0.0
    return 1.0
