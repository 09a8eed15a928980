"""Whether the rows of a view are what they should be."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from roost.engine.shape import Shape
from roost.engine.view import OF_CLUSTERS, View
from roost.model.errors import InvariantBroken
from roost.model.rows import MachineState


def check_rows(view: View, vms: Iterable[tuple[int, Shape]]) -> None:
    """Raise unless the rows are exactly what these VMs make of the zone, and nothing is over capacity."""
    fresh = View(view.zone, view.kernel, history=0)
    for field in ("health", "failures", "versions_behind"):
        fresh.machines[field] = view.machines[field]
    for field in OF_CLUSTERS:
        fresh.clusters[field] = view.clusters[field]
    for i in np.flatnonzero(fresh.machines["state"] != view.machines["state"]):
        fresh.set_state(int(i), MachineState(int(view.machines[i]["state"])))
    for machine, shape in vms:
        fresh.place(machine, shape)
    for name, mine, theirs in (
        ("machine", view.machines, fresh.machines),
        ("rack", view.racks, fresh.racks),
        ("cluster", view.clusters, fresh.clusters),
    ):
        for field in mine.dtype.names or ():
            if not np.array_equal(mine[field], theirs[field]):
                raise InvariantBroken(f"{name} rows: {field} is not the sum of what runs there")
    if (view.machines["free"] < 0).any():
        m = int(np.flatnonzero((view.machines["free"] < 0).any(axis=(1, 2)))[0])
        raise InvariantBroken(f"machine {view.zone.machine_names[m]} is over capacity")
