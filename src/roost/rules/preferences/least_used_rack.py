"""Soft rule: spread VMs over the racks."""

from roost.engine.rule import ResourceName, preference

CORES = ResourceName("cores")


@preference(scope="rack", traits=("priority",))
def least_used_rack(rack, vm, resource=CORES):
    """Prefer the rack with the smallest share of the resource in use, at the VM's priority or above.

    A rack without any comes last.
    """
    if rack.capacity[resource] <= 0:
        return 1.0
    return min(1.0, rack.used[vm.priority][resource] / rack.capacity[resource])
