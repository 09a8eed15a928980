"""Hard rule: no VM of lower priority has to give way."""

from roost.engine.rule import validator


@validator(traits=("vm_type",), reason="held by lower-priority VMs", recheck=True, spares=True)
def evicts_nobody(machine, vm):
    """What is free even to the lowest priority, and so held by nobody, covers the VM's demand."""
    free, need = machine.free[len(machine.free) - 1], vm.demand[machine.generation]
    for r in range(len(need)):
        if free[r] < need[r]:
            return False
    return True
