"""How many VMs a second agents place durably, and how often they get in each other's way; real processes, one run.

Beside each figure stands what the same database does with one-row durable updates, measured in the same run.
"""

from __future__ import annotations

import multiprocessing
import random
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import count, islice
from pathlib import Path
from typing import Any

from roost.agent.agent import Agent
from roost.agent.operation import Operation
from roost.agent.settings import AgentSettings
from roost.agent.ticket import Ticket
from roost.agent.verbs.place import PlaceVMs
from roost.agent.verbs.release import ReleaseVMs
from roost.agent.verbs.table import verb_of
from roost.bench.postgres import ThrowawayPostgres
from roost.bench.reporting import ReportProgress
from roost.model.request import VM, Request
from roost.model.zone import Zone
from roost.store.audit import check_invariants
from roost.store.contract import Store
from roost.traces.generate import requests
from roost.wiring import calm_collector, open_agent, open_store

ROWS = 100_000  # of the table whose rows are updated one by one
ONE_ROW = "\\set id random(1, {rows})\nUPDATE ceiling SET value = value + 1 WHERE id = :id;\n"
WARM_UP = 500  # requests, before those that are measured
WORK = {"mix": 15_000, "fives": 8_000, "twenties": 2_000}  # requests measured
SIZES = {"fives": 5, "twenties": 20}  # VMs of a tenant; the mix has its own
FOREVER = 1e9  # seconds
QUEUE = 256  # requests offered to an agent at a time
CLIENTS = 32  # the same where several agents share a zone
CROWDED = 1_000  # machines that several agents share
CROWDED_FULL = 0.85  # of their cores, before the contest
# What they are asked for: VMs of 1, 2, 4, 8 and 16 cores, as often as in Protean's Table 3 (zone 1).
CROWD_TYPES = {"D1": 17.1, "D2": 37.4, "D3": 32.0, "D4": 8.9, "D14": 4.3}


@dataclass(frozen=True)
class Contest:
    """How several agents share a zone."""

    agents: int
    strict: bool
    avoid: bool


def bench_agents(
    machines: int, seconds: float, repeats: int, progress: ReportProgress = lambda _t, _s: None
) -> dict[str, Any]:
    """All figures. Each is the median of `repeats` measurements that take turns with those beside them."""
    contests = [
        Contest(agents, strict, avoid) for agents in (1, 2, 4) for strict in (False, True) for avoid in (True, False)
    ]
    steps = repeats * (9 + len(contests))
    done = count()

    def step(doing: str) -> None:
        progress(doing, next(done) / steps)

    zone = Zone.synthetic(machines, seed=1)
    found: dict[str, list[float]] = {}
    crowds: list[list[dict[str, float]]] = [[] for _ in contests]
    with ThrowawayPostgres() as server, tempfile.TemporaryDirectory(prefix="roost-bench-") as folder:
        for turn in range(repeats):
            step("ceilings")
            _note(found, "postgres ceiling", _postgres_ceiling(server, Path(folder), seconds, f"ceiling{turn}"))
            _note(found, "sqlite ceiling", _sqlite_ceiling(Path(folder) / f"ceiling{turn}.db", seconds))
            places: dict[str, Callable[[str], str]] = {
                "postgres": server.create_database,
                "sqlite": lambda name: str(Path(folder) / name),
            }
            for kind, url in places.items():
                for workload in WORK:
                    for group in (AgentSettings().group, 1):
                        if group == 1 and workload != "mix":
                            continue
                        step(f"one agent, {kind}")
                        label = "group commit" if group > 1 else "one by one"
                        rates = _alone(url(f"{workload}{group}{turn}"), zone, workload, group)
                        for unit, rate in rates.items():
                            _note(found, f"{kind} {workload} {label} {unit}", rate)
            for contest, results in zip(contests, crowds, strict=True):
                step(f"{contest.agents} agents")
                database = server.create_database(f"crowd{turn}_{contests.index(contest)}")
                results.append(_crowd(database, contest, seconds))
    medians = {name: statistics.median(values) for name, values in found.items()}
    return {
        "machines": machines,
        "repeats": repeats,
        "one_agent": _ratios(medians),
        "several_agents": [
            {**asdict(contest), **{name: round(statistics.median(r[name] for r in results), 4) for name in results[0]}}
            for contest, results in zip(contests, crowds, strict=True)
        ],
    }


def _note(found: dict[str, list[float]], name: str, value: float) -> None:
    found.setdefault(name, []).append(value)


def _ratios(medians: dict[str, float]) -> dict[str, float]:
    """Every rate, and how often the ceiling of its database each rate of VMs is."""
    shown = {name: round(value, 1) for name, value in medians.items()}
    for name, value in medians.items():
        if name.endswith("VMs/s"):
            kind = name.partition(" ")[0]
            shown[f"{name} / {kind} ceiling"] = round(value / medians[f"{kind} ceiling"], 2)
    return shown


# ---------------------------------------------------------------------------------------------------------- ceilings


def _postgres_ceiling(server: ThrowawayPostgres, folder: Path, seconds: float, name: str) -> float:
    import psycopg

    with psycopg.connect(server.create_database(name), autocommit=True) as connection:
        connection.execute("CREATE TABLE ceiling (id INTEGER PRIMARY KEY, value INTEGER NOT NULL)")
        connection.execute(f"INSERT INTO ceiling SELECT i, 0 FROM generate_series(1, {ROWS}) AS i")
        connection.execute("VACUUM ANALYZE ceiling")
    script = folder / "one_row.sql"
    script.write_text(ONE_ROW.format(rows=ROWS))
    folder.chmod(0o755)  # the server's user reads it
    return server.pgbench(name, script, seconds)


def _sqlite_ceiling(path: Path, seconds: float) -> float:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("CREATE TABLE ceiling (id INTEGER PRIMARY KEY, value INTEGER NOT NULL)")
    connection.executemany("INSERT INTO ceiling VALUES (?, 0)", ((i,) for i in range(ROWS)))
    draw, updates = random.Random(1), 0
    started = time.perf_counter()
    while (passed := time.perf_counter() - started) < seconds:
        for _ in range(100):
            connection.execute("UPDATE ceiling SET value = value + 1 WHERE id = ?", (draw.randrange(ROWS),))
        updates += 100
    connection.close()
    return updates / passed


# --------------------------------------------------------------------------------------------------------- one agent


def _alone(url: str, zone: Zone, workload: str, group: int) -> dict[str, float]:
    """Requests and VMs a second of one agent that begins to fill an empty zone."""
    store = open_store(url, create=zone)
    agent = open_agent(store, settings=AgentSettings(group=group))
    try:
        size = WORK[workload] if group > 1 else WORK[workload] // 5
        operations = [PlaceVMs(request) for request in islice(_stream(zone, workload), WARM_UP + size)]
        _drive(agent, iter(operations[:WARM_UP]), FOREVER)
        calm_collector()
        before = agent.counters.placed_vms
        started = time.perf_counter()
        _drive(agent, iter(operations[WARM_UP:]), FOREVER)
        passed = time.perf_counter() - started
        check_invariants(store)
        return {"VMs/s": (agent.counters.placed_vms - before) / passed, "commits/s": size / passed}
    finally:
        agent.close()
        store.close()


def _stream(zone: Zone, workload: str) -> Iterator[Request]:
    """`mix`: as Protean reports, most tenants ask for one VM. The others: the same VMs, but so many to a tenant."""
    for request in requests(zone, seed=1):
        size = SIZES.get(workload)
        yield Request(request.tenant, (request.vms[0],) * size) if size else request


def _drive(agent: Agent, operations: Iterator[Operation], seconds: float, most: int = QUEUE) -> list[Ticket]:
    """Offer operations for a time, the next as others are answered, `most` at once; then let the agent finish."""
    tickets: list[Ticket] = []
    waiting, offering = 0, True

    def answered(_: object) -> None:
        nonlocal waiting
        waiting -= 1

    started = time.perf_counter()
    while offering or waiting:
        for operation in islice(operations, most - waiting) if offering else ():
            waiting += 1
            tickets.append(agent.submit(operation, done=answered))
        offering = offering and waiting == most and time.perf_counter() - started < seconds
        agent.step(0.01)
    return tickets


# ---------------------------------------------------------------------------------------------------- several agents


def _crowd(url: str, contest: Contest, seconds: float) -> dict[str, float]:
    """Agents that share a small, nearly full zone: each releases a tenant of its own and places another."""
    agents = contest.agents
    store = open_store(url, create=Zone.synthetic(CROWDED, seed=1))
    _fill(store, agents)
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(agents), context.SimpleQueue()
    processes = [
        context.Process(target=_contend, args=(url, n, contest, seconds, barrier, results)) for n in range(agents)
    ]
    for process in processes:
        process.start()
    counted = [results.get() for _ in processes]
    for process in processes:
        process.join()
    check_invariants(store)
    store.close()
    total = {name: sum(each[name] for each in counted) for name in counted[0]}
    answered = total["done"] + total["declined"] + total["gave_up"]
    committed = total["commits"] - total["conflicts"]
    return {
        "commits_per_second": committed / seconds,
        "conflicts_per_commit": total["conflicts"] / max(1, committed),
        "share_of_attempts_lost": total["conflicts"] / max(1, total["commits"]),
        "acceptance": total["done"] / max(1, answered),
    }


def _fill(store: Store, agents: int) -> None:
    """Fill the zone; the tenants are shared out among the agents by their names."""
    agent = open_agent(store)
    draw, numbers = random.Random(1), count()
    while agent.replica.allocator.usage().utilisation < CROWDED_FULL:
        names = (f"a{n % agents}-{n}" for n in islice(numbers, 100))
        _drive(agent, (PlaceVMs(Request(name, (_some_vm(draw),))) for name in names), FOREVER)
    agent.close()


def _some_vm(draw: random.Random) -> VM:
    return VM(draw.choices(list(CROWD_TYPES), list(CROWD_TYPES.values()))[0])


def _contend(url: str, number: int, contest: Contest, seconds: float, barrier: Any, results: Any) -> None:
    """One agent's process."""
    store = open_store(url)
    settings = AgentSettings(group=16, pipeline=1, strict=contest.strict, top=100 if contest.avoid else 1)
    agent = open_agent(store, seed=number, settings=settings)
    draw = random.Random(number)
    tenants = sorted(name for name in agent.replica.allocator.tenants if name.startswith(f"a{number}-"))
    draw.shuffle(tenants)
    fresh: list[str] = []
    outcomes = {"done": 0, "declined": 0, "gave_up": 0}

    def operations() -> Iterator[Operation]:
        for n in count():
            if tenants:
                yield ReleaseVMs(tenants.pop())
            name = f"a{number}-new-{n}"
            fresh.append(name)
            yield PlaceVMs(Request(name, (_some_vm(draw),)))
            if n % 50 == 49:  # what was placed may be released again
                running = agent.replica.allocator.tenants
                again = [name for name in fresh[:-64] if name in running]
                tenants.extend(again)
                kept = set(again)
                fresh[:] = [name for name in fresh if name not in kept]

    stream = operations()
    _drive(agent, islice(stream, 64), FOREVER, CLIENTS)
    calm_collector()
    barrier.wait()
    before = {name: getattr(agent.counters, name) for name in ("commits", "conflicts")}
    for ticket in _drive(agent, stream, seconds, CLIENTS):
        if verb_of(ticket.operation).places and ticket.answer:
            status = ticket.answer.status
            outcomes["gave_up" if status == "conflicts" else status] += 1
    counted = {name: getattr(agent.counters, name) - before[name] for name in before}
    results.put({**outcomes, **counted})
    agent.close()
    store.close()
