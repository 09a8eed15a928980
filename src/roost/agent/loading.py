"""What a store holds of tenants and VMs, as the books of a copy have it: all of it at once, from columns."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import repeat

from roost.engine.shape import Shape
from roost.model.change import PlacedVM
from roost.placing.allocator import Allocator
from roost.placing.books import RunningVM, Tenant
from roost.store.columns import TenantColumns, VMColumns


@contextmanager
def uncollected() -> Iterator[None]:
    """While a zone is loaded nothing is looked through for garbage: it is millions of things, and all of them stay."""
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()


def tenants_of(tenants: TenantColumns) -> dict[str, Tenant]:
    """Tenants by name, without their VMs."""
    made = map(Tenant, tenants.constraints, ({} for _ in tenants.name), repeat(0), tenants.stamp)
    return dict(zip(tenants.name, made, strict=True))


def running_of(allocator: Allocator, vms: VMColumns) -> dict[str, RunningVM]:
    """VMs by name. What many of them say alike (what they hold, the name of a machine) is one object for all."""
    index, names = allocator.zone.machine_index, allocator.zone.machine_names
    rows = list(map(index.__getitem__, vms.machine))
    machines = [names[row] for row in rows]
    placed = map(PlacedVM, vms.name, vms.spec, machines, vms.since)
    return dict(zip(vms.name, map(RunningVM, placed, vms.tenant, rows, _shapes(allocator, vms)), strict=True))


def _shapes(allocator: Allocator, vms: VMColumns) -> list[Shape]:
    """The shape of each VM: one for all that ask for the same, but one for each tenant of those in isolation."""
    shape = allocator.running_shape
    specs = list(map(id, vms.spec))
    asked = dict(zip(specs, vms.spec, strict=True))
    shared = {number: shape(spec, "") for number, spec in asked.items() if not spec.isolated}
    if len(shared) == len(asked):
        return list(map(shared.__getitem__, specs))
    return [
        shared[number] if number in shared else shape(spec, tenant)
        for number, spec, tenant in zip(specs, vms.spec, vms.tenant, strict=True)
    ]
