"""Hard rule: a tenant's VMs are spread over enough fault domains."""

from roost.engine.rule import tenant_rule


@tenant_rule(domain="rack", reason="too few fault domains", constraint="min_fault_domains")
def min_fault_domains(tenant):
    """The tenant can still reach the number of fault domains it wants.

    A fault domain is a rack. A new one is always fine. One it is in already is fine while enough VMs remain after this
    one to reach the number; a tenant with fewer VMs than that wants one for each.
    """
    if tenant.here == 0:
        return True
    wanted = min(tenant.min_fault_domains, tenant.placed + tenant.remaining)
    return tenant.racks + tenant.remaining - 1 >= wanted
