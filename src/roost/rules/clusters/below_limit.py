"""Hard rule: the cluster keeps a reserve."""

from roost.engine.rule import ResourceName, validator
from roost.model.thresholds import Purpose

CORES = ResourceName("cores")
NEW = int(Purpose.NEW)


@validator(
    scope="cluster",
    traits=("vm_type", "priority", "purpose"),
    reason="cluster at its utilisation limit for new deployments",
)
def below_limit(cluster, vm, limit=0.97, resource=CORES):
    """New deployments fill the cluster up to a share of its capacity; the rest is for growth and failover.

    So VMs of tenants that grow, and VMs that are healed, may have it. VMs of lower bands do not count, and are welcome:
    they give way.
    """
    if vm.priority > 0 or vm.purpose != NEW:
        return True
    used = cluster.used[vm.priority][resource] + vm.demand[cluster.generation][resource]
    return used <= limit * cluster.capacity[resource]
