"""In which order the VMs of a request are placed."""

from collections.abc import Sequence

import numpy as np

from roost.engine.shape import Shape
from roost.model.zone import Zone


def placing_order(zone: Zone, shapes: Sequence[Shape], sets: Sequence[str] = ()) -> list[int]:
    """Highest priority first: what gives way must not be of the request itself. Then one availability set after the
    other, as they come. Then hardest first, while every rack is still open: pinned, then special hardware, then large.

    A VM that fits few racks would find them taken (for the tenant's fault domains) by VMs that fit anywhere. `sets`:
    of each VM, if its tenant has any.
    """
    first = shapes[0]
    order = list(range(len(shapes)))
    if not all(shape is first for shape in shapes):
        eases = {id(shape): _ease(zone, shape) for shape in {id(shape): shape for shape in shapes}.values()}
        order.sort(key=lambda i: eases[id(shapes[i])])
    if sets:
        comes = {name: i for i, name in enumerate(dict.fromkeys(sets))}
        order.sort(key=lambda i: (shapes[i].traits["priority"], comes[sets[i]]))
    return order


def _ease(zone: Zone, shape: Shape) -> tuple[int, int, int, float]:
    traits = shape.traits
    pins = sum(traits[pin] >= 0 for pin in ("cluster", "datacenter", "generation"))
    capacity = np.array([g.capacity for g in zone.generations], float)
    demand = zone.demand[traits["vm_type"]]
    shares = np.divide(demand, capacity, out=np.zeros_like(capacity), where=capacity > 0).max(axis=1)
    supported = zone.supported[traits["vm_type"]].astype(bool)
    smallest = float(shares[supported].min()) if supported.any() else 1.0
    return traits["priority"], -pins, -int(traits["features"]).bit_count(), -smallest
