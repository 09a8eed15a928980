"""Hard rule: a tenant's VMs are spread over enough update domains."""

from roost.engine.rule import tenant_rule


@tenant_rule(domain="update_domain", reason="too few update domains", constraint="min_update_domains")
def min_update_domains(tenant):
    """The tenant can still reach the number of update domains it wants.

    A new one is always fine. One it is in already is fine while enough VMs remain after this one to reach the number;
    a tenant with fewer VMs than that wants one for each.
    """
    if tenant.here == 0:
        return True
    wanted = min(tenant.min_update_domains, tenant.placed + tenant.remaining)
    return tenant.update_domains + tenant.remaining - 1 >= wanted
