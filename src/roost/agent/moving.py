"""A VM goes to another machine: what a step of its move is about, or why that makes no sense.

    hold ──▶ finish     room is taken on the target; when all is copied, the VM is there and nowhere else
      └────▶ cancel     the room is given back
    whole               at once, for when there is nothing to copy

Steps are told by what is there: one that was done is done again, and changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from roost.agent.operation import MoveVM
from roost.model.errors import InvalidInput, UnknownName
from roost.model.request import HOLD, hold_of
from roost.placing.allocator import Allocator
from roost.placing.books import RunningVM, Tenant


class Moving(msgspec.Struct, frozen=True, gc=False):
    """A VM that moves, as an agent knows it."""

    vm: RunningVM
    hold: RunningVM | None  # what is held for it
    target: int


def moving(allocator: Allocator, operation: MoveVM) -> Moving:
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


def refused(allocator: Allocator, step: str, move: Moving) -> str | None:
    """Why the target may not have the VM; None if it may, or if the step changes nothing there."""
    vm, hold = move.vm, move.hold
    if step == "cancel" or (step == "hold" if hold else vm.machine == move.target):
        return None
    off = () if step == "hold" else (vm, hold) if hold else (vm,)
    return allocator.refusal(vm, move.target, off)


def held_for(vms: Sequence[str], tenant: Tenant) -> list[str]:
    """What is held for these VMs of a tenant, and not among them itself."""
    return [hold for name in vms if (hold := hold_of(name)) in tenant.vms and hold not in vms]
