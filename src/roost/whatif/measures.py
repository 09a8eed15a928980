"""How full a zone is, and how well packed: what every answer compares before and after."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from roost.model.request import HOLD, VM
from roost.model.rows import MachineState
from roost.model.stranded import Stranding
from roost.model.zone import Zone

if TYPE_CHECKING:  # whoever only reads figures need not wait for the engine
    from roost.placing.allocator import Allocator


class Measures(msgspec.Struct, frozen=True, kw_only=True):
    """A zone at one moment, by its cores unless said. What is on a machine that is down is in use by nobody."""

    density: float  # cores in use, over the cores of machines that run anything
    utilisation: float  # cores in use, over all cores
    machines: int
    machines_down: int
    machines_in_use: int  # that run anything, and are not down
    empty_machines: int  # that run nothing, and are not down
    vms: int  # that run: on machines that are not down
    stranded: dict[str, float]  # by resource, the share of the zone's that is left where nothing fits any more


def type_mix(zone: Zone, vms: Iterable[VM]) -> dict[int, int]:
    """How many VMs there are of each type, by its number; one of each, if there are none."""
    counts = Counter(vm.type for vm in vms)
    found = {zone.vm_type(name): count for name, count in counts.items()}
    return dict(sorted(found.items())) or dict.fromkeys(range(len(zone.vm_types)), 1)


def measure(allocator: Allocator, types: Mapping[int, int]) -> Measures:
    """A zone as an allocator has it; `types`: those asked for (see `type_mix`)."""
    zone, rows = allocator.zone, allocator.view.machines
    capacity, free = rows["capacity"].astype(np.int64), rows["free"][:, -1].astype(np.int64)
    up = rows["state"] != MachineState.DOWN
    busy = up & (rows["vms"] > 0)
    useless = busy & Stranding(zone, list(types)).useless(free, rows["generation"])
    everything, left = capacity[up].sum(axis=0), free[useless].sum(axis=0)
    cores = zone.cores_at
    used = int((capacity - free)[up, cores].sum())
    return Measures(
        density=used / max(1, int(capacity[busy, cores].sum())),
        utilisation=used / max(1, int(everything[cores])),
        machines=len(rows),
        machines_down=int((~up).sum()),
        machines_in_use=int(busy.sum()),
        empty_machines=int((up & ~busy).sum()),
        vms=sum(bool(up[vm.machine]) and not vm.name.endswith(HOLD) for vm in allocator.vms.values()),
        stranded={r.name: int(left[i]) / max(1, int(everything[i])) for i, r in enumerate(zone.resources)},
    )
