"""Thresholds from history: as many empty machines as keep scale-outs and healing from failing too often.

new        where new deployments stop    =  scale_out + what the tenants of a cluster grow by in a window
scale_out  where scale-outs stop         =  healing + machines that are down at once + turn space, for moves
healing    where healing stops           =  0: it may use the last one
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from roost.admission.buffers import down_at_once, enough_for, machines_for, seen_at_once
from roost.admission.history import ClusterHistory, ZoneHistory
from roost.model.errors import InvalidInput
from roost.model.spans import DAY, HOUR
from roost.model.thresholds import Thresholds

SHORTEST_WINDOW = 0.1  # hours: years of them can still be counted one by one
LEAST, MOST = 1e-9, 1e5  # that rates and times can be


class Targets(msgspec.Struct, frozen=True, kw_only=True):
    """How often it may fail, and what history does not tell."""

    healing: float = 0.001  # the share of the time in which more machines are down than are kept for healing
    scale_out: float = 0.01  # the share of the windows in which tenants grow by more than is kept for it
    failures_per_day: float | None = None  # of a machine, a day that it is up; None: as often as was seen
    repair_hours: float | None = None  # that a machine is down; None: as long as was seen
    window_hours: float = 24.0  # that tenants must be able to grow, after new deployments have stopped
    turn_space: int = 0  # machines for moves: drained for an update, or to pack better

    def __post_init__(self) -> None:
        for name in ("healing", "scale_out"):
            if not 0 < getattr(self, name) < 1:
                raise InvalidInput(f"targets.{name}", f"is {getattr(self, name)}", "use a share above 0 and below 1")
        for name, least in (("failures_per_day", LEAST), ("repair_hours", LEAST), ("window_hours", SHORTEST_WINDOW)):
            value = getattr(self, name)
            if value is not None and not least <= value <= MOST:
                raise InvalidInput(f"targets.{name}", f"is {value}", f"use a number from {least} to {MOST:,.0f}")
        if self.turn_space < 0:
            raise InvalidInput("targets.turn_space", f"is {self.turn_space}", "use a whole number of machines")


class Computed(msgspec.Struct, frozen=True, kw_only=True):
    """The thresholds of a cluster, and what they rest on."""

    cluster: str
    machines: int
    thresholds: Thresholds
    for_healing: int  # machines that are kept for it
    for_growth: int
    failures: int  # of machines of this cluster, seen
    failures_per_day: float  # of a machine of this hardware, a day that it is up
    repair_hours: float
    windows: int
    most_growth: int  # machines, in the window with most of it

    @property
    def takes_new(self) -> bool:
        """Whether the cluster would ever take a new deployment: not if all of its machines are kept from them."""
        return self.thresholds.new < self.machines or not self.thresholds.new


def compute(history: ZoneHistory, targets: Targets) -> list[Computed]:
    """Thresholds for each cluster; none is above the number of its machines."""
    found = []
    rates = {each.generation: _rate(history, each.generation, targets) for each in history.clusters}
    for each in history.clusters:
        rate, repair = rates[each.generation]
        healing = down_at_once(each.machines, rate, repair, targets.healing)
        if targets.failures_per_day is None and history.until > history.since:
            healing = max(healing, seen_at_once(each.outages, history.since, history.until, targets.healing))
        demands = _demands(each, history, targets.window_hours * HOUR)
        growth = enough_for(demands, targets.scale_out)
        scale_out = min(each.machines, healing + targets.turn_space)
        found.append(
            Computed(
                cluster=each.cluster,
                machines=each.machines,
                thresholds=Thresholds(new=min(each.machines, scale_out + growth), scale_out=scale_out),
                for_healing=healing,
                for_growth=growth,
                failures=len(each.outages),
                failures_per_day=rate,
                repair_hours=repair * DAY / HOUR,
                windows=len(demands),
                most_growth=max(demands),
            )
        )
    return found


def _rate(history: ZoneHistory, generation: str, targets: Targets) -> tuple[float, float]:
    """Failures of a machine a day that it is up, and the days that one takes. Machines of a kind count together."""
    alike = [each for each in history.clusters if each.generation == generation]
    outages = [outage for each in alike for outage in each.outages]
    rate, repair = targets.failures_per_day, targets.repair_hours
    if rate is None:
        days = sum(each.machines for each in alike) * (history.until - history.since) / DAY
        up = days - sum(ended - began for began, ended in outages) / DAY
        rate = len(outages) / max(up, len(outages) / MOST) if outages else 0.0
    if repair is None:
        if rate > 0 and not outages:
            problem = f"no machine of {generation} failed as far back as is known, so nobody knows"
            raise InvalidInput("targets.repair_hours", problem, "say how long a repair takes")
        repair = _mean([ended - began for began, ended in outages]) / HOUR
    return rate, repair * HOUR / DAY


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def _demands(cluster: ClusterHistory, history: ZoneHistory, window: float) -> list[int]:
    """Empty machines that scale-outs would have filled, window by window back from the end; one at least."""
    number = max(1, int((history.until - history.since) / window))
    taken: list[list[float]] = [[] for _ in range(number)]
    for at, shares in cluster.growth:
        which = int((history.until - at) / window)
        if 0 <= which < number:
            taken[which] += shares
    return [machines_for(shares) for shares in taken]
