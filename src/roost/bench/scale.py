"""What more workers bring, and what they cost: VMs a second, and seconds of processors for each VM.

A zone is filled once, in a database that is a template; each case begins with a copy of it. Single creates come over
as many connections for all: so many a second, or as fast as they are answered. A warm-up is left out, then comes the
window that is measured. The same is done once more, by workers that have timers around their stages.

On a machine with fewer cores than workers, rates cannot grow with these. What a VM costs can be measured there all the
same: that it stays what it is with one worker is what makes workers add up where there is a core for each.
"""

from __future__ import annotations

import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from itertools import count, islice
from pathlib import Path
from typing import Any

import httpx
import msgspec

from roost.agent.verbs.place import PlaceVMs
from roost.api.server import listen
from roost.bench import stages
from roost.bench.accounting import cpu_of_postgres
from roost.bench.load import TYPES, Load, LoadReport
from roost.bench.postgres import ThrowawayPostgres
from roost.bench.reporting import ReportProgress
from roost.bench.scale_worker import MEET, ScaleWorker, WorkerReading
from roost.bench.service import CREATE, START_SECONDS, WARM_UP_SECONDS, generate
from roost.model.errors import StoreUnavailable
from roost.model.request import VM, Request
from roost.model.zone import Zone
from roost.wiring import open_agent, open_store

STANDING = 20  # VMs of each tenant that the zone is filled with
AT_ONCE = 16  # of these tenants
LEAD_SECONDS, TAIL_SECONDS = 0.5, 0.3  # of a load, before and after the window that is measured
LOOK_SECONDS = 0.5  # between looks at how far agents are behind
FILLED = "filled"  # the database that others are copies of
MEGABYTE = 1e6
TABLES = ("placed", "cpu", "stages", "with_a_core_each")
CaseFigures = Mapping[str, Mapping[str, float]]  # of one case in one turn, by table


@dataclass(frozen=True, kw_only=True)
class ScalePlan:
    """What is measured."""

    machines: int = 20_000
    full: float = 0.6  # share of the cores in use at first
    workers: Sequence[int] = (1, 2, 4, 8)
    rate: float = 800.0  # requests a second of the load that is the same for all
    connections: int = 64
    seconds: float = 4.0
    repeats: int = 3

    @property
    def loads(self) -> Mapping[str, float]:
        """Requests that are due a second; 0: as fast as they are answered."""
        return {f"{self.rate:,g}/s": self.rate, "saturation": 0.0}


class FleetReading(msgspec.Struct, frozen=True, kw_only=True):
    """All workers and the database at one moment."""

    at: float
    workers: Sequence[WorkerReading]
    database_cpu: float

    def sum(self, name: str) -> int:
        """Of what all agents have counted."""
        return sum(getattr(worker.counted, name) for worker in self.workers)

    def spent(self, stage: str) -> float:
        """Seconds that all workers have computed at a stage."""
        return sum(worker.counted.stages.get(stage, 0.0) for worker in self.workers)

    @property
    def workers_cpu(self) -> float:
        """Seconds that all workers have computed."""
        return sum(worker.cpu for worker in self.workers)


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """What happened between two moments under a load."""

    before: FleetReading
    after: FleetReading
    lags: Sequence[int]  # of each worker at several moments
    report: LoadReport

    def grown(self, name: str) -> int:
        """By how much a count has grown."""
        return self.after.sum(name) - self.before.sum(name)

    @property
    def seconds(self) -> float:
        """How long it was."""
        return self.after.at - self.before.at

    @property
    def thousands(self) -> float:
        """Of VMs placed."""
        return max(1, self.grown("placed_vms")) / 1e3

    @property
    def workers_cpu(self) -> float:
        """Seconds that workers computed for 1,000 VMs."""
        return (self.after.workers_cpu - self.before.workers_cpu) / self.thousands

    @property
    def shares(self) -> dict[str, float]:
        """Of each stage in what workers computed, if they had timers."""
        spent = {stage: self.after.spent(stage) - self.before.spent(stage) for stage in stages.ALL}
        return {stage: seconds / sum(spent.values()) for stage, seconds in spent.items()}

    @property
    def database_cpu(self) -> float:
        """The same of the database."""
        return (self.after.database_cpu - self.before.database_cpu) / self.thousands


# --------------------------------------------------------------------------------------------------------- the bench


def bench_scale(plan: ScalePlan, progress: ReportProgress = lambda _t, _s: None) -> dict[str, Any]:
    """Tables of rows, a row for each load and number of workers; each figure is the median of all turns.

    What comes first in one turn comes last in the next.
    """
    cases = [(load, workers) for load in plan.loads for workers in plan.workers]
    found: dict[tuple[str, int], list[CaseFigures]] = {case: [] for case in cases}
    steps, done = plan.repeats * len(cases), count()
    with ThrowawayPostgres() as server:
        _fill(server.create_database(FILLED), plan, lambda share: progress("filling the zone", share))
        for turn in range(plan.repeats):
            for load, workers in cases if turn % 2 == 0 else cases[::-1]:
                number = next(done)
                progress(f"{load}, workers: {workers}", number / steps)
                found[load, workers].append(_measure(server, plan, plan.loads[load], workers, f"case{number}"))
    return tables(plan, found)


def _fill(url: str, plan: ScalePlan, report: Callable[[float], None]) -> None:
    """Tenants with several VMs, until so much of the zone is in use."""
    import psycopg

    store = open_store(url, create=Zone.synthetic(plan.machines, seed=1))
    agent = open_agent(store)
    draw, numbers = random.Random(1), count()
    types, weights = [name.decode() for name in TYPES], list(TYPES.values())
    while (full := agent.allocator.usage().utilisation) < plan.full:
        report(full / plan.full)
        tenants = [f"standing-{n}" for n in islice(numbers, AT_ONCE)]
        requests = [Request(each, [VM(name) for name in draw.choices(types, weights, k=STANDING)]) for each in tenants]
        agent.run(*[agent.submit(PlaceVMs(request)) for request in requests])
    agent.close()
    store.close()
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("VACUUM ANALYZE")  # else it depends on luck how statements are carried out


@contextmanager
def _copied(server: ThrowawayPostgres, name: str) -> Iterator[str]:
    """A copy of the zone that was filled, as long as it is needed; what making it left to write is written before."""
    import psycopg

    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name} TEMPLATE {FILLED}".encode())
        connection.execute("CHECKPOINT")
        yield server.database(name)
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


def _measure(server: ThrowawayPostgres, plan: ScalePlan, rate: float, workers: int, name: str) -> CaseFigures:
    """The figures of one case."""
    window, timed = (_watch(server, plan, rate, workers, name, timed) for timed in (False, True))
    return _figures(window, timed, workers)


def _watch(server: ThrowawayPostgres, plan: ScalePlan, rate: float, workers: int, name: str, timed: bool) -> Window:
    with _copied(server, name) as url, WorkerFleet(url, workers, server.folder / "data", timed=timed) as fleet:
        fleet.watch(_load(fleet, plan, plan.rate, WARM_UP_SECONDS), WARM_UP_SECONDS)
        return fleet.watch(_load(fleet, plan, rate, plan.seconds), plan.seconds)


def _load(fleet: WorkerFleet, plan: ScalePlan, rate: float, seconds: float) -> Load:
    whole = LEAD_SECONDS + seconds + TAIL_SECONDS
    return Load(port=fleet.port, path=CREATE, seconds=whole, connections=plan.connections, rate=rate)


# ------------------------------------------------------------------------------------------------------- the workers


class WorkerFleet:
    """Workers that serve at one port, and the server of their store."""

    def __init__(self, url: str, workers: int, data: Path, *, timed: bool) -> None:
        """`data`: where those of the server are; `timed`: whether workers have timers around their stages."""
        self._url, self._places, self._data, self._timed = url, range(workers), data, timed
        self._stack = ExitStack()

    def __enter__(self) -> WorkerFleet:
        with ExitStack() as stack:
            bound = stack.enter_context(listen("127.0.0.1", 0, shared=True))  # only keeps the port
            self.port = int(bound.getsockname()[1])
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="roost-bench-")))
            metrics = folder if len(self._places) > 1 else None
            self._workers = [
                stack.enter_context(ScaleWorker(self._url, self.port, place, metrics, timed=self._timed))
                for place in self._places
            ]
            for worker in self._workers:
                worker.hear()  # that it serves
            self._meet()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _meet(self) -> None:
        """Ask until each has answered: the system chooses whom a connection goes to."""
        deadline, missing = time.monotonic() + START_SECONDS, {worker.process.pid for worker in self._workers}
        while missing:
            missing.discard(httpx.get(f"http://127.0.0.1:{self.port}{MEET}").json())
            if time.monotonic() > deadline:
                raise StoreUnavailable(f"{len(missing)} workers never answered")

    def read(self) -> FleetReading:
        """How all of them do."""
        workers = [worker.read() for worker in self._workers]
        return FleetReading(at=time.perf_counter(), workers=workers, database_cpu=cpu_of_postgres(self._data))

    def watch(self, load: Load, seconds: float) -> Window:
        """Look at them while they are under a load, for so long, once it is on them."""
        with ThreadPoolExecutor(1) as threads:
            loading = threads.submit(generate, load)
            self._await(loading)
            before = self.read()
            lags = self._look_on(before.at + seconds)
            after = self.read()
            return Window(before=before, after=after, lags=lags, report=loading.result())

    def _await(self, loading: Future[LoadReport]) -> None:
        """Until the load has come, and a little longer."""
        before = self.read().sum("placed_vms")
        while self.read().sum("placed_vms") == before and not loading.done():
            time.sleep(0.02)
        time.sleep(LEAD_SECONDS)

    def _look_on(self, until: float) -> list[int]:
        """How far each agent is behind, again and again."""
        lags = self._lags()
        while (left := until - time.perf_counter()) > 0:
            time.sleep(min(left, LOOK_SECONDS))
            lags += self._lags()
        return lags

    def _lags(self) -> list[int]:
        return [worker.ask().lag for worker in self._workers]


# ----------------------------------------------------------------------------------------------------------- figures


def _figures(window: Window, timed: Window, workers: int) -> CaseFigures:
    """Of one turn, by table."""
    commits, conflicts = window.grown("commits"), window.grown("conflicts")
    memory = [worker.resident / MEGABYTE for worker in window.after.workers]
    unplaced = [
        count
        for each in (window, timed)
        for status, count in each.report.statuses.items()
        if status != str(HTTPStatus.CREATED.value)
    ]
    each = workers / window.workers_cpu * 1e3
    return {
        "placed": {
            "vms_per_second": window.thousands * 1e3 / window.seconds,
            "p50_ms": window.report.p50_ms,
            "p99_ms": window.report.p99_ms,
            "not_placed": sum(unplaced),
            "conflicts_per_commit": conflicts / max(1, commits - conflicts),
            "requests_per_group": commits / max(1, window.grown("rounds")),
            "changes_behind": statistics.fmean(window.lags),
            "all_MB": sum(memory),
            "largest_MB": max(memory),
        },
        "cpu": {
            "workers_s": window.workers_cpu,
            "database_s": window.database_cpu,
            "both_s": window.workers_cpu + window.database_cpu,
            "workers_cores": window.workers_cpu * window.thousands / window.seconds,
            "database_cores": window.database_cpu * window.thousands / window.seconds,
        },
        "stages": {
            **{stage: share * window.workers_cpu for stage, share in timed.shares.items()},
            "timed": timed.workers_cpu / window.workers_cpu,
        },
        "with_a_core_each": {"vms_per_second": each, "database_cores": each * window.database_cpu / 1e3},
    }


def tables(plan: ScalePlan, found: Mapping[tuple[str, int], Sequence[CaseFigures]]) -> dict[str, list[dict[str, Any]]]:
    """Rows of medians over all turns, by table: of what was found for each load and number of workers."""
    return {
        name: [
            _row(name, load, workers, found[load, workers], found[load, min(plan.workers)])
            for load in plan.loads
            for workers in plan.workers
        ]
        for name in TABLES
    }


def _row(
    name: str, load: str, workers: int, turns: Sequence[CaseFigures], fewest: Sequence[CaseFigures]
) -> dict[str, Any]:
    row = {of: _rounded(statistics.median(turn[name][of] for turn in turns)) for of in turns[0][name]}
    if name == "cpu":  # turn by turn: what the machine does meanwhile hits both of a turn
        pairs = zip(turns, fewest, strict=True)
        ratios = [turn[name]["both_s"] / first[name]["both_s"] for turn, first in pairs]
        row["times_the_fewest"] = _rounded(statistics.median(ratios))
    return {"load": load, "workers": workers, **row}


def _rounded(value: float) -> float:
    """To three digits, and whole where it is large."""
    return round(value) if abs(value) >= 100 else round(value, 1 if abs(value) >= 10 else 2 if abs(value) >= 1 else 3)
