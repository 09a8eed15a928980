"""Keeps count during a run: what is used of each machine, and what came of requests; samples it, and sums it up."""

from __future__ import annotations

import math
import struct
from array import array
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from roost.engine.funnel import Stage
from roost.model.stranded import Stranding
from roost.model.zone import Zone
from roost.sim.measures import RATES, REQUESTS, TIMELINE

if TYPE_CHECKING:
    import polars as pl
    from numpy.typing import NDArray

STATUSES = ("placed", "declined", "gave_up", "invalid")
CODES = "qdqbhddh"  # of the columns of the requests
REQUEST = struct.Struct(f"={CODES}")  # a row of them
REQUEST_TYPE = np.dtype(list(zip(REQUESTS, CODES, strict=True)))
COUNTS = (
    "requests", "placed", "declined", "gave_up", "vms_asked", "vms_placed", "evictions", "retries", "conflicts",
    "cache_hits", "cache_misses", "updated",
)  # fmt: skip
SHARES = {"time_s", "utilisation", "density", "utilisation_highest", "density_highest"}  # no whole numbers
BINNED = ("placed", "vms_placed", "conflicts", "retries")


class FaultCounts(msgspec.Struct):
    """What failures did after the warm-up, and what became of the VMs that they hit."""

    failures: int = 0  # of machines
    displaced: int = 0  # VMs whose machine failed
    healed: int = 0  # of these, those that were placed elsewhere
    returned: int = 0  # and those whose machine came back first
    seconds: list[float] = []  # from the loss of each VM that was healed to its commit elsewhere
    requeued: int = 0  # VMs that were placed again after they had to give way

    @property
    def figures(self) -> dict[str, float | None]:
        """As measures. Who was neither healed nor got its machine back has left, given way, or waited to the end."""
        import polars as pl

        took = pl.Series(self.seconds, dtype=pl.Float64)
        return {
            "machine_failures": self.failures,
            "vms_displaced": self.displaced,
            "vms_healed": self.healed,
            "vms_returned": self.returned,
            "vms_unhealed": self.displaced - self.healed - self.returned,
            "healing_mean": _mean(took),
            "healing_p99": _rank(took, 0.99),
            "vms_requeued": self.requeued,
        }


class CacheUse(NamedTuple):
    """How often decisions found their evaluation cached, how often not, and machines looked at to keep them right."""

    hits: int
    misses: int
    updated: int


class Totals(NamedTuple):
    """What some machines add up to."""

    used: NDArray[np.int64]  # by resource
    stranded: NDArray[np.int64]
    in_use: NDArray[np.int64]  # capacity of the machines that run something
    busy: int  # machines that do
    vms: int
    highest: int  # cores used at the highest priority
    cores_in_highest_use: int  # of the machines that run something at the highest priority
    lower: int  # VMs below it

    def moved(self, before: Totals, after: Totals) -> Totals:
        """When some of the machines add up to something else."""
        return Totals(
            self.used + after.used - before.used,
            self.stranded + after.stranded - before.stranded,
            self.in_use + after.in_use - before.in_use,
            self.busy + after.busy - before.busy,
            self.vms + after.vms - before.vms,
            self.highest + after.highest - before.highest,
            self.cores_in_highest_use + after.cores_in_highest_use - before.cores_in_highest_use,
            self.lower + after.lower - before.lower,
        )


class Tracker:
    """The figures of one run."""

    def __init__(self, zone: Zone, types: Sequence[int], bin_seconds: float, warm_up: float) -> None:
        """`types`: the VM types, by their numbers in the zone, that are asked for."""
        self._bin, self._warm_up = bin_seconds, warm_up
        self._resources, self._cores = [r.name for r in zone.resources], zone.cores_at
        self._capacity = zone.machines["capacity"].astype(np.int64)
        self._generation = zone.machines["generation"].astype(np.int64)
        self._demand = zone.demand.astype(np.int64)
        self._stranding = Stranding(zone, types)
        self._used = np.zeros_like(self._capacity)
        self._vms = np.zeros(len(self._capacity), np.int64)
        self._highest = np.zeros((2, len(self._capacity)), np.int64)  # cores and VMs at the highest priority
        self._stranded = np.zeros_like(self._capacity)
        self._everything = self._capacity.sum(axis=0)
        self._total = self._sum(np.arange(len(self._vms)))
        self._moved = _no_moves()  # since the last sample
        self.down = self.lost = self.waiting = 0  # machines that failed; VMs on these; VMs that gave way and wait
        self.faults = FaultCounts()
        self.migrated: int | None = None  # VMs; None: migrations were not asked for
        self.since = dict.fromkeys(COUNTS, 0)  # the last sample
        self.timeline: dict[str, list[float]] = {name: [] for name in self._timeline_columns()}
        self.rates: dict[str, list[int]] = {name: [] for name in BINNED}
        self._requests = bytearray()  # row after row
        self.commits = 0  # attempts after the warm-up
        self.funnel: dict[str, float] = {}  # by measure: the sum over the requests whose funnel was looked at
        self.funnels = 0  # of these

    def _timeline_columns(self) -> list[str]:
        per_resource = [f"{what}_{r}" for what in ("used", "density", "stranded") for r in self._present()]
        return [*TIMELINE, *per_resource]

    def _present(self) -> list[str]:
        """The resources that the zone has some of."""
        return [name for r, name in enumerate(self._resources) if self._capacity[:, r].any()]

    # ------------------------------------------------------------------------------------------------ counting

    def moved(self, machine: int, vm_type: int, highest: bool, sign: int) -> None:
        """A VM was put on a machine (1), or taken off (-1)."""
        self._moved[0].append(machine)
        self._moved[1].append(sign * (vm_type + 1))
        self._moved[2].append(highest)

    def answered(
        self, request: int, arrived: float, now: float, vms: int, status: int, agent: int, queued: float, retries: int
    ) -> None:
        """A request to place VMs got its answer."""
        self._requests += REQUEST.pack(request, arrived, vms, status, agent, queued, now - arrived, retries)
        since = self.since
        since["requests"] += 1
        since["vms_asked"] += vms
        if status == 0:
            since["placed"] += 1
            since["vms_placed"] += vms
            self.count("placed", now, 1)
            self.count("vms_placed", now, vms)
        elif status < len(STATUSES) - 1:
            since[STATUSES[status]] += 1
        if retries:
            since["retries"] += retries
            self.count("retries", now, retries)

    def committed(self, now: float, attempts: int, conflicts: int) -> None:
        """An agent has tried so many more commits, and lost some of them."""
        if conflicts:
            self.since["conflicts"] += conflicts
            self.count("conflicts", now, conflicts)
        if now // self._bin * self._bin >= self._warm_up:  # in a bin that counts, as conflicts are
            self.commits += attempts

    def cached(self, use: CacheUse) -> None:
        """The caches were used so much more."""
        self.since["cache_hits"] += use.hits
        self.since["cache_misses"] += use.misses
        self.since["updated"] += use.updated

    def displace(self, now: float) -> None:
        """The machine of a VM went down."""
        self.lost += 1
        self.faults.displaced += now >= self._warm_up

    def healed(self, since: float, now: float) -> None:
        """A VM that was lost since then was placed elsewhere; what was lost before the warm-up counts nowhere."""
        self.lost -= 1
        if since >= self._warm_up:
            self.faults.healed += 1
            self.faults.seconds.append(now - since)

    def returned(self, since: float) -> None:
        """The machine of a VM that was lost since then is back, with it."""
        self.lost -= 1
        self.faults.returned += since >= self._warm_up

    def requeued(self, now: float) -> None:
        """A VM that had to give way was placed again."""
        self.waiting -= 1
        self.faults.requeued += now >= self._warm_up

    def count(self, name: str, now: float, number: int) -> None:
        """In the bin of this moment; what happens before the beginning is in none."""
        if now < 0:
            return
        bins, at = self.rates[name], int(now // self._bin)
        if at >= len(bins):
            bins.extend([0] * (at + 1 - len(bins)))
        bins[at] += number

    # ------------------------------------------------------------------------------------------------ sampling

    def narrowed(self, stages: Sequence[Stage]) -> None:
        """How the machine rules of a policy narrowed the zone for one request."""
        candidates = next(stage.kept for stage in stages if stage.kind == "selection")
        if not candidates:
            return
        self.funnels += 1
        found = {"candidates": candidates / len(self._vms)}
        found |= {f"left_by_{each.rule}": each.kept / candidates for each in stages if each.kind == "preference"}
        for name, share in found.items():
            self.funnel[name] = self.funnel.get(name, 0.0) + share

    def sample(self, now: float, queued: int) -> None:
        """A row of the timeline."""
        self._catch_up()
        used, stranded, capacity = self._total.used, self._total.stranded, self._everything
        cores = used[self._cores]
        density = used / np.maximum(self._total.in_use, 1)  # nothing is used where nothing runs
        row: dict[str, float] = {
            **self.since,
            "time_s": now,
            "warm": int(now >= self._warm_up),
            "utilisation": cores / capacity[self._cores],
            "density": density[self._cores],
            "empty_machines": len(self._vms) - self._total.busy,
            "machines_down": self.down,
            "vms": self._total.vms,
            "vms_lost": self.lost,
            "vms_waiting": self.waiting,
            "vms_lower": self._total.lower,
            "utilisation_highest": self._total.highest / capacity[self._cores],
            "density_highest": self._total.highest / max(1, self._total.cores_in_highest_use),
            "queued": queued,
        }
        for r, name in enumerate(self._resources):
            if capacity[r]:
                row[f"used_{name}"] = used[r] / capacity[r]
                row[f"density_{name}"] = density[r]
                row[f"stranded_{name}"] = stranded[r] / capacity[r]
        for column, values in self.timeline.items():
            values.append(float(row[column]))
        self.since = dict.fromkeys(self.since, 0)

    def _catch_up(self) -> None:
        """Bring the machines up to date, and what is stranded on those that changed."""
        machines, what, highest = (
            np.frombuffer(each, np.int32) if each else np.empty(0, np.int32) for each in self._moved
        )
        signs, types = np.sign(what).astype(np.int64), np.abs(what) - 1
        changed = np.unique(machines).astype(np.int64)
        before = self._sum(changed)
        amounts = signs[:, None] * self._demand[types, self._generation[machines]]
        np.add.at(self._used, machines, amounts)
        np.add.at(self._vms, machines, signs)
        np.add.at(self._highest[0], machines, amounts[:, self._cores] * highest)
        np.add.at(self._highest[1], machines, signs * highest)
        self._moved = _no_moves()
        free = self._capacity[changed] - self._used[changed]
        useless = self._stranding.useless(free, self._generation[changed]) & (self._vms[changed] > 0)
        self._stranded[changed] = np.where(useless[:, None], free, 0)
        self._total = self._total.moved(before, self._sum(changed))

    def _sum(self, machines: NDArray[np.int64]) -> Totals:
        """Over some machines."""
        busy = self._vms[machines] > 0
        return Totals(
            self._used[machines].sum(axis=0),
            self._stranded[machines].sum(axis=0),
            self._capacity[machines[busy]].sum(axis=0),
            int(busy.sum()),
            int(self._vms[machines].sum()),
            int(self._highest[0][machines].sum()),
            int(self._capacity[machines[self._highest[1][machines] > 0], self._cores].sum()),
            int((self._vms - self._highest[1])[machines].sum()),
        )

    @property
    def requests(self) -> NDArray[np.void]:
        """Those that were answered so far, in the order of their answers."""
        return np.frombuffer(bytes(self._requests), REQUEST_TYPE)

    def used_of(self) -> NDArray[np.int64]:
        """What is used of each machine."""
        self._catch_up()
        return self._used

    # ------------------------------------------------------------------------------------------------ the result

    def tables(self, arrivals: NDArray[np.float64], until: float) -> dict[str, pl.DataFrame]:
        """Timeline, rates and requests. `arrivals`: when requests of the workload arrived."""
        import polars as pl

        whole = {name for name in self.timeline if name in TIMELINE} - SHARES
        timeline = pl.DataFrame(self.timeline).with_columns(pl.col(sorted(whole)).cast(pl.Int64))
        last = int(arrivals[-1] // self._bin) + 1 if len(arrivals) else 1
        bins = max(last, math.ceil(until / self._bin), *(len(each) for each in self.rates.values()))
        start = np.arange(bins) * self._bin
        rates: dict[str, Any] = {"time_s": start, "warm": (start >= self._warm_up).astype(np.int64)}
        rates["arrivals"] = np.bincount((arrivals // self._bin).astype(np.int64), minlength=bins)
        rates |= {name: np.array([*each, *[0] * (bins - len(each))], np.int64) for name, each in self.rates.items()}
        rows = self.requests
        requests = pl.DataFrame({name: np.ascontiguousarray(rows[name]) for name in REQUESTS}).sort(
            "time_s", "request", maintain_order=True
        )
        names = pl.Series(STATUSES)
        return {
            "timeline": timeline.select(list(self.timeline)),
            "rates": pl.DataFrame(rates).select(list(RATES)),
            "requests": requests.with_columns(status=names.gather(requests["status"].cast(pl.UInt32))),
        }

    def summary(self, tables: Mapping[str, pl.DataFrame], until: float) -> dict[str, float | None]:
        """The measures, of what came after the warm-up."""
        figures = summarise(tables, (self._warm_up, until), self._bin, self.commits) | self.faults.figures
        if self.migrated is not None:
            figures["vms_moved"] = self.migrated
        return figures | {name: total / self.funnels for name, total in self.funnel.items()}

    # ---------------------------------------------------------------------------------------------- checkpoints

    def state(self) -> dict[str, Any]:
        """All of it, as plain data."""
        self._catch_up()
        return {
            "used": self._used.tobytes(),
            "vms": self._vms.tobytes(),
            "highest": self._highest.tobytes(),
            "stranded": self._stranded.tobytes(),
            "plain": [self.down, self.lost, self.waiting, self.commits, self.migrated],
            "faults": msgspec.structs.asdict(self.faults),
            "since": self.since,
            "funnel": [self.funnels, self.funnel],
            "timeline": self.timeline,
            "rates": self.rates,
            "requests": bytes(self._requests),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a state."""
        shape = self._capacity.shape
        self._used = np.frombuffer(state["used"], np.int64).reshape(shape).copy()
        self._vms = np.frombuffer(state["vms"], np.int64).copy()
        self._highest = np.frombuffer(state["highest"], np.int64).reshape(2, -1).copy()
        self._stranded = np.frombuffer(state["stranded"], np.int64).reshape(shape).copy()
        self._total = self._sum(np.arange(len(self._vms)))
        self.down, self.lost, self.waiting, self.commits, self.migrated = state["plain"]
        self.faults = FaultCounts(**state["faults"])
        self.funnels, self.funnel = state["funnel"]
        self.since, self.timeline, self.rates = dict(state["since"]), state["timeline"], state["rates"]
        self._requests = bytearray(state["requests"])


def _no_moves() -> tuple[array[int], array[int], array[int]]:
    """Machine, VM type + 1 (negative if it left), and whether it is of the highest priority."""
    return array("i"), array("i"), array("i")


def summarise(
    tables: Mapping[str, pl.DataFrame],
    counts: tuple[float, float],
    bin_seconds: float,
    commits: int,
) -> dict[str, float | None]:
    """All measures from a run's tables. `counts`: from when to when; `commits`: attempts to place."""
    import polars as pl

    warm_up, until = counts
    timeline = tables["timeline"].filter(pl.col("warm") == 1)
    rates = tables["rates"].filter(pl.col("warm") == 1)
    requests = tables["requests"].filter((pl.col("time_s") >= warm_up) & (pl.col("request") >= 0))
    placed = requests.filter(pl.col("status") == "placed")
    answered, asked, vms = len(requests), _total(requests["vms"]), _total(placed["vms"])
    conflicts = _total(rates["conflicts"])
    lasted = until - float(rates["time_s"][0]) if len(rates) else 0.0  # the last bin may be cut short
    minutes = rates.group_by((pl.col("time_s") // 60).alias("minute")).agg(pl.col("conflicts", "retries").sum())
    counting = timeline[1:] if warm_up > 0 else timeline  # what the first of them counts began before
    hits, misses = _total(counting["cache_hits"]), _total(counting["cache_misses"])
    stranded = [name for name in timeline.columns if name.startswith("stranded_")]
    evictions = _total(counting["evictions"])
    lower_hours = (_mean(timeline["vms_lower"]) or 0.0) * (until - warm_up) / 3_600
    return {
        "density": _mean(timeline["density"]),
        "utilisation": _mean(timeline["utilisation"]),
        "peak_utilisation": _number(timeline["utilisation"].max()),
        "empty_machines": _mean(timeline["empty_machines"]),
        "fewest_empty_machines": _number(timeline["empty_machines"].min()),
        "vms": _mean(timeline["vms"]),
        **{name: _mean(timeline[name]) for name in stranded},
        "requests": answered,
        "acceptance": _ratio(len(placed), answered),
        "fulfilment": _ratio(vms, asked),
        "declined": int((requests["status"] == "declined").sum()),
        "gave_up": int((requests["status"] == "gave_up").sum()),
        "invalid": int((requests["status"] == "invalid").sum()),
        "vms_placed": vms,
        "throughput": _ratio(_total(rates["vms_placed"]), lasted),
        "peak_throughput": _ratio(_number(rates["vms_placed"].max()), bin_seconds),
        "conflicts": conflicts,
        "conflict_ratio": _ratio(conflicts, commits),
        "conflicts_per_minute_p99": _rank(minutes["conflicts"], 0.99),
        "retries_per_minute_p99": _rank(minutes["retries"], 0.99),
        "queueing_mean": _mean(requests["queued_s"]),
        "queueing_p99": _rank(requests["queued_s"], 0.99),
        "latency_mean": _mean(requests["latency_s"]),
        "latency_p50": _rank(requests["latency_s"], 0.5),
        "latency_p99": _rank(requests["latency_s"], 0.99),
        "cache_hit_ratio": _ratio(hits, hits + misses),
        "updates_per_decision": _ratio(_total(counting["updated"]), hits + misses),
        "utilisation_highest": _mean(timeline["utilisation_highest"]),
        "density_highest": _mean(timeline["density_highest"]),
        "evictions": evictions,
        "evictions_per_vm_hour": _ratio(evictions, lower_hours),
    }


def _number(value: Any) -> float | None:
    return None if value is None else float(value)


def _total(values: pl.Series) -> int:
    return int(values.sum())


def _mean(values: pl.Series) -> float | None:
    return _number(values.cast(float).mean())


def _ratio(part: float | None, whole: float) -> float | None:
    return None if part is None or not whole else part / whole


def _rank(values: pl.Series, share: float) -> float | None:
    """By nearest rank: the lowest that at least this share does not exceed."""
    if not len(values):
        return None
    return float(values.sort()[math.ceil(share * len(values)) - 1])
