"""What is to be expected: how often VMs of each type come, and how many find room before each kind of machine.

    feed ──▶ ArrivalRates ──▶ foresee (on the rows of a copy) ──▶ registry ──▶ every agent's side table ──▶ `danger`
             or as an operator says

What is foreseen goes through the store, so that all agents decide by the same, and a past decision can be told again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from roost.model.errors import InvalidInput, UnknownName
from roost.model.readable import plain
from roost.model.rows import PACKINGS, MachineState, foresight_type
from roost.model.scarcity import SCARCITY

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from roost.model.zone import Zone

NAME = "zone"  # of the registry entry
DIGITS = 4
MOST = 1e9  # VMs of a type in an hour
TYPES = 8  # that are told apart: every change of a machine asks about each of them


class Foresight(msgspec.Struct, frozen=True, kw_only=True):
    """What is expected of a zone, as the registry keeps it. VM types of which none are expected are left out."""

    at: float  # when it was foreseen, in seconds since 1970
    arrivals: Mapping[str, Sequence[float]]  # by VM type: how many come in an hour, at each priority
    ahead: Mapping[str, Sequence[float]]  # by VM type: how many find room before machines of each packing
    given: Mapping[str, Mapping[str, float]] = {}  # by VM type and priority: what comes in an hour as an operator says

    @property
    def given_rates(self) -> dict[tuple[str, str], float]:
        """By type and priority."""
        return {(kind, band): rate for kind, by_band in self.given.items() for band, rate in by_band.items()}


def foresee(
    zone: Zone, machines: NDArray[np.void], rates: Mapping[tuple[str, str], float], at: float = 0.0
) -> Foresight:
    """What rates of arrival, by type and priority, mean for a zone whose machines are like this.

    VMs of the highest priority go where they leave least room, to empty machines last; among machines that they pack
    about as well, first to those where nobody has to give way. Types that are seldom asked for count as the one of the
    others that is most like them.
    """
    bands = zone.bands
    stands_for = _alike(zone, rates)
    arrivals: dict[str, list[float]] = {}
    for (vm_type, priority), rate in rates.items():
        by_band = arrivals.setdefault(stands_for[vm_type], [0.0] * len(bands))
        by_band[bands.index(priority) if priority else 0] += rate
    ready = machines[machines["state"] == MachineState.READY]
    ahead = {name: _ahead(zone, _offering(zone, ready, name), zone.vm_type(name)) for name in arrivals}
    rounded = {name: [round(rate, DIGITS) for rate in by_band] for name, by_band in arrivals.items()}
    return Foresight(at=at, arrivals=rounded, ahead=ahead)


def foresee_given(
    zone: Zone, machines: NDArray[np.void], given: Mapping[str, Mapping[str, float]], at: float = 0.0
) -> Foresight:
    """What an operator says that comes, by VM type and priority in an hour, instead of what history tells."""
    if not given:
        raise InvalidInput("arrivals", "are none", "name a VM type, a priority and how many come in an hour")
    for name, by_band in given.items():
        zone.vm_type(name, f"arrivals.{name}")
        if not by_band:
            raise InvalidInput(f"arrivals.{name}", "has no priority", f"use one of {', '.join(zone.bands)}")
        for band, rate in by_band.items():
            where = f"arrivals.{name}.{band}"
            if band not in zone.bands:
                raise UnknownName(where, "priority band", band, zone.bands)
            if not 0 <= rate <= MOST:
                raise InvalidInput(where, f"is {plain(rate)}", f"use a number of VMs an hour from 0 to {MOST:,.0f}")
    said = Foresight(at=at, arrivals={}, ahead={}, given=given)
    found = foresee(zone, machines, said.given_rates, at)
    return msgspec.structs.replace(found, given=given)


def _alike(zone: Zone, rates: Mapping[tuple[str, str], float]) -> dict[str, str]:
    """For each type the one that stands for it: itself, if it is among those that come most often."""
    often: dict[str, float] = {}
    for (vm_type, _), rate in rates.items():
        often[vm_type] = often.get(vm_type, 0.0) + rate
    known = sorted(often, key=lambda name: (-often[name], name))
    kept = known[:TYPES]
    capacity = np.array([generation.capacity for generation in zone.generations], np.float64)
    shares = {name: zone.demand[zone.vm_type(name)] / np.maximum(capacity, 1.0) for name in known}
    return {name: min(kept, key=lambda other: float(np.abs(shares[name] - shares[other]).sum())) for name in known}


def _offering(zone: Zone, machines: NDArray[np.void], vm_type: str) -> NDArray[np.void]:
    """The machines of clusters that take a type."""
    offered: NDArray[np.void] = machines[zone.clusters["supports"][machines["cluster"], zone.vm_type(vm_type)] != 0]
    return offered


def _ahead(zone: Zone, machines: NDArray[np.void], vm_type: int) -> list[float]:
    need = zone.demand[vm_type][machines["generation"]].astype(np.int64)
    capacity, highest = machines["capacity"].astype(np.int64), machines["free"][:, 0].astype(np.int64)
    lowest = machines["free"][:, -1].astype(np.int64)
    weights = np.array([SCARCITY.get(resource.name, 0.0) for resource in zone.resources])
    share = np.divide(highest, capacity, out=np.zeros(capacity.shape), where=capacity > 0)
    weight = (weights * (capacity > 0)).sum(axis=1)
    left = np.divide((weights * share).sum(axis=1), weight, out=np.zeros(len(weight)), where=weight > 0)
    left -= zone.clusters["takes"][machines["cluster"], vm_type]  # as `danger` has it
    packing = np.clip(np.ceil((PACKINGS - 2) * left).astype(np.int64), 0, PACKINGS - 2)
    packing[(highest == capacity).all(axis=1)] = PACKINGS - 1
    fit, clean = _fitting(highest, need), _fitting(lowest, need)
    in_all = np.bincount(packing, fit, PACKINGS)
    in_clean = np.bincount(packing, np.minimum(fit, clean), PACKINGS)
    before = np.concatenate(([0.0], np.cumsum(in_all)[:-1]))
    # Of those where somebody has to give way, half come before any one of them.
    found: list[float] = (before + in_clean + (in_all - in_clean) / 2).round(DIGITS).tolist()
    return found


def _fitting(free: NDArray[np.int64], need: NDArray[np.int64]) -> NDArray[np.int64]:
    """How many VMs fit in what is free."""
    most = np.where(need > 0, np.maximum(free, 0) // np.maximum(need, 1), np.iinfo(np.int32).max)
    fit: NDArray[np.int64] = most.min(axis=1)
    return fit


def table_of(foresight: Foresight | None, zone: Zone) -> NDArray[np.void]:
    """What is foreseen as rules read it; nothing, if nothing is. What the zone does not know is left out."""
    bands, table = len(zone.bands), np.zeros(1, foresight_type(len(zone.bands), len(zone.vm_types)))
    arrivals, ahead = table[0]["arrivals"], table[0]["ahead"]
    if foresight is not None:
        for name, by_band in foresight.arrivals.items():
            if (t := zone.vm_type_index.get(name)) is not None and len(by_band) == bands:
                arrivals[1:, t] = np.cumsum(by_band)[:-1]
                ahead[t] = foresight.ahead[name]
    return table


def decode(value: str | None) -> Foresight | None:
    """From the registry."""
    return None if value is None else msgspec.json.decode(value, type=Foresight)


def encode(foresight: Foresight) -> str:
    """For the registry."""
    return msgspec.json.encode(foresight).decode()
