"""What a run measures, worked out again from what was written down of it: slowly, one event after another.

Nothing here is shared with what keeps count in a run. It holds for runs whose agents have one round under way at a
time, and which end when everything is done.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from roost.agent.verbs.place import PlaceVMs
from roost.model.change import PlacedVM
from roost.model.zone import Zone
from roost.store.contract import Committed, Conflict, Decline, Place, Release, SetCondition
from tests.property.zones import TINY
from tests.scenario.simulated import KINDS, Watched

RESOURCES = ("cores", "memory")
CAPACITY = {generation.name: generation.capacity for generation in TINY.generations}
DEMAND = {kind.name: kind.demand for kind in TINY.vm_types}
STATUS = {"done": "placed", "declined": "declined", "conflicts": "gave_up", "invalid": "invalid"}


Running = tuple[str, str, str, str]  # the name, type, machine and priority of a VM


@dataclass(frozen=True)
class Answered:
    """A request to place VMs, when it was answered."""

    at: float
    vms: int
    status: str
    retries: int


def _running(vm: PlacedVM) -> Running:
    return vm.vm, vm.spec.type, vm.machine, vm.spec.priority


class Replay:
    """A run, again."""

    def __init__(self, watched: Watched, zone: Zone, arrivals: Sequence[float], **what: Any) -> None:
        """`what`: of the experiment, in seconds: until, sample, bin, warm_up, half a commit, and whether it fills."""
        self.watched, self.zone, self.arrivals = watched, zone, arrivals
        self.until, self.sample, self.bin = what["until"], what["sample"], what["bin"]
        self.warm_up, self.half, self.filled = what["warm_up"], what["half"], what["filled"]
        generations = [generation.name for generation in TINY.generations]
        numbers = zone.machines["generation"].tolist()
        self.generation = {name: generations[numbers[i]] for i, name in enumerate(zone.machine_names)}
        workload = watched.simulation.workload
        self.kinds = {workload.types[t].name for t in workload.type.tolist()}
        self.asked = [
            Answered(seen.at, len(seen.operation.request.vms), STATUS[seen.answer.status], seen.answer.retries)
            for seen in watched.answers
            if isinstance(seen.operation, PlaceVMs)
        ]
        self.lost = [  # when an agent learnt that it had lost a race
            commit.at + self.half
            for commit in watched.commits
            for proposal, outcome in zip(commit.proposals, commit.outcomes, strict=True)
            if isinstance(proposal, Place) and isinstance(outcome, Conflict)
        ]
        self.gave_way = [
            commit.at
            for commit in watched.commits
            for proposal, outcome in zip(commit.proposals, commit.outcomes, strict=True)
            if isinstance(proposal, Place) and isinstance(outcome, Committed)
            for _ in proposal.victims
        ]
        self.tried = [
            commit.at + self.half for commit in watched.commits for p in commit.proposals if isinstance(p, Place)
        ]

    # ----------------------------------------------------------------------------------------------- at a moment

    def running(self, until: float) -> list[Running]:
        """The name, type, machine and priority of each VM, by what was committed until then."""
        found: list[Running] = []
        for commit in self.watched.commits:
            if commit.at > until:
                continue
            for proposal, outcome in zip(commit.proposals, commit.outcomes, strict=True):
                if not isinstance(outcome, Committed):
                    continue
                if isinstance(proposal, Place):
                    for victim in proposal.victims:
                        found.remove(_running(victim.vm))
                    found += map(_running, proposal.placed)
                elif isinstance(proposal, Release):
                    for gone in proposal.released:
                        found.remove(_running(gone))
        return found

    def used(self, vms: Sequence[Running], machine: str) -> list[int]:
        """What VMs take of a machine, by resource."""
        total = [0, 0]
        for _, kind, home, _ in vms:
            if home == machine:
                for r in range(2):
                    total[r] += DEMAND[kind][self.generation[machine]][r]
        return total

    def too_full(self, free: Sequence[int], generation: str) -> bool:
        """No VM type that is asked for fits any more."""
        for kind in KINDS:
            demand = DEMAND[kind].get(generation)
            if kind in self.kinds and demand and demand[0] <= free[0] and demand[1] <= free[1]:
                return False
        return True

    def timeline(self) -> list[dict[str, float]]:
        """A row for each sample."""
        times = [-1.0] if self.filled else []
        times += [k * self.sample for k in range(int(self.until / self.sample) + 1)]
        return [self._row(time, before) for before, time in zip([-math.inf, *times], times, strict=False)]

    def _row(self, time: float, before: float) -> dict[str, float]:
        vms = self.running(time)
        highest = [vm for vm in vms if vm[3] in ("", TINY.bands[0])]
        total, whole, busy, stranded = [0, 0], [0, 0], [0, 0], [0, 0]
        empty = of_highest = busy_highest = 0
        for machine, generation in self.generation.items():
            used, capacity = self.used(vms, machine), CAPACITY[generation]
            free = [capacity[r] - used[r] for r in range(2)]
            hosts = any(home == machine for _, _, home, _ in vms)
            of_highest += self.used(highest, machine)[0]
            busy_highest += capacity[0] if any(home == machine for _, _, home, _ in highest) else 0
            for r in range(2):
                total[r] += used[r]
                whole[r] += capacity[r]
            if not hosts:
                empty += 1
                continue
            for r in range(2):
                busy[r] += capacity[r]
                stranded[r] += free[r] if self.too_full(free, generation) else 0
        lately = [each for each in self.asked if before < each.at <= time]
        placed = [each for each in lately if each.status == "placed"]
        row = {
            "time_s": time,
            "warm": 1 if time >= self.warm_up else 0,
            "utilisation": total[0] / whole[0],
            "density": total[0] / busy[0] if busy[0] else 0.0,
            "empty_machines": empty,
            "machines_down": self._down(time),
            "vms": len(vms),
            "vms_lower": len(vms) - len(highest),
            "utilisation_highest": of_highest / whole[0],
            "density_highest": of_highest / busy_highest if busy_highest else 0.0,
            "evictions": sum(before < at <= time for at in self.gave_way),
            "requests": len(lately),
            "placed": len(placed),
            "declined": sum(each.status == "declined" for each in lately),
            "gave_up": sum(each.status == "gave_up" for each in lately),
            "vms_asked": sum(each.vms for each in lately),
            "vms_placed": sum(each.vms for each in placed),
            "conflicts": sum(before < at <= time for at in self.lost),
            "retries": sum(each.retries for each in lately),
            "cache_hits": self._decisions(before, time, lambda hits, _all, _updated: hits),
            "cache_misses": self._decisions(before, time, lambda hits, all_, _updated: all_ - hits),
            "updated": self._decisions(before, time, lambda _hits, _all, updated: updated),
        }
        for r, name in enumerate(RESOURCES):
            row[f"used_{name}"] = total[r] / whole[r]
            row[f"density_{name}"] = total[r] / busy[r] if busy[r] else 0.0
            row[f"stranded_{name}"] = stranded[r] / whole[r]
        return row

    def _down(self, time: float) -> int:
        """Machines that have failed, where failures are told of at once."""
        state: dict[str, int] = {}
        for commit in self.watched.commits:
            for proposal in commit.proposals:
                if isinstance(proposal, SetCondition) and commit.at <= time:
                    state[proposal.machine] = proposal.condition["state"]
        return sum(each == 2 for each in state.values())

    def _decisions(self, before: float, time: float, which: Callable[[int, int, int], int]) -> int:
        """Sums over decisions: hits, VMs decided, machines looked at. The one that is not found counts, too."""
        total = 0
        for commit in self.watched.commits:
            for proposal in commit.proposals:
                if isinstance(proposal, Place | Decline) and before < proposal.record.at <= time:
                    record = proposal.record
                    decided = len(proposal.placed) if isinstance(proposal, Place) else len(record.found) + 1
                    total += which(record.hits, decided, record.updated)
        return total

    # ---------------------------------------------------------------------------------------------------- over time

    def rates(self) -> list[dict[str, float]]:
        """A row for each bin."""
        placed = [each for each in self.asked if each.status == "placed" and each.at >= 0]
        moments = [*self.arrivals, *(each.at for each in placed), *self.lost]
        moments += [each.at for each in self.asked if each.retries]
        bins = math.ceil(self.until / self.bin)
        while any(at >= bins * self.bin for at in moments):
            bins += 1
        found = []
        for k in range(bins):
            low, high = k * self.bin, (k + 1) * self.bin
            here = [each for each in placed if low <= each.at < high]
            found.append(
                {
                    "time_s": low,
                    "warm": 1 if low >= self.warm_up else 0,
                    "arrivals": sum(low <= at < high for at in self.arrivals),
                    "placed": len(here),
                    "vms_placed": sum(each.vms for each in here),
                    "conflicts": sum(low <= at < high for at in self.lost),
                    "retries": sum(each.retries for each in self.asked if low <= each.at < high),
                }
            )
        return found

    def summary(self, requests: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
        """The measures. `requests`: the log of the run."""
        rows = [row for row in self.timeline() if row["warm"]]
        bins = [each for each in self.rates() if each["warm"]]
        own = [each for each in requests if each["request"] >= 0 and each["time_s"] >= self.warm_up]
        placed = [each for each in own if each["status"] == "placed"]
        first = bins[0]["time_s"] if bins else self.until
        minutes: dict[int, list[float]] = {}
        for each in bins:
            sums = minutes.setdefault(int(each["time_s"] // 60), [0, 0])
            sums[0] += each["conflicts"]
            sums[1] += each["retries"]
        counting = rows if self.warm_up == 0 else rows[1:]  # the first counts what came since a row before the warm-up
        hits, misses = (sum(row[name] for row in counting) for name in ("cache_hits", "cache_misses"))
        conflicts = sum(each["conflicts"] for each in bins)
        tried = sum(at // self.bin * self.bin >= self.warm_up for at in self.tried if at >= 0)
        queued, took = ([each[name] for each in own] for name in ("queued_s", "latency_s"))
        return {
            "density": mean([row["density"] for row in rows]),
            "utilisation": mean([row["utilisation"] for row in rows]),
            "utilisation_highest": mean([row["utilisation_highest"] for row in rows]),
            "density_highest": mean([row["density_highest"] for row in rows]),
            "evictions": sum(row["evictions"] for row in counting),
            "evictions_per_vm_hour": ratio(
                sum(row["evictions"] for row in counting),
                (mean([row["vms_lower"] for row in rows]) or 0.0) * (self.until - self.warm_up) / 3_600,
            ),
            "peak_utilisation": max((row["utilisation"] for row in rows), default=None),
            "empty_machines": mean([row["empty_machines"] for row in rows]),
            "fewest_empty_machines": min((row["empty_machines"] for row in rows), default=None),
            "vms": mean([row["vms"] for row in rows]),
            "requests": len(own),
            "acceptance": ratio(len(placed), len(own)),
            "fulfilment": ratio(sum(each["vms"] for each in placed), sum(each["vms"] for each in own)),
            "declined": sum(each["status"] == "declined" for each in own),
            "gave_up": sum(each["status"] == "gave_up" for each in own),
            "invalid": sum(each["status"] == "invalid" for each in own),
            "vms_placed": sum(each["vms"] for each in placed),
            "throughput": ratio(sum(each["vms_placed"] for each in bins), self.until - first),
            "peak_throughput": ratio(max(each["vms_placed"] for each in bins), self.bin) if bins else None,
            "conflicts": conflicts,
            "conflict_ratio": ratio(conflicts, tried),
            "conflicts_per_minute_p99": rank([each[0] for each in minutes.values()], 99),
            "retries_per_minute_p99": rank([each[1] for each in minutes.values()], 99),
            "queueing_mean": mean(queued),
            "queueing_p99": rank(queued, 99),
            "latency_mean": mean(took),
            "latency_p50": rank(took, 50),
            "latency_p99": rank(took, 99),
            "cache_hit_ratio": ratio(hits, hits + misses),
            "updates_per_decision": ratio(sum(row["updated"] for row in counting), hits + misses),
            **{f"stranded_{name}": mean([row[f"stranded_{name}"] for row in rows]) for name in RESOURCES},
        }


def mean(values: Sequence[float]) -> float | None:
    """None of nothing."""
    return sum(values) / len(values) if values else None


def ratio(part: float, whole: float) -> float | None:
    """None of nothing."""
    return part / whole if whole else None


def rank(values: Sequence[float], percent: int) -> float | None:
    """The lowest value that so many percent do not exceed."""
    for value in sorted(values):
        if sum(each <= value for each in values) * 100 >= percent * len(values):
            return value
    return None
