"""Hard rule: a tenant that asks for one cluster stays in it."""

from roost.engine.rule import tenant_rule
from roost.engine.tenant_row import COLOCATE

CLUSTER = COLOCATE["cluster"]


@tenant_rule(domain="cluster", reason="away from the tenant's cluster", constraint="colocate=cluster")
def colocate_cluster(tenant):
    """The tenant is in this cluster already, or nowhere yet.

    A negative count marks a cluster that was tried and is too small for all its VMs.
    """
    if tenant.colocate != CLUSTER:
        return True
    return tenant.here > 0 or (tenant.placed == 0 and tenant.here == 0)
