"""Which resource runs out first on each machine, and what will be left of the others when it has.

A machine in use takes more VMs of the zone's own mix until one resource is used up: that one binds. What the mix has
not used of the others by then is left beside it. *Stranded*, as everywhere in Roost, is what is left on machines where
no type of the mix fits even now.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from roost.model.stranded import Stranding
from roost.model.zone import Zone

if TYPE_CHECKING:
    from numpy.typing import NDArray

NOTHING = "nothing"  # binds: no type of the mix runs on the machine's generation


class Fragment(msgspec.Struct, frozen=True, kw_only=True):
    """One machine in use, by the share of its own capacity."""

    machine: str
    binding: str  # the resource that runs out first
    free: dict[str, float]  # by resource
    beside: dict[str, float]  # of the others, what is left when the binding one is used up
    stranded: bool  # nothing of the mix fits even now
    lost: float  # the mean of what is left beside, over the resources that the machine has


class StrandingReport(msgspec.Struct, frozen=True, kw_only=True):
    """The machines in use of a zone, by what binds them. Shares are of what the zone has of a resource."""

    machines: int  # in use
    stranded: dict[str, float]  # left where nothing fits
    beside: dict[str, float]  # left when the binding resource of every machine is used up
    bound_by: dict[str, int]  # machines, by the resource that runs out first
    beside_by: dict[str, dict[str, float]]  # the same as `beside`, by the resource that binds
    worst: tuple[Fragment, ...]  # the most fragmented machines, worst first


def report_stranding(zone: Zone, rows: NDArray[np.void], mix: Mapping[int, int], worst: int = 10) -> StrandingReport:
    """What is stranded in a zone with these machine rows. `mix`: VMs by type, of which the next ones come."""
    busy = np.flatnonzero(rows["vms"] > 0)
    capacity, free = rows["capacity"].astype(np.int64), rows["free"][busy, -1].astype(np.int64)
    generation, everything = rows["generation"][busy], capacity.sum(axis=0)
    mean = mean_demand(zone, mix)[generation]
    fits = np.divide(free, mean, out=np.full(free.shape, np.inf), where=mean > 0)
    runs = (mean > 0).any(axis=1)
    binding = np.where(runs, fits.argmin(axis=1), -1)
    more = np.where(runs, fits.min(axis=1, initial=np.inf), 0.0)
    beside = np.maximum(free - more[:, None] * mean, 0.0)
    beside[np.arange(len(busy))[runs], binding[runs]] = 0.0
    useless = Stranding(zone, list(mix)).useless(free, generation)
    own = capacity[busy]
    shares = np.divide(beside, own, out=np.zeros_like(beside), where=own > 0)
    lost = shares.sum(axis=1) / np.maximum((own > 0).sum(axis=1), 1)

    names = [r.name for r in zone.resources]

    def of_zone(amounts: NDArray[np.floating] | NDArray[np.integer]) -> dict[str, float]:
        total = amounts.sum(axis=0)
        return {name: float(total[r] / everything[r]) for r, name in enumerate(names) if everything[r]}

    bound = {name: np.flatnonzero(binding == r) for r, name in (*enumerate(names), (-1, NOTHING))}
    fragments = []
    for i in np.argsort(-lost, kind="stable")[:worst].tolist():
        present = [r for r in range(len(names)) if own[i, r]]
        fragments.append(
            Fragment(
                machine=zone.machine_names[busy[i]],
                binding=names[binding[i]] if binding[i] >= 0 else NOTHING,
                free={names[r]: float(free[i, r] / own[i, r]) for r in present},
                beside={names[r]: float(shares[i, r]) for r in present if r != binding[i]},
                stranded=bool(useless[i]),
                lost=float(lost[i]),
            )
        )
    return StrandingReport(
        machines=len(busy),
        stranded=of_zone(free[useless]),
        beside=of_zone(beside),
        bound_by={name: len(here) for name, here in bound.items() if len(here)},
        beside_by={name: of_zone(beside[here]) for name, here in bound.items() if len(here)},
        worst=tuple(fragments),
    )


def mean_demand(zone: Zone, mix: Mapping[int, int]) -> NDArray[np.float64]:
    """What the average VM of a mix takes on each generation; nothing where none of it runs."""
    types, counts = np.array(list(mix)), np.array(list(mix.values()), float)
    found = np.zeros((len(zone.generations), len(zone.resources)))
    for g in range(len(zone.generations)):
        here = zone.supported[types, g].astype(bool)
        if here.any():
            found[g] = np.average(zone.demand[types[here], g], axis=0, weights=counts[here])
    return found
