"""Hard rule: the cluster keeps a reserve."""

from roost.engine.rule import ResourceName, validator

CORES = ResourceName("cores")


@validator(scope="cluster", traits=("vm_type",), reason="cluster at its utilisation limit")
def below_limit(cluster, vm, limit=0.97, resource=CORES):
    """With the VM, the cluster uses no more than a share of its capacity; the rest is for growth and failover."""
    used = cluster.used[resource] + vm.demand[cluster.generation][resource]
    return used <= limit * cluster.capacity[resource]
