"""Place VMs of a tenant."""

from __future__ import annotations

import msgspec

from roost.agent.context import Context
from roost.agent.operation import Operation
from roost.agent.ticket import Ticket
from roost.agent.verbs.placing import propose
from roost.agent.verbs.verb import Tenants, Verb, Wanted
from roost.model.errors import InvalidInput, Outdated
from roost.model.names import check_new_name, check_new_vm_name
from roost.model.request import VM, Constraints, Request
from roost.model.thresholds import Purpose
from roost.placing.allocator import Allocator
from roost.store.contract import Conflict, Premise, Proposal


class PlaceVMs(Operation, frozen=True, tag="place"):
    """Place VMs of a tenant: create it, or scale it out."""

    request: Request
    generation: int | None = None  # the tenant must have this one; 0: it must have no VMs
    existing: bool = False  # the tenant must have VMs
    healing: bool = False  # the VMs ran until their machine failed
    requeued: bool = False  # they waited for room since they had to give way; nobody from outside can say so

    @property
    def premise(self) -> Premise:
        """The tenant is new, or has VMs, or is at a generation; or it is all the same."""
        return Premise(self.existing, self.generation)

    def request_now(self, exists: bool) -> Request:
        """What is asked for: VMs that waited go by the constraints that their tenant has now, if it has VMs."""
        return msgspec.structs.replace(self.request, constraints=None) if self.requeued and exists else self.request


def _decide(context: Context, operation: PlaceVMs, ticket: Ticket) -> Proposal:
    return propose(context, ticket, _wanted(context.replica.allocator, operation))


def _wanted(allocator: Allocator, operation: PlaceVMs) -> Wanted:
    purpose = Purpose.HEALING if operation.healing else None
    request = operation.request
    if operation.requeued:
        request = operation.request_now(request.tenant in allocator.tenants)
    return Wanted(request, purpose, requeued=operation.requeued)


def _tenant(operation: PlaceVMs) -> str:
    return operation.request.tenant


def _size(operation: PlaceVMs, _: Tenants) -> int:
    return len(operation.request.vms)


def _check(operation: PlaceVMs) -> None:
    """What comes into the zone can be asked for by its name."""
    if operation.requeued:
        raise InvalidInput("requeued", "is not for anybody to say", "leave it out: what waits is placed by itself")
    check_new_name("request.tenant", operation.request.tenant)
    for i, vm in enumerate(operation.request.vms):
        if vm.name:
            check_new_vm_name(f"request.vms[{i}].name", vm.name)


def _hopeless(conflict: Conflict) -> InvalidInput | None:
    """What waited waits no longer."""
    return Outdated("vms", conflict.detail, "look again at what runs") if conflict.reason == "gone" else None


_EXAMPLE = PlaceVMs(Request("web", [VM("D2")], Constraints(min_fault_domains=1)))
PLACE = Verb(_decide, _EXAMPLE, _tenant, _size, _check, hopeless=_hopeless, wanted=_wanted)
