"""Hard rule: a tenant's VMs are spread over no more than so many fault domains."""

from roost.engine.rule import tenant_rule


@tenant_rule(domain="rack", reason="too many fault domains", constraint="max_fault_domains")
def max_fault_domains(tenant):
    """The tenant is in the rack already, or may still add one. A fault domain is a rack.

    A negative count marks a rack that was tried and is too small for all its VMs.
    """
    if tenant.max_fault_domains == 0 or tenant.here > 0:
        return True
    return tenant.here == 0 and tenant.racks < tenant.max_fault_domains
