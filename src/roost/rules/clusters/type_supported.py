"""Hard rule: the cluster takes VMs of this type."""

from roost.engine.rule import validator


@validator(scope="cluster", traits=("vm_type",), reason="VM type not supported")
def type_supported(cluster, vm):
    """The VM's type runs on the cluster's hardware, and the cluster does not refuse it."""
    return cluster.supports[vm.type] != 0
