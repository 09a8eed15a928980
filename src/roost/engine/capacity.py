"""How many more VMs of a shape fit, if nothing else came: in the zone, or in one of its parts for all of a gang."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from roost.engine.selection import Engine
from roost.engine.shape import Shape
from roost.engine.tenant import TenantDesk
from roost.model.request import Constraints


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
    fit = amounts_fit(engine, shape, rows)
    empty = (rows["free"] == rows["capacity"][:, None, :]).all(axis=2)
    found = {}
    for c in np.unique(rows["cluster"]).tolist():
        here = rows["cluster"] == c
        if admitted := _admitted(engine, shape, c, fit[here], empty[here]):
            found[c] = admitted
    return Room(found, int(valid.sum()))


def amounts_fit(engine: Engine, shape: Shape, rows: NDArray[np.void]) -> NDArray[np.int64]:
    """How many of a shape the free amounts of each of some machines allow."""
    demand = shape.row["demand"][0][rows["generation"]].astype(np.int64)
    free = rows["free"][:, engine.rules.view_of(shape.traits["priority"])].astype(np.int64)
    fit: NDArray[np.int64] = np.where(demand > 0, free // np.maximum(demand, 1), np.iinfo(np.int32).max).min(axis=1)
    return np.maximum(fit, 0)


def roomy(
    engine: Engine, wanted: Sequence[tuple[Shape, int]], unit: str, constraints: Constraints
) -> NDArray[np.bool_]:
    """Which racks, clusters or datacenters may have room for all of these together, so many of each shape.

    None that has room is left out; one that is not left out may turn out to be too small all the same. A scan of the
    zone for each shape, whatever the number of VMs and units.
    """
    rows = engine.view.machines
    unit_of_rack = _units_of_racks(rows, unit)
    count = int(rows[unit].max()) + 1
    bands = {engine.rules.view_of(shape.traits["priority"]) for shape, _ in wanted}
    alike = len(bands) == 1  # else what one does to a machine may be what another is waiting for
    enough, useful = np.ones(count, np.bool_), np.zeros(len(rows), np.bool_)
    needed = np.zeros(rows["capacity"].shape[1], np.int64)
    for shape, number in wanted:
        fit, in_rack = _fit(engine, shape, constraints, alike)
        useful |= fit > 0
        enough &= _in_best_racks(in_rack, unit_of_rack, count, constraints.max_fault_domains) >= number
        needed += number * _least(shape)
    all_of_them = sum(number for _, number in wanted)
    for field, least in (("rack", constraints.min_fault_domains), ("update_domain", constraints.min_update_domains)):
        if least > 1:
            enough &= _distinct(rows[unit][useful], rows[field][useful], count) >= min(least, all_of_them)
    if len(wanted) > 1:
        free = rows["free"][:, min(bands)]  # as the highest of them sees it
        for r, amount in enumerate(needed.tolist()):
            enough &= np.bincount(rows[unit][useful], free[useful, r], count) >= amount
    return enough


def roomiest_racks(engine: Engine, wanted: Sequence[tuple[Shape, int]], constraints: Constraints) -> NDArray[np.int64]:
    """As many racks as VMs may be in that have most room for them, so many of each shape; all in the unit that VMs must
    stay in, if they must in one.
    """
    rows, most = engine.view.machines, constraints.max_fault_domains
    shares = [_fit(engine, shape, constraints, alike=True)[1] / number for shape, number in wanted]
    room: NDArray[np.float64] = np.min(shares, axis=0)
    units = _units_of_racks(rows, constraints.unit) if constraints.unit else np.zeros(len(room), np.int64)
    order = np.lexsort((-room, units))
    place = np.arange(len(order)) - np.searchsorted(units[order], units[order])
    best = order[place < most]
    found: NDArray[np.int64] = best[units[best] == np.argmax(np.bincount(units[best], room[best]))]
    return found


def _fit(
    engine: Engine, shape: Shape, constraints: Constraints, alike: bool
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """How many of a shape fit on each machine, and in each rack; `alike`: on those that are valid for it now."""
    rows = engine.view.machines
    fit = amounts_fit(engine, shape, rows)
    if constraints.max_per_machine:
        fit = np.minimum(fit, constraints.max_per_machine)
    fit[~shape.row["supported"][0][rows["generation"]].astype(np.bool_)] = 0
    if alike:
        fit[engine.judge(engine.view, shape, TenantDesk(engine.view)).verdicts >= 0] = 0
    in_rack = np.bincount(rows["rack"], fit, len(engine.view.racks)).astype(np.int64)
    if constraints.max_per_rack:
        in_rack = np.minimum(in_rack, constraints.max_per_rack)
    return fit, in_rack


def _units_of_racks(rows: NDArray[np.void], unit: str) -> NDArray[np.int64]:
    """The rack, cluster or datacenter that each rack is in."""
    found = np.zeros(int(rows["rack"].max()) + 1, np.int64)
    found[rows["rack"]] = rows[unit]
    return found


def _in_best_racks(
    in_rack: NDArray[np.int64], unit_of_rack: NDArray[np.int64], units: int, most: int
) -> NDArray[np.int64]:
    """How many fit in the racks of each unit; with `most`, in so many of its racks."""
    if most:
        order = np.lexsort((-in_rack, unit_of_rack))
        first = np.searchsorted(unit_of_rack[order], np.arange(units))
        place = np.arange(len(order)) - first[unit_of_rack[order]]
        in_rack = in_rack.copy()
        in_rack[order[place >= most]] = 0
    return np.bincount(unit_of_rack, in_rack, units).astype(np.int64)


def _distinct(units: NDArray[np.integer], domains: NDArray[np.integer], count: int) -> NDArray[np.int64]:
    """How many different domains there are in each unit."""
    pairs = np.unique(np.stack((units.astype(np.int64), domains.astype(np.int64))), axis=1)
    return np.bincount(pairs[0], minlength=count)


def _least(shape: Shape) -> NDArray[np.int64]:
    """What a VM takes at the least, whatever the hardware, by resource."""
    supported = shape.row["supported"][0].astype(np.bool_)
    demand = shape.row["demand"][0].astype(np.int64)
    least: NDArray[np.int64] = demand[supported].min(axis=0) if supported.any() else demand.max(axis=0)
    return least


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
        if engine.kernel.cluster_failure(row[0], shape.record, engine.data) < 0:
            low = middle
        else:
            high = middle - 1
    return low
