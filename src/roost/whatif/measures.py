"""How full a zone is, and how well packed: what every answer compares before and after."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from roost.model.request import VM
from roost.model.stranded import Stranding
from roost.model.zone import Zone

if TYPE_CHECKING:  # whoever only reads figures need not wait for the engine
    from roost.agent.allocator import Allocator


class Measures(msgspec.Struct, frozen=True, kw_only=True):
    """A zone at one moment, by its cores unless said."""

    density: float  # cores in use, over the cores of machines that run anything
    utilisation: float  # cores in use, over all cores
    machines: int
    machines_in_use: int
    vms: int
    stranded: dict[str, float]  # by resource, the share of the zone's that is left where nothing fits any more

    @property
    def empty_machines(self) -> int:
        """Machines that run nothing."""
        return self.machines - self.machines_in_use


def type_mix(zone: Zone, vms: Iterable[VM]) -> dict[int, int]:
    """How many VMs there are of each type, by its number; one of each, if there are none."""
    counts = Counter(vm.type for vm in vms)
    found = {zone.vm_type(name): count for name, count in counts.items()}
    return dict(sorted(found.items())) or dict.fromkeys(range(len(zone.vm_types)), 1)


def measure(allocator: Allocator, types: Mapping[int, int]) -> Measures:
    """A zone as an allocator has it; `types`: those asked for (see `type_mix`)."""
    zone, rows = allocator.zone, allocator.view.machines
    capacity, free = rows["capacity"].astype(np.int64), rows["free"][:, -1].astype(np.int64)
    busy = rows["vms"] > 0
    useless = busy & Stranding(zone, list(types)).useless(free, rows["generation"])
    used, everything, left = (capacity - free).sum(axis=0), capacity.sum(axis=0), free[useless].sum(axis=0)
    cores = zone.cores_at
    return Measures(
        density=int(used[cores]) / max(1, int(capacity[busy, cores].sum())),
        utilisation=int(used[cores]) / max(1, int(everything[cores])),
        machines=len(rows),
        machines_in_use=int(busy.sum()),
        vms=len(allocator.vms),
        stranded={r.name: int(left[i]) / int(everything[i]) for i, r in enumerate(zone.resources) if everything[i]},
    )
