"""How many more VMs of a shape fit, if nothing else came."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

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
    found = {}
    for c in np.unique(rows["cluster"]).tolist():
        most = int(fit[rows["cluster"] == c].sum())
        if admitted := _admitted(engine, shape, c, most):
            found[c] = admitted
    return Room(found, int(valid.sum()))


def _admitted(engine: Engine, shape: Shape, cluster: int, most: int) -> int:
    """How many of `most` VMs a cluster's own rules let in, by halving: fuller clusters let in no more than emptier."""
    row = engine.view.clusters[cluster : cluster + 1].copy()
    demand = shape.row["demand"][0][row[0]["generation"]].astype(np.int64)
    used, vms, mine = row[0]["used"].copy(), int(row[0]["vms"]), np.zeros((row[0]["used"].shape[0], 1), np.int64)
    mine[shape.traits["priority"] :] = 1  # the bands to which the VM counts as used
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        row[0]["used"], row[0]["vms"] = used + (middle - 1) * mine * demand, vms + middle - 1
        if engine.kernel.cluster_failure(row[0], shape.record) < 0:
            low = middle
        else:
            high = middle - 1
    return low
