"""How many more VMs of a shape fit, if nothing else came."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from roost.engine.selection import Engine
from roost.engine.shape import Shape
from roost.engine.tenant import TenantDesk


@dataclass(frozen=True, slots=True)
class Room:
    """What more of one shape fits, by cluster row; and how many machines would take one."""

    by_cluster: dict[int, int]
    machines: int

    @property
    def total(self) -> int:
        """In the whole zone."""
        return sum(self.by_cluster.values())


def room_for(engine: Engine, shape: Shape) -> Room:
    """As many as the free amounts of every valid machine allow, and no more than each cluster's own rules let in.

    A scan of the zone. Machine rules that count VMs are asked about the first VM only.
    """
    view = engine.view
    valid = engine.judge(view, shape, TenantDesk(view)).verdicts < 0
    rows = view.machines[valid]
    demand = shape.row["demand"][0][rows["generation"]].astype(np.int64)
    free = rows["free"][:, engine.rules.view_of(shape.traits["priority"])].astype(np.int64)
    fit = np.where(demand > 0, free // np.maximum(demand, 1), np.iinfo(np.int64).max).min(axis=1)
    empty = (rows["free"] == rows["capacity"][:, None, :]).all(axis=2)
    found = {}
    for c in np.unique(rows["cluster"]).tolist():
        here = rows["cluster"] == c
        if admitted := _admitted(engine, shape, c, fit[here], empty[here]):
            found[c] = admitted
    return Room(found, int(valid.sum()))


def _admitted(engine: Engine, shape: Shape, cluster: int, fit: NDArray[np.int64], empty: NDArray[np.bool_]) -> int:
    """How many VMs a cluster's own rules let in, by halving: fuller clusters let in no more than emptier ones.

    `fit`: how many each of its machines takes; `empty`: whether it is empty, to each band. Those with VMs are filled
    first, then the largest of the others.
    """
    band = shape.traits["priority"]
    order = np.lexsort((-fit, empty[:, band]))
    filled, emptied = np.cumsum(fit[order]), np.cumsum(empty[order], axis=0)
    row = engine.view.clusters[cluster : cluster + 1].copy()
    demand = shape.row["demand"][0][row[0]["generation"]].astype(np.int64)
    used, vms, mine = row[0]["used"].copy(), int(row[0]["vms"]), np.zeros((row[0]["used"].shape[0], 1), np.int64)
    mine[band:] = 1  # the bands to which the VM counts as used
    left = row[0]["empty"].copy()
    low, high = 0, int(filled[-1])
    while low < high:
        middle = (low + high + 1) // 2
        row[0]["used"], row[0]["vms"] = used + (middle - 1) * mine * demand, vms + middle - 1
        taken = emptied[np.searchsorted(filled, middle - 1)] if middle > 1 else np.zeros_like(left)
        row[0]["empty"][band:] = left[band:] - taken[band:]
        if engine.kernel.cluster_failure(row[0], shape.record) < 0:
            low = middle
        else:
            high = middle - 1
    return low
