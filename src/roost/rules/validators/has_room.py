"""Hard rule: the machine has room for the VM in every resource."""

from roost.engine.rule import validator


def first_short(machine, vm):
    """The first resource of which there is too little, -1 if there is enough of each."""
    free, need = machine.free[vm.priority], vm.demand[machine.generation]
    for r in range(len(need)):
        if free[r] < need[r]:
            return r
    return -1


@validator(traits=("vm_type", "priority"), reason="insufficient {resource}", detail=first_short, recheck=True)
def has_room(machine, vm):
    """Free at the VM's priority covers its demand on this hardware.

    VMs of lower priority count as free: they give way. Add `evicts_nobody` to a policy where they should not.
    """
    free, need = machine.free[vm.priority], vm.demand[machine.generation]
    for r in range(len(need)):
        if free[r] < need[r]:
            return False
    return True
