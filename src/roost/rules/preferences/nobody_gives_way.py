"""Soft rule: let nobody give way while there is room."""

from roost.engine.rule import preference


@preference(traits=("vm_type", "priority"), spares=True)
def nobody_gives_way(machine, vm):
    """Prefer a machine on which no VM of lower priority has to give way.

    What nobody holds of it covers the VM's demand.
    """
    free, need = machine.free[len(machine.free) - 1], vm.demand[machine.generation]
    for r in range(len(need)):
        if free[r] < need[r]:
            return 1.0
    return 0.0
