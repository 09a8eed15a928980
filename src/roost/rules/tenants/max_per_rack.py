"""Hard rule: a tenant's VMs on one rack are limited."""

from roost.engine.rule import tenant_rule


@tenant_rule(domain="rack", reason="tenant's limit per rack", constraint="max_per_rack")
def max_per_rack(tenant):
    """The tenant has fewer VMs in the rack than it allows itself."""
    return tenant.max_per_rack == 0 or tenant.here < tenant.max_per_rack
