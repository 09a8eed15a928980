"""Soft rule: finish machines off."""

from roost.engine.rule import ResourceName, preference

CORES = ResourceName("cores")


@preference(traits=("vm_type", "priority"))
def exact_fit(machine, vm, resource=CORES):
    """Prefer a machine on which the VM takes all that is left of the resource."""
    left = machine.free[vm.priority][resource] - vm.demand[machine.generation][resource]
    return 0.0 if left == 0 else 1.0
