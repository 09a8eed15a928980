"""Let VMs of a tenant give way to nobody."""

from __future__ import annotations

from roost.agent.context import Context
from roost.agent.operation import Operation
from roost.agent.ticket import Ticket
from roost.agent.verbs.leaving import leaving
from roost.agent.verbs.verb import Verb, named_vms, of_tenant
from roost.model.change import Eviction, PlacedVM
from roost.model.errors import InvalidInput
from roost.placing.victims import going_with
from roost.store import contract as store
from roost.store.contract import EXISTING, Premise, Proposal


class EvictVMs(Operation, frozen=True, tag="evict"):
    """Let VMs of a tenant give way to nobody: they are off their machines, and wait if they want to be placed again."""

    tenant: str
    vms: tuple[str, ...]

    @property
    def premise(self) -> Premise:
        """The tenant has VMs."""
        return EXISTING


def _decide(context: Context, operation: EvictVMs, ticket: Ticket) -> Proposal:
    """VMs go that are not of the highest priority, and those that have to go with them."""
    allocator = context.allocator
    tenant = allocator.tenants[operation.tenant]
    gone: dict[str, PlacedVM] = {}
    for i, name in enumerate(leaving(operation.tenant, operation.vms, tenant)):
        vm = tenant.vms[name]
        if not vm.shape.traits["priority"]:
            remedy = "name VMs of lower ones: only those give way"
            raise InvalidInput(f"vms[{i}]", f"{name} is of the highest priority", remedy)
        gone.update((other.name, other.placed) for other in going_with(allocator, vm))
    grace = allocator.arm_of(operation.tenant).policy.rules.evictions.grace
    return store.Release(
        tenant=operation.tenant,
        premise=operation.premise,
        released=tuple(gone.values()),
        stamp=tenant.stamp if tenant.constraints.evict_together else None,
        eviction=Eviction(tenant="", priority="", grace=grace),
        **context.common(ticket),
    )


EVICT = Verb(_decide, EvictVMs("web", ("web/0",)), of_tenant, named_vms)
