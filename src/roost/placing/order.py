"""In which order the VMs of a request are placed."""

from collections.abc import Sequence

import numpy as np

from roost.engine.shape import MOST_KNOWN, Shape
from roost.model.zone import Zone

PLACING = ("vm_type", "features", "datacenter", "generation", "cluster")  # traits that say where a VM could ever be


def placing_order(zone: Zone, shapes: Sequence[Shape], sets: Sequence[str] = ()) -> list[int]:
    """Highest priority first: what gives way must not be of the request itself. Then one availability set after the
    other, as they come. Then hardest first, while every rack is still open: those that the fewest racks could ever
    have, then the fewest machines, then large ones.

    A VM that fits few racks would find them taken (for the tenant's fault domains) by VMs that fit anywhere. `sets`:
    of each VM, if its tenant has any.
    """
    order = list(range(len(shapes)))
    if len(order) > 1 and len(set(map(id, shapes))) > 1:
        eases = {id(shape): _ease(zone, shape) for shape in {id(shape): shape for shape in shapes}.values()}
        order.sort(key=lambda i: eases[id(shapes[i])])
    if sets:
        comes = {name: i for i, name in enumerate(dict.fromkeys(sets))}
        order.sort(key=lambda i: (shapes[i].traits["priority"], comes[sets[i]]))
    return order


def _ease(zone: Zone, shape: Shape) -> tuple[int, int, int, float]:
    """The priority of a shape, the racks and machines that could have it if they were empty, and how small it is."""
    traits = shape.traits
    key = tuple([traits[trait] for trait in PLACING])
    if (found := zone.eases.get(key)) is None:
        if len(zone.eases) >= MOST_KNOWN:
            zone.eases.clear()
        found = zone.eases[key] = _support(zone, *key)
    return traits["priority"], *found


def _support(
    zone: Zone, vm_type: int, features: int, datacenter: int, generation: int, index: int
) -> tuple[int, int, float]:
    clusters = zone.clusters
    takes = (clusters["supports"][:, vm_type] != 0) & (clusters["features"] & features == features)
    for field, pin in (("datacenter", datacenter), ("generation", generation), ("index", index)):
        if pin >= 0:
            takes &= clusters[field] == pin
    if not takes.any():
        return 0, 0, 0.0
    here = clusters[takes]
    capacity = here["capacity"] / here["machines"][:, None]
    shares = here["demands"][:, vm_type] / np.maximum(capacity, 1)
    return int(here["racks"].sum()), int(here["machines"].sum()), -float(shares.max(axis=1).min())
