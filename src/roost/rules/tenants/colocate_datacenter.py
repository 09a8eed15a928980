"""Hard rule: a tenant that asks for one datacenter stays in it."""

from roost.engine.rule import tenant_rule
from roost.engine.tenant_row import COLOCATE

DATACENTER = COLOCATE["datacenter"]


@tenant_rule(domain="datacenter", reason="away from the tenant's datacenter", constraint="colocate=datacenter")
def colocate_datacenter(tenant):
    """The tenant is in this datacenter already, or nowhere yet.

    A negative count marks a datacenter that was tried and is too small for all its VMs.
    """
    if tenant.colocate != DATACENTER:
        return True
    return tenant.here > 0 or (tenant.placed == 0 and tenant.here == 0)
