"""Hard rule: the cluster is the one the VM asks for."""

from roost.engine.rule import validator


@validator(scope="cluster", traits=("cluster",), reason="outside the wanted cluster")
def in_cluster(cluster, vm):
    """A VM that asks for a cluster goes nowhere else."""
    return vm.cluster < 0 or vm.cluster == cluster.index
