"""Which VMs a healing is about, and which machines it keeps away from."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from roost.agent.operation import HealVMs, Later
from roost.engine.tenant import NOWHERE
from roost.model.errors import InvalidInput, Outdated, UnknownName
from roost.model.request import HOLD, hold_of
from roost.model.rows import MachineState
from roost.model.zone import Zone
from roost.placing.allocator import Allocator
from roost.placing.books import RunningVM


def to_heal(allocator: Allocator, operation: HealVMs) -> tuple[list[RunningVM], list[RunningVM]]:
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


def set_aside(zone: Zone, later: Later | None) -> NDArray[np.int64]:
    """The machines that are yet to be updated."""
    if later is None:
        return NOWHERE
    found = np.isin(zone.machines["update_domain"], later.update_domains)
    if later.cluster:
        found &= zone.machines["cluster"] == zone.cluster(later.cluster)
    return np.flatnonzero(found)
