"""Place VMs again whose machines are not ready: which those are, and which machines they keep away from."""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from roost.agent.context import Context
from roost.agent.operation import Operation
from roost.agent.ticket import Ticket
from roost.agent.verbs.placing import propose
from roost.agent.verbs.verb import Verb, Wanted, named_vms, of_tenant
from roost.engine.tenant import NOWHERE
from roost.model.errors import InvalidInput, Outdated, UnknownName
from roost.model.request import HOLD, Request, hold_of
from roost.model.rows import MachineState
from roost.model.thresholds import Purpose
from roost.model.zone import Zone
from roost.placing.allocator import Allocator
from roost.placing.books import RunningVM
from roost.store.contract import EXISTING, Premise, Proposal


class Later(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, gc=False):
    """Machines that are yet to be updated: those of some update domains, in one cluster or in all."""

    update_domains: tuple[int, ...]
    cluster: str = ""


class HealVMs(Operation, frozen=True, tag="heal"):
    """Place VMs of a tenant again whose machines are not ready; all of them, or none."""

    tenant: str
    vms: tuple[str, ...]
    aside: Later | None = None  # none goes to these, and nobody has to give way: it is tried first, then without it

    @property
    def premise(self) -> Premise:
        """The tenant has VMs."""
        return EXISTING


def _decide(context: Context, operation: HealVMs, ticket: Ticket) -> Proposal:
    return propose(context, ticket, _wanted(context.allocator, operation))


def _wanted(allocator: Allocator, operation: HealVMs) -> Wanted:
    """VMs that are still on machines that are not ready are placed again; if all are well, that is said."""
    lost, held = _to_heal(allocator, operation)
    wishes = tuple([msgspec.structs.replace(vm.vm, name=vm.name) for vm in lost])
    aside = _set_aside(allocator.zone, operation.aside)
    return Wanted(Request(operation.tenant, wishes), Purpose.HEALING, (*lost, *held), aside)


def _to_heal(allocator: Allocator, operation: HealVMs) -> tuple[list[RunningVM], list[RunningVM]]:
    """The VMs of an operation whose machines are not ready, and what is held for them; raises if there are none."""
    tenant = allocator.tenants.get(operation.tenant)
    if tenant is None:
        raise UnknownName("tenant", "tenant with VMs", operation.tenant, allocator.tenants)
    if not operation.vms:
        raise InvalidInput("vms", "are none", "name at least one")
    lost: list[RunningVM] = []
    for i, name in enumerate(operation.vms):
        if (vm := tenant.vms.get(name)) is None or name.endswith(HOLD):
            raise UnknownName(f"vms[{i}]", f"VM of tenant {operation.tenant}", name, tenant.vms)
        if allocator.view.machines[vm.machine]["state"] != MachineState.READY:
            lost.append(vm)
    if not lost:
        raise Outdated("vms", f"the machines of {', '.join(operation.vms)} are ready", "nothing is to be done")
    return lost, [hold for vm in lost if (hold := tenant.vms.get(hold_of(vm.name)))]


def _set_aside(zone: Zone, later: Later | None) -> NDArray[np.int64]:
    """The machines that are yet to be updated."""
    if later is None:
        return NOWHERE
    found = np.isin(zone.machines["update_domain"], later.update_domains)
    if later.cluster:
        found &= zone.machines["cluster"] == zone.cluster(later.cluster)
    return np.flatnonzero(found)


HEAL = Verb(_decide, HealVMs("web", ("web/0",)), of_tenant, named_vms, wanted=_wanted)
