"""Hard rule: a tenant's VMs are spread evenly over its update domains."""

from roost.engine.rule import tenant_rule


@tenant_rule(domain="update_domain", reason="uneven over update domains", constraint="update_domain_skew")
def update_domain_skew(tenant):
    """With this VM, no update domain of the tenant has more than `update_domain_skew` VMs more than another.

    Update domains it is not in do not count, except as many as it lacks to reach `min_update_domains` (or one for each
    VM, if those are fewer): these hold 0. So
    - one that holds the fewest is always fine: it evens things out, even where removals have left a larger skew;
    - a new one beyond those it lacks will hold 1, and so the fewest;
    - in any other the fewest stay as they are, and the most become what is here and this VM, if that is more.
    """
    if tenant.update_domain_skew == 0:
        return True
    wanted = min(tenant.min_update_domains, tenant.placed + tenant.remaining)
    fewest = tenant.least_in_update_domain if tenant.update_domains >= wanted else 0
    if tenant.here == fewest:
        return True
    if tenant.here == 0:
        fewest = 1
    return max(tenant.most_in_update_domain, tenant.here + 1) - fewest <= tenant.update_domain_skew
