"""Soft rule: keep local storage for the VMs that use it."""

from roost.engine.rule import OptionalResource, preference

SSD = OptionalResource("ssd")


@preference(traits=("vm_type", "priority"))
def storage_match(machine, vm, resource=SSD):
    """A VM that needs no local storage prefers the machine that has the smallest share of its own still unused."""
    if resource < 0:
        return 0.0
    if vm.demand[machine.generation][resource] > 0 or machine.capacity[resource] <= 0:
        return 0.0
    unused = machine.free[vm.priority][resource]
    return min(1.0, max(0.0, unused / machine.capacity[resource]))
