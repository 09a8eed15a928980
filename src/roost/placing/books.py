"""Who runs what where, as a copy of a zone knows it: a tenant, and its VMs on machines."""

from __future__ import annotations

import msgspec

from roost.engine.shape import Shape
from roost.model.request import VM, Constraints


class RunningVM(msgspec.Struct, frozen=True, gc=False):
    """A VM on a machine."""

    name: str
    vm: VM
    tenant: str
    machine: int
    shape: Shape
    since: float = 0.0  # when it was first placed, in seconds since 1970; 0: nobody knows


class Tenant(msgspec.Struct, eq=False):
    """A tenant and its VMs by name."""

    constraints: Constraints
    vms: dict[str, RunningVM] = {}
    created: int = 0  # VMs ever made, to name the next one
    stamp: int = 0  # the store's, for a tenant that a store knows
