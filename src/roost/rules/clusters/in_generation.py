"""Hard rule: the cluster is of the hardware generation the VM asks for."""

from roost.engine.rule import validator


@validator(scope="cluster", traits=("generation",), reason="outside the wanted generation")
def in_generation(cluster, vm):
    """A VM that asks for a hardware generation goes nowhere else."""
    return vm.generation < 0 or vm.generation == cluster.generation
