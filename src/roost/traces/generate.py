"""Workloads by seed, with the statistics that Protean (OSDI'20, §2.2) reports for real zones.

- Types and cores as in Tables 2 and 3 (see `type_mix`), lifetimes as in Fig. 5 (`lifetimes`), arrivals as in Figs. 3
  and 4 (`arrivals`).
- Requests repeat themselves: over 80 % of the VMs are of the type that was asked for just before (Fig. 2).
- Tenants: 94 % ask for one VM, 99 % for five or fewer, a few for hundreds. The VMs of a request are of one type and
  priority, and leave together.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from roost.model.errors import InvalidInput
from roost.model.request import VM, Constraints, Request
from roost.model.spans import DAY
from roost.model.zone import DEFAULT_BANDS, Zone
from roost.traces.arrivals import Spikes, draw_arrivals
from roost.traces.lifetimes import SERVICES, draw_lifetimes, mean_lifetime, mean_within
from roost.traces.names import Numbered
from roost.traces.standing import STAYS_FOR_SPANS
from roost.traces.type_mix import TypeMix, protean_mix, zone_column, zone_mix
from roost.traces.workload import Workload

if TYPE_CHECKING:
    from numpy.typing import NDArray

SAME_TYPE_AGAIN = 0.8  # of the requests; the others draw anew
TENANT_SIZES = ((0.94, 1, 1), (0.99, 2, 5), (0.9998, 6, 40), (1.0, 100, 300))  # up to this share: from, to
SPIKE_PEAK = 120.0  # times the mean rate: 2,800 requests a second in a zone of two million a day
SPIKES_AT_MOST = 0.5  # of the requests
MOST_REQUESTS = 200_000_000
BLOCK = 4_096  # requests that the endless stream draws at a time


class WorkloadShape(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a generated workload is like. Shares are from 0 to 1."""

    mix: str = "zone1"  # whose types and cores: zone1 or zone2 of Protean's tables
    days: float = 7.0  # how long requests come, from a Monday on
    requests_per_day: float = 20_000.0  # mean over these days
    stays: float = 0.003  # share of the requests whose VMs never leave
    services: float = SERVICES  # share of the others whose VMs run for days and weeks
    spot: float = 0.1  # share of the requests at low priority
    spread: float = 0.5  # share of the requests for several VMs that ask for fault domains
    daily: float = 0.35  # how much busier than the mean the afternoon is, and how much quieter the night
    weekly: float = 0.25  # how much quieter a week-end is
    spikes_per_day: float = 24.0
    spike_seconds: int = 5  # that each lasts
    spike_peak: float = 0.0  # requests a second of the highest; 0: 120 times the mean rate

    def __post_init__(self) -> None:
        zone_column(self.mix)
        for name in ("stays", "services", "spot", "spread", "daily", "weekly"):
            _within(name, getattr(self, name), 0.0, 1.0)
        _within("days", self.days, 1e-4, 10_000)
        _within("requests_per_day", self.requests_per_day, 1e-3, MOST_REQUESTS)
        _within("spikes_per_day", self.spikes_per_day, 0, 10_000)
        _within("spike_peak", self.spike_peak, 0, 1e6)
        if not isinstance(self.spike_seconds, int) or not 1 <= self.spike_seconds <= DAY:
            raise InvalidInput("spike_seconds", f"is {self.spike_seconds!r}", "use a whole number from 1 to 86,400")
        if self.requests > MOST_REQUESTS:
            raise InvalidInput("days", f"and requests_per_day make {self.requests:,} requests", "ask for fewer")
        if self.spikes.requests > SPIKES_AT_MOST * max(self.requests, 1_000):
            problem = f"{self.spikes.requests:,.0f} of {self.requests:,} requests would come in spikes"
            raise InvalidInput("spikes_per_day", problem, "ask for fewer, shorter or lower spikes")

    @property
    def span(self) -> float:
        """Seconds."""
        return self.days * DAY

    @property
    def requests(self) -> int:
        """How many there will be."""
        return max(1, round(self.days * self.requests_per_day))

    @property
    def spikes(self) -> Spikes:
        """Those of the whole workload."""
        peak = self.spike_peak or SPIKE_PEAK * self.requests_per_day / DAY
        return Spikes(round(self.spikes_per_day * self.days), peak, self.spike_seconds)


@dataclass(frozen=True)
class Wishes:
    """What each of some requests asks for."""

    type: NDArray[np.int32]
    size: NDArray[np.int64]
    spot: NDArray[np.bool_]
    spread: NDArray[np.bool_]


def generate(shape: WorkloadShape, seed: int, zone: Zone | None = None) -> Workload:
    """A workload of that shape; of the types that `zone` offers, or of those that suit synthetic zones."""
    rng = _generator(seed)
    mix = _mix_of(shape, zone)
    arrival = draw_arrivals(rng, shape.requests, shape.span, shape.daily, shape.weekly, shape.spikes)
    wishes = draw_wishes(rng, mix.weights, shape.requests, shape)
    lifetime = draw_lifetimes(rng, shape.requests, shape.stays, shape.services)
    spreading = np.flatnonzero(wishes.spread)
    constraints = map(spread_out, wishes.size[spreading].tolist())
    return Workload(
        name=f"generated-{shape.mix}-{seed}",
        types=mix.types,
        resources=mix.resources,
        arrival=arrival,
        first=np.concatenate(([0], np.cumsum(wishes.size))),
        type=np.repeat(wishes.type, wishes.size),
        lifetime=np.repeat(lifetime, wishes.size),
        tenants=Numbered("tenant-", shape.requests),
        priority=np.repeat(wishes.spot.astype(np.int8), wishes.size),
        priorities=("", zone.bands[-1] if zone else DEFAULT_BANDS[-1]),
        constraints=dict(zip(spreading.tolist(), constraints, strict=True)),
        source=f"generated after Protean (OSDI'20, §2.2), {shape.mix}, seed {seed}",
    )


def requests(zone: Zone, seed: int) -> Iterator[Request]:
    """An endless stream of requests for VM types of the zone, by seed."""
    rng, shape, number = _generator(seed), WorkloadShape(), 0
    mix = zone_mix(zone, shape.mix)
    last = None
    while True:
        wishes = draw_wishes(rng, mix.weights, BLOCK, shape, last)
        last = int(wishes.type[-1])
        columns = (wishes.type, wishes.size, wishes.spot, wishes.spread)
        for kind, size, spot, spread in zip(*(column.tolist() for column in columns), strict=True):
            number += 1
            vm = VM(mix.types[kind].name, priority=zone.bands[-1 if spot else 0])
            yield Request(f"tenant-{number}", (vm,) * size, spread_out(size) if spread else None)


def rate_for(
    shape: WorkloadShape, cores: float, utilisation: float, *, filled: bool = False, zone: Zone | None = None
) -> float:
    """Requests a day with which a share of so many cores is in use, on average over the run (Little's law).

    The run begins with nothing, and VMs that stay pile up; or, if the zone is `filled` first (see `standing`), at this
    utilisation already, which then neither rises nor falls.
    """
    _within("utilisation", utilisation, 1e-6, 1.0)
    _within("cores", cores, 1e-6, 1e12)
    per_request = _mix_of(shape, zone).mean_cores * mean_tenant_size()
    limit = STAYS_FOR_SPANS * shape.span
    stays, services = shape.stays, shape.services
    seconds = mean_lifetime(stays, limit, services) if filled else mean_within(stays, shape.span, services)
    return cores * utilisation / (per_request * seconds) * DAY


def draw_wishes(
    rng: np.random.Generator, weights: NDArray[np.float64], count: int, shape: WorkloadShape, last: int | None = None
) -> Wishes:
    """What so many requests in a row ask for; `last` is the type that was asked for before them."""
    fresh = rng.random(count) >= SAME_TYPE_AGAIN
    fresh[0] |= last is None
    drawn = np.searchsorted(np.cumsum(weights)[:-1], rng.random(int(fresh.sum())), side="right")
    kinds = np.concatenate(([last or 0], drawn)).astype(np.int32)[np.cumsum(fresh)]
    shares, low, high = np.array(TENANT_SIZES).T
    band = np.searchsorted(shares[:-1], rng.random(count), side="right")
    size = (low[band] + np.floor(rng.random(count) * (high - low + 1)[band])).astype(np.int64)
    spot = rng.random(count) < shape.spot
    return Wishes(kinds, size, spot, (size > 1) & (rng.random(count) < shape.spread))


@cache
def spread_out(size: int) -> Constraints:
    """What a tenant of so many VMs asks for that wants to survive a rack."""
    return Constraints(min_fault_domains=min(3, size), max_per_machine=max(1, size // 3))


def mean_tenant_size() -> float:
    """VMs of a request."""
    shares, low, high = np.array(TENANT_SIZES).T
    return float(np.diff(shares, prepend=0.0) @ ((low + high) / 2))


def _mix_of(shape: WorkloadShape, zone: Zone | None) -> TypeMix:
    return zone_mix(zone, shape.mix) if zone else protean_mix(shape.mix)


def _generator(seed: int) -> np.random.Generator:
    if not isinstance(seed, int) or seed < 0:
        raise InvalidInput("seed", f"is {seed!r}", "use a whole number from 0 on")
    return np.random.Generator(np.random.PCG64(seed))


def _within(name: str, value: float, low: float, high: float) -> None:
    if not isinstance(value, int | float) or isinstance(value, bool) or not low <= value <= high:
        raise InvalidInput(name, f"is {value!r}", f"use a number from {low:,} to {high:,}")
