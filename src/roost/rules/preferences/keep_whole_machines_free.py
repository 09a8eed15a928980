"""Soft rule: keep whole machines free for the VMs that need one."""

from roost.engine.rule import preference


@preference(traits=("vm_type", "priority"))
def keep_whole_machines_free(machine, vm, share=0.5):
    """Do not open an empty machine for a VM that takes less than `share` of it.

    What counts is the resource of which the VM takes the largest share. A machine is empty to a VM if it runs none of
    its priority or a higher one: lower ones give way.
    """
    free, need, largest = machine.free[vm.priority], vm.demand[machine.generation], 0.0
    for r in range(len(need)):
        if free[r] < machine.capacity[r]:
            return 0.0
        if machine.capacity[r] > 0:
            largest = max(largest, need[r] / machine.capacity[r])
    return 1.0 if largest < share else 0.0
