"""Soft rule: keep room in every cluster."""

from roost.engine.rule import ResourceName, preference

CORES = ResourceName("cores")


@preference(scope="cluster", traits=("priority",))
def emptier_first(cluster, vm, resource=CORES):
    """Prefer the cluster with the larger share free, so that none runs out and tenants can grow where they are."""
    if cluster.capacity[resource] <= 0:
        return 1.0
    return min(1.0, max(0.0, 1.0 - cluster.free[vm.priority][resource] / cluster.capacity[resource]))
