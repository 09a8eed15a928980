"""Take VMs of a tenant away, or all of it."""

from __future__ import annotations

from roost.agent.context import Context
from roost.agent.operation import Operation
from roost.agent.ticket import Ticket
from roost.agent.verbs.leaving import leaving
from roost.agent.verbs.verb import Tenants, Verb, of_tenant
from roost.model.errors import UnknownName
from roost.store import contract as store
from roost.store.contract import Premise, Proposal


class ReleaseVMs(Operation, frozen=True, tag="release"):
    """Take VMs of a tenant away: scale it in, or, without names, delete it."""

    tenant: str
    vms: tuple[str, ...] = ()
    generation: int | None = None  # the tenant must have this one

    @property
    def premise(self) -> Premise:
        """The tenant has VMs; but it may be deleted when all of them wait to be placed again."""
        return Premise(bool(self.vms) or self.generation is not None, self.generation)


def _decide(context: Context, operation: ReleaseVMs, ticket: Ticket) -> Proposal:
    """A tenant is deleted with all of its VMs that wait to be placed again, if need be nothing but those."""
    replica, name, common = context.replica, operation.tenant, context.common(ticket)
    waiting = () if operation.vms else replica.waiting.of(name)
    if (tenant := replica.allocator.tenants.get(name)) is None:
        # Nothing runs that has a stamp: only a copy that has just heard everything knows of all that waits.
        if not waiting or not (ticket.asked or ticket.dry):
            raise UnknownName("tenant", "tenant with VMs", name, replica.allocator.tenants)
        return store.Release(tenant=name, released=(), waiting=waiting, **common)
    released = tuple([tenant.vms[vm].placed for vm in leaving(name, operation.vms, tenant)])
    stamp = None if operation.vms else tenant.stamp
    return store.Release(
        tenant=name, premise=operation.premise, released=released, stamp=stamp, waiting=waiting, **common
    )


def _size(operation: ReleaseVMs, tenants: Tenants) -> int:
    """A deletion is about all VMs of the tenant."""
    if operation.vms:
        return len(operation.vms)
    known = tenants.get(operation.tenant)
    return max(1, len(known.vms)) if known else 1


RELEASE = Verb(_decide, ReleaseVMs("web", ("web/0",)), of_tenant, _size)
