"""Hard rule: a tenant's VMs on one machine are limited."""

from roost.engine.rule import tenant_rule


@tenant_rule(domain="machine", reason="tenant's limit per machine", constraint="max_per_machine")
def max_per_machine(tenant):
    """The tenant has fewer VMs on the machine than it allows itself."""
    return tenant.max_per_machine == 0 or tenant.here < tenant.max_per_machine
