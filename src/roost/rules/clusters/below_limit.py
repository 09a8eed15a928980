"""Hard rule: the cluster keeps a reserve."""

from roost.engine.rule import ResourceName, validator

CORES = ResourceName("cores")


@validator(scope="cluster", traits=("vm_type", "priority"), reason="cluster at its utilisation limit")
def below_limit(cluster, vm, limit=0.97, resource=CORES):
    """With the VM, the cluster uses no more than a share of its capacity; the rest is for growth and failover.

    VMs of lower priority do not count: they give way.
    """
    used = cluster.used[vm.priority][resource] + vm.demand[cluster.generation][resource]
    return used <= limit * cluster.capacity[resource]
