"""How soon a process that starts on a full store decides its first request, and a late follower is up to date."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

from roost.agent.agreement import check_against
from roost.agent.replica import Replica
from roost.bench.postgres import ThrowawayPostgres
from roost.bench.reporting import ReportProgress
from roost.engine.recheck import CompiledRecheck
from roost.model.change import PlacedVM
from roost.model.inventory import MachineSpec
from roost.model.request import VM
from roost.model.zone import Zone
from roost.rules.policy import Policy
from roost.store.audit import check_invariants
from roost.store.contract import LARGEST_GROUP, Committed, Place, Record, Store
from roost.wiring import calm_collector, open_store

VM_TYPE = "A1"  # runs on every generation
TENANT = 5  # VMs
FIRST_DECISION = """
import time
started = time.perf_counter()
from roost.agent.verbs.place import PlaceVMs
from roost.model.request import VM, Request
from roost.wiring import open_agent, open_store
store = open_store({url!r})
agent = open_agent(store)
(answer,) = agent.run(agent.submit(PlaceVMs(Request("first", [VM("D2")]))))
assert answer.ok, answer
print(time.perf_counter() - started)
agent.close()
store.close()
"""


def bench_restart(
    machines: int, vms: int, changes: int, progress: ReportProgress = lambda _t, _s: None
) -> list[dict[str, Any]]:
    """Figures for SQLite and PostgreSQL."""
    zone = Zone.synthetic(machines, seed=1)
    results = []
    with ThrowawayPostgres() as server, tempfile.TemporaryDirectory(prefix="roost-bench-") as folder:
        for kind, url in (("SQLite", str(Path(folder) / "zone.db")), ("PostgreSQL", server.url)):
            results.append({"store": kind, **_restart(kind, url, zone, vms, changes, progress)})
    return results


def _restart(kind: str, url: str, zone: Zone, vms: int, changes: int, progress: ReportProgress) -> dict[str, Any]:
    store = open_store(url, create=zone)
    recheck = CompiledRecheck(zone, Policy.default().rules)
    stock = _placements(store)
    _place(store, recheck, stock, vms, TENANT, lambda share: progress(f"filling {kind}", share))
    policy = Policy.default()
    started = time.perf_counter()
    replica = Replica(store.columns(), policy)
    loaded = time.perf_counter() - started
    calm_collector()  # as a worker does
    _place(store, recheck, stock, changes, 1, lambda share: progress(f"changing {kind}", share))
    started = time.perf_counter()
    while rows := store.changes(replica.revision).rows:
        for row in rows:
            replica.follow(row, more=True)
        replica.flush()
    caught_up = time.perf_counter() - started
    progress(f"checking {kind}", 1.0)
    check_invariants(store)
    check_against(replica, store.load())
    store.close()
    progress(f"starting on {kind}", 1.0)
    runs = [_first_decision(url) for _ in range(3)]
    return {
        "machines": len(zone.machines),
        "vms": vms + changes,
        "start_to_first_decision_s": sorted(runs)[1],
        "load_s": round(loaded, 2),
        "catch_up_changes": changes,
        "catch_up_s": round(caught_up, 2),
    }


def _placements(store: Store) -> Iterator[str]:
    """Machines in turn, so that all fill evenly."""
    specs: list[MachineSpec] = [row.spec for row in store.load().machines.values() if not row.state]
    while True:
        yield from (spec.name for spec in specs)


def _place(
    store: Store, recheck: CompiledRecheck, stock: Iterator[str], vms: int, size: int, report: Callable[[float], None]
) -> None:
    """Place VMs in tenants of one size, straight into the store; a machine that is full is passed over."""
    placed, vm = 0, VM(VM_TYPE)
    numbers = count(store.head()[0])
    while placed < vms:
        group: list[Place] = []
        for number in (next(numbers) for _ in range(LARGEST_GROUP)):
            if placed + len(group) * size >= vms:
                break
            name = f"t{number}"
            spots = tuple(PlacedVM(f"{name}/{i}", vm, next(stock)) for i in range(size))
            group.append(Place(key=name, request=b"{}", record=Record(), tenant=name, placed=spots))
        outcomes = store.commit(group, recheck)
        placed += size * sum(isinstance(outcome, Committed) for outcome in outcomes)
        report(placed / vms)


def _first_decision(url: str) -> float:
    done = subprocess.run(
        [sys.executable, "-c", FIRST_DECISION.format(url=url)], stdout=subprocess.PIPE, check=True, text=True
    )
    return round(float(done.stdout), 2)
