"""A VM goes to another machine: what a step of its move is about, or why that makes no sense.

    hold ──▶ finish     room is taken on the target; when all is copied, the VM is there and nowhere else
      └────▶ cancel     the room is given back
    whole               at once, for when there is nothing to copy

Steps are told by what is there: one that was done is done again, and changes nothing.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from roost.agent.context import Context
from roost.agent.operation import Operation
from roost.agent.ticket import Ticket
from roost.agent.verbs.verb import Verb, of_tenant
from roost.model.errors import InvalidInput, UnknownName
from roost.model.request import HOLD, hold_of
from roost.placing.allocator import Allocator
from roost.placing.books import RunningVM
from roost.store import contract as store
from roost.store.contract import EXISTING, Premise, Proposal


class MoveVM(Operation, frozen=True, tag="move"):
    """Bring a VM to another machine: at once, or with the target held for it until its memory is copied."""

    tenant: str
    vm: str
    machine: str  # the target, in every step
    step: Literal["hold", "finish", "cancel", "whole"] = "whole"

    @property
    def premise(self) -> Premise:
        """The tenant has VMs."""
        return EXISTING


def _decide(context: Context, operation: MoveVM, ticket: Ticket) -> Proposal:
    """What a step of a move asks of the store: what the target would refuse is declined."""
    replica, allocator, common = context.replica, context.allocator, context.common(ticket)
    move = _moving(allocator, operation)
    if why := _refused(allocator, operation.step, move):
        ticket.refusal = f"machine {operation.machine} cannot have {operation.vm}: {why}"
        return store.Decline(**common)
    cancel = operation.step == "cancel"
    if cancel and move.hold is not None:
        held = (move.hold.placed,)
        return store.Release(tenant=operation.tenant, premise=operation.premise, released=held, **common)
    tenant, vm = allocator.tenants[operation.tenant], move.vm.placed
    return store.Move(
        tenant=operation.tenant,
        premise=operation.premise,
        constraints=tenant.constraints,
        stamp=tenant.stamp,
        vm=vm,
        machine=vm.machine if cancel else operation.machine,  # nothing is held: it stays where it is
        held=move.hold is not None,
        hold=operation.step == "hold",
        seen={operation.machine: replica.seen(move.target)} if context.settings.strict else store.NOTHING,
        **common,
    )


class Moving(msgspec.Struct, frozen=True, gc=False):
    """A VM that moves, as an agent knows it."""

    vm: RunningVM
    hold: RunningVM | None  # what is held for it
    target: int


def _moving(allocator: Allocator, operation: MoveVM) -> Moving:
    """What a step is about; raises if it makes no sense."""
    tenant, name, step = allocator.tenants.get(operation.tenant), operation.vm, operation.step
    if tenant is None:
        raise UnknownName("tenant", "tenant with VMs", operation.tenant, allocator.tenants)
    if name.endswith(HOLD):
        raise InvalidInput("vm", f"{name} is room that is held for a VM", "name the VM itself")
    if (vm := tenant.vms.get(name)) is None:
        raise UnknownName("vm", f"VM of tenant {operation.tenant}", name, tenant.vms)
    target, hold = allocator.zone.machine(operation.machine), tenant.vms.get(hold_of(name))
    if hold is None and step == "finish" and vm.machine != target:
        raise InvalidInput("step", f"no room is held for {name}", "hold it first, or move the VM whole")
    if hold is not None and (step == "whole" or hold.machine != target):
        where = allocator.zone.machine_names[hold.machine]
        about = "machine" if hold.machine != target else "step"
        raise InvalidInput(about, f"room for {name} is held on {where}", "finish that move, or cancel it first")
    return Moving(vm, hold, target)


def _refused(allocator: Allocator, step: str, move: Moving) -> str | None:
    """Why the target may not have the VM; None if it may, or if the step changes nothing there."""
    vm, hold = move.vm, move.hold
    if step == "cancel" or (step == "hold" if hold else vm.machine == move.target):
        return None
    off = () if step == "hold" else (vm, hold) if hold else (vm,)
    return allocator.refusal(vm, move.target, off)


MOVE = Verb(_decide, MoveVM("web", "web/1", "c000-r00-m01", "hold"), of_tenant)
