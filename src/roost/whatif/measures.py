"""How full a zone is, and how well packed: what every answer compares before and after."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from roost.model.request import VM
from roost.model.rows import MachineState
from roost.model.stranded import Stranding
from roost.model.zone import Zone

if TYPE_CHECKING:  # whoever only reads figures need not wait for the engine
    from roost.agent.allocator import Allocator


class Measures(msgspec.Struct, frozen=True, kw_only=True):
    """A zone at one moment, by its cores unless said."""

    density: float  # cores in use, over the cores of machines that run anything
    utilisation: float  # cores in use, over all cores; both of machines that are not down
    machines: int
    machines_down: int
    machines_in_use: int
    empty_machines: int  # that run nothing, and are not down
    vms: int
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
    busy, up = rows["vms"] > 0, rows["state"] != MachineState.DOWN
    useless = busy & up & Stranding(zone, list(types)).useless(free, rows["generation"])
    used, everything, left = capacity - free, capacity[up].sum(axis=0), free[useless].sum(axis=0)
    cores = zone.cores_at
    return Measures(
        density=int(used[:, cores].sum()) / max(1, int(capacity[busy, cores].sum())),
        utilisation=int(used[up, cores].sum()) / max(1, int(everything[cores])),
        machines=len(rows),
        machines_down=int((~up).sum()),
        machines_in_use=int(busy.sum()),
        empty_machines=int((up & ~busy).sum()),
        vms=len(allocator.vms),
        stranded={r.name: int(left[i]) / max(1, int(everything[i])) for i, r in enumerate(zone.resources)},
    )
