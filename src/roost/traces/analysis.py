"""What a workload is like: the figures and tables of Protean's §2.2 (OSDI'20), for any workload."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from roost.model.errors import InvalidInput
from roost.model.spans import DAY, HOUR
from roost.traces.workload import Workload

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Table 3's rows; amounts between two of them count to the larger, so that every VM is in one.
CORE_CLASSES = {"1": 1.0, "2": 2.0, "4": 4.0, "8": 8.0, "10–19": 19.999, "≥ 20": np.inf}  # up to so many cores
HOURS_OF_WEEK = 7 * 24
INTERVAL = 300  # seconds, of which the busiest second is told
LIFETIME_QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99)
CDF_POINTS = 200
FIRST = -1  # the reuse distance of a type that was not asked for before


@dataclass(frozen=True)
class Analysis:
    """All of it. Shares are from 0 to 1, of VMs unless it says otherwise; times are in seconds."""

    name: str
    source: str
    requests: int
    vms: int
    span: float
    type_shares: Mapping[str, float]  # the most common first
    type_cores: Mapping[str, float]  # of those for which the workload tells it
    core_shares: Mapping[str, float]  # by the rows of Table 3; empty if it tells none
    mean_cores: float  # of a VM; 0 likewise
    reuse_shares: NDArray[np.float64]  # of the VMs whose type came before, by distance
    hourly_mean: NDArray[np.float64]  # requests in each hour of the week; NaN where the workload has none
    hourly_std: NDArray[np.float64]  # over the weeks
    busiest_day: int  # from 0
    busiest_seconds: NDArray[np.int64]  # requests in the busiest second of each five minutes of that day
    lifetime_at: NDArray[np.float64]  # times at which the distribution is told
    lifetime_shares: NDArray[np.float64]  # of VMs that have ended by then
    lifetime_quantiles: Mapping[float, float]  # by share
    stays: float  # share that never ends
    sizes: Mapping[int, float]  # share of the requests, by how many VMs they ask for

    def share_of_sizes(self, low: int, high: float = np.inf) -> float:
        """Share of the requests that ask for so many VMs."""
        return sum(share for size, share in self.sizes.items() if low <= size <= high)

    @property
    def facts(self) -> dict[str, object]:
        """Everything, as plain values for programs."""
        return {
            "name": self.name,
            "source": self.source,
            "requests": self.requests,
            "vms": self.vms,
            "span_s": self.span,
            "mean_cores": self.mean_cores,
            "type_shares": dict(self.type_shares),
            "type_cores": dict(self.type_cores),
            "core_shares": dict(self.core_shares),
            "reuse_distance_shares": self.reuse_shares.tolist(),
            "requests_by_hour_of_week": [None if np.isnan(x) else x for x in self.hourly_mean.tolist()],
            "requests_by_hour_of_week_std": [None if np.isnan(x) else x for x in self.hourly_std.tolist()],
            "busiest_day": self.busiest_day,
            "busiest_seconds_of_5_minutes": self.busiest_seconds.tolist(),
            "lifetime_quantiles_s": {f"{q:g}": None if np.isinf(s) else s for q, s in self.lifetime_quantiles.items()},
            "lifetimes_s": self.lifetime_at.tolist(),
            "ended_by_lifetime": self.lifetime_shares.tolist(),
            "stays": self.stays,
            "tenant_sizes": {str(size): share for size, share in self.sizes.items()},
        }


def analyse(workload: Workload) -> Analysis:
    """Look at all of a workload."""
    if not workload.requests:
        raise InvalidInput(workload.name, "is empty", "a workload has at least one request")
    cores = _cores(workload)
    hourly_mean, hourly_std = requests_by_hour(workload)
    busiest_day, busiest_seconds = busiest_seconds_of(workload)
    lifetime_at, lifetime_shares = lifetime_distribution(workload)
    return Analysis(
        name=workload.name,
        source=workload.source,
        requests=workload.requests,
        vms=workload.vms,
        span=workload.span,
        type_shares=type_shares(workload),
        type_cores=type_cores(workload),
        core_shares=core_shares(workload),
        mean_cores=float(np.mean(cores)) if len(cores) else 0.0,
        reuse_shares=reuse_shares(workload),
        hourly_mean=hourly_mean,
        hourly_std=hourly_std,
        busiest_day=busiest_day,
        busiest_seconds=busiest_seconds,
        lifetime_at=lifetime_at,
        lifetime_shares=lifetime_shares,
        lifetime_quantiles=lifetime_quantiles(workload),
        stays=float(np.isinf(workload.lifetime).mean()),
        sizes=tenant_sizes(workload),
    )


def type_shares(workload: Workload) -> dict[str, float]:
    """Of each type that is asked for, the most common first: Table 2."""
    counts = np.bincount(workload.type, minlength=len(workload.types))
    order = np.argsort(-counts, kind="stable")
    return {workload.types[t].name: float(counts[t] / workload.vms) for t in order if counts[t]}


def type_cores(workload: Workload) -> dict[str, float]:
    """The most that each type takes on any hardware, unless the workload leaves that to the zone."""
    if "cores" not in workload.resources:
        return {}
    at = workload.resources.index("cores")
    return {t.name: float(max(d[at] for d in t.demand.values())) for t in workload.types if t.demand}


def core_shares(workload: Workload) -> dict[str, float]:
    """Of each size in cores: Table 3."""
    cores = _cores(workload)
    if not len(cores):
        return {}
    counts = np.bincount(np.searchsorted(list(CORE_CLASSES.values()), cores), minlength=len(CORE_CLASSES))
    return dict(zip(CORE_CLASSES, (counts / len(cores)).tolist(), strict=True))


def reuse_distances(workload: Workload) -> NDArray[np.int32]:
    """For each VM, how many other types were asked for since its type was, or FIRST: Fig. 2.

    The types are kept in the order in which they were last asked for; the distance of a type is its place in it. Only
    where the type changes can it be other than 0.
    """
    kinds = workload.type
    distances = np.zeros(len(kinds), np.int32)
    changes = np.flatnonzero(np.diff(kinds, prepend=-1))
    latest: list[int] = []
    seen: set[int] = set()
    found = []
    for kind in kinds[changes].tolist():
        if kind in seen:
            place = latest.index(kind)
            del latest[place]
        else:
            place = FIRST
            seen.add(kind)
        latest.insert(0, kind)
        found.append(place)
    distances[changes] = found
    return distances


def reuse_shares(workload: Workload) -> NDArray[np.float64]:
    """How common each reuse distance is, among VMs whose type was asked for before."""
    distances = reuse_distances(workload)
    again = distances[distances != FIRST]
    return np.bincount(again, minlength=1) / max(1, len(again))


def requests_by_hour(workload: Workload) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Requests in each hour of a week, mean and standard deviation over the weeks: Fig. 3. Day 0 is a Monday."""
    counts = np.bincount((workload.arrival / HOUR).astype(np.int64)).astype(np.float64)
    counts = counts[: max(1, round(workload.span / HOUR))]  # without a last hour that is mostly cut off
    weeks = -(-len(counts) // HOURS_OF_WEEK)
    by_week = np.full((weeks, HOURS_OF_WEEK), np.nan)
    by_week.flat[: len(counts)] = counts
    there = ~np.isnan(by_week)
    number = np.where(there.any(axis=0), there.sum(axis=0), np.nan)
    mean = np.where(there, by_week, 0.0).sum(axis=0) / number
    squares = np.where(there, (by_week - mean) ** 2, 0.0).sum(axis=0) / number
    return mean, np.sqrt(squares)


def busiest_seconds_of(workload: Workload) -> tuple[int, NDArray[np.int64]]:
    """The day with most requests, and the most that came in any second of each of its five minutes: Fig. 4."""
    day = int(np.bincount((workload.arrival / DAY).astype(np.int64)).argmax())
    low, high = np.searchsorted(workload.arrival, (day * DAY, (day + 1) * DAY))
    seconds = np.bincount((workload.arrival[low:high] - day * DAY).astype(np.int64), minlength=int(DAY))
    return day, seconds.reshape(-1, INTERVAL).max(axis=1)


def lifetime_distribution(workload: Workload) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Times, and the share of VMs that have ended by each: Fig. 5."""
    ended = np.sort(workload.lifetime[np.isfinite(workload.lifetime)])
    longest = float(ended[-1]) if len(ended) else DAY
    at = np.geomspace(1.0, max(longest, 2.0), CDF_POINTS)
    at[-1] = max(longest, 2.0)
    return at, np.searchsorted(ended, at, side="right") / workload.vms


def lifetime_quantiles(workload: Workload) -> dict[float, float]:
    """The time by which each share of the VMs has ended; infinite if so many never do."""
    found = np.quantile(workload.lifetime, LIFETIME_QUANTILES, method="higher")
    return dict(zip(LIFETIME_QUANTILES, found.tolist(), strict=True))


def tenant_sizes(workload: Workload) -> dict[int, float]:
    """How common each number of VMs of a request is."""
    counts = np.bincount(workload.sizes)
    return {int(size): float(counts[size] / workload.requests) for size in np.flatnonzero(counts)}


def _cores(workload: Workload) -> NDArray[np.float64]:
    """Of each VM of which it is known."""
    cores = workload.amounts("cores") if "cores" in workload.resources else np.empty(0)
    return cores[cores > 0]
