"""Hard rule: a tenant that asks for one rack stays in it."""

from roost.engine.rule import tenant_rule
from roost.engine.tenant_row import COLOCATE

RACK = COLOCATE["rack"]


@tenant_rule(domain="rack", reason="away from the tenant's rack", constraint="colocate=rack")
def colocate_rack(tenant):
    """The tenant is in this rack already, or nowhere yet.

    A negative count marks a rack that was tried and is too small for all its VMs.
    """
    if tenant.colocate != RACK:
        return True
    return tenant.here > 0 or (tenant.placed == 0 and tenant.here == 0)
