"""Hard rule: the cluster is in the datacenter the VM asks for."""

from roost.engine.rule import validator


@validator(scope="cluster", traits=("datacenter",), reason="outside the wanted datacenter")
def in_datacenter(cluster, vm):
    """A VM that asks for a datacenter goes nowhere else."""
    return vm.datacenter < 0 or vm.datacenter == cluster.datacenter
