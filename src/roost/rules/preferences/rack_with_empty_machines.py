"""Soft rule: keep empty machines in every rack."""

from roost.engine.rule import preference


@preference(scope="rack", traits=("priority",))
def rack_with_empty_machines(rack, vm):
    """Prefer the rack with the larger share of machines that are ready and, to VMs of this priority, empty."""
    if rack.machines <= 0:
        return 1.0
    return 1.0 - rack.empty[vm.priority] / rack.machines
