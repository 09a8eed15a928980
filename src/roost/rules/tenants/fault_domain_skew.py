"""Hard rule: a tenant's VMs are spread evenly over its fault domains."""

from roost.engine.rule import tenant_rule


@tenant_rule(domain="rack", reason="uneven over fault domains", constraint="fault_domain_skew")
def fault_domain_skew(tenant):
    """With this VM, no rack of the tenant has more than `fault_domain_skew` VMs more than another.

    Racks it is not in do not count, except as many as it lacks to reach `min_fault_domains` (or one for each VM, if
    those are fewer): these hold 0. So
    - a rack that holds the fewest is always fine: it evens things out, even where removals have left a larger skew;
    - a new one beyond those it lacks will hold 1, and so the fewest;
    - in any other the fewest stay as they are, and the most become what is here and this VM, if that is more.
    """
    if tenant.fault_domain_skew == 0:
        return True
    wanted = min(tenant.min_fault_domains, tenant.placed + tenant.remaining)
    fewest = tenant.least_in_rack if tenant.racks >= wanted else 0
    if tenant.here == fewest:
        return True
    if tenant.here == 0:
        fewest = 1
    return max(tenant.most_in_rack, tenant.here + 1) - fewest <= tenant.fault_domain_skew
