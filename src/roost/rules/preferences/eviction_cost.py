"""Soft rule: make as little as possible give way."""

from roost.engine.rule import preference


@preference(traits=("vm_type", "priority"))
def eviction_cost(machine, vm):
    """Prefer the machine on which least has to give way to the VM, and of the lowest priority.

    For each band below the VM's: the largest share of any resource that the VM needs and that this band and those above
    it hold. The score is their mean, so what has to come from a higher band counts once for every band below it, too.
    """
    need, below = vm.demand[machine.generation], len(machine.free) - 1 - vm.priority
    total = 0.0
    for b in range(vm.priority + 1, len(machine.free)):
        largest = 0.0
        for r in range(len(need)):
            short = need[r] - max(0, machine.free[b][r])  # what is short already gives way to others
            if short > 0 and machine.capacity[r] > 0:
                largest = max(largest, short / machine.capacity[r])
        total += largest
    return min(1.0, total / max(1, below))
