"""How fast the simulator is, on one core, and where its time goes.

Beside the figures stands how long this machine takes for a fixed piece of plain Python, so that runs elsewhere, or at
another hour on a shared machine, can be compared.
"""

from __future__ import annotations

import cProfile
import gc
import pstats
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from typing import Any

import numpy as np

from roost.bench.reporting import ReportProgress
from roost.model.zone import Zone
from roost.rules.policy import Policy
from roost.sim.experiment import Agents, Experiment, Fleet, Latency
from roost.sim.runs import stage
from roost.sim.simulation import Simulation
from roost.traces.generate import WorkloadShape, generate
from roost.traces.workload import Workload
from roost.wiring import find_policy

MACHINES = 20_000
ZONE = f"synthetic:{MACHINES}"
BATCH = Agents(group=128)  # what comes while a commit is under way is decided and committed together
COMMIT = Latency(commit_ms=5)
AZURE_SPEED = 40_000.0  # at which the agent has as much to do as it can
REQUESTS = 100_000  # of the generated workload
ARRIVALS = 15_000  # of these a second of virtual time: the same
CHURN = 50_000  # requests that come one by one, and leave
CLOUDSIM_VMS = 40_000
LOOPS = 5_000_000  # of the plain Python
# The room that machines have decides, and how well a VM fills it: nothing else.
BEST_FIT = """
name: best-fit
version: 1
description: The fullest machine that has room.
machines:
  validators: [is_ready, has_features, has_room, evicts_nobody]
  preferences: [best_fit]
"""


def bench_sim(repeats: int, progress: ReportProgress = lambda _t, _s: None) -> dict[str, Any]:
    """All figures: medians of measurements that take turns."""
    cases: dict[str, Callable[[], dict[str, float]]] = {
        "plain Python": _plain_python,
        "azure-2017, 3,000 machines": _azure,
        "20,000 machines, requests of azure-2017, all stay": _fill_with_azure,
        "20,000 machines, generated requests, all stay": _fill_with_generated,
        "20,000 machines, generated, come and go": _churn,
        "20,000 machines, 40,000 VMs, best fit": _best_fit,
    }
    steps, done = len(cases) * (repeats + 1), count()
    found: dict[str, list[dict[str, float]]] = {name: [] for name in cases}
    for turn in range(repeats + 1):  # the first only compiles kernels, which are kept on disk
        for name, measure in cases.items():
            progress(name if turn else f"warm up: {name}", next(done) / steps)
            figures = measure()
            if turn:
                found[name].append(figures)
    rows = [
        {"case": name, **{key: round(statistics.median(one[key] for one in all_), 2) for key in all_[0]}}
        for name, all_ in found.items()
    ]
    return {"repeats": repeats, "rows": rows, "where_the_time_goes": _profile()}


def _timed(work: Callable[[], tuple[float, float]]) -> dict[str, float]:
    """Operations and VMs placed, as `work` returns them, by the time of the core that did it: a machine is shared.

    What the case before it has left behind is cleared away first.
    """
    gc.collect()
    wall, core = time.perf_counter(), time.process_time()
    operations, vms = work()
    wall, core = time.perf_counter() - wall, time.process_time() - core
    return {"seconds": wall, "core seconds": core, "operations/s": operations / core, "VMs placed/s": vms / core}


def _plain_python() -> dict[str, float]:
    def work() -> tuple[float, float]:
        total = 0
        for number in range(LOOPS):
            total += number & 7
        return 0, 0

    return _timed(work)


def _azure() -> dict[str, float]:
    """From reading the trace to the last table."""
    experiment = Experiment(name="azure", workload="azure-2017", fleet=Fleet(machines=3_000), warm_up="12h")
    return _timed(lambda: _counts(Simulation(experiment, "default", 1, *stage(experiment, 1))))


def _fill_with_azure() -> dict[str, float]:
    """Requests of 4.9 VMs on the average, so fast that the agent always has some to decide together."""
    fleet = Fleet(machines=MACHINES, cores=40, memory=576)
    experiment = Experiment(
        name="fill", workload="azure-2017", fleet=fleet, agents=BATCH, latency=COMMIT, speed=AZURE_SPEED
    )
    workload, zone, find = stage(experiment, 1)
    return _run(experiment, _staying(workload), zone, find)


def _fill_with_generated() -> dict[str, float]:
    """The mix that Protean reports: 94 of 100 requests are for one VM."""
    zone = Zone.synthetic(MACHINES, seed=1)
    workload = generate(WorkloadShape(days=1, requests_per_day=REQUESTS), 1, zone)
    speed = workload.span / (REQUESTS / ARRIVALS)
    experiment = Experiment(name="fill", workload="generated", zone=ZONE, agents=BATCH, latency=COMMIT, speed=speed)
    return _run(experiment, _staying(workload), zone, find_policy)


def _churn() -> dict[str, float]:
    """Requests at their natural times: each is decided and committed by itself, and its VMs leave."""
    zone = Zone.synthetic(MACHINES, seed=1)
    workload = generate(WorkloadShape(days=1, requests_per_day=CHURN), 1, zone)
    return _run(Experiment(name="churn", workload="generated", zone=ZONE), workload, zone, find_policy)


def _best_fit() -> dict[str, float]:
    """What CloudSim Plus publishes 15.7 minutes for: all VMs at once. To make and load the zone is within the time."""

    def work() -> tuple[float, float]:
        zone = Zone.synthetic(MACHINES, seed=1)
        mix = generate(WorkloadShape(days=1, requests_per_day=CLOUDSIM_VMS), 1, zone)
        workload = replace(
            _staying(mix),
            arrival=np.zeros(CLOUDSIM_VMS),
            first=np.arange(CLOUDSIM_VMS + 1),
            type=mix.type[mix.first[:-1]],
            lifetime=np.full(CLOUDSIM_VMS, np.inf),
            priority=np.zeros(CLOUDSIM_VMS, np.int8),
            constraints={},
        )
        experiment = Experiment(name="best-fit", workload="generated", zone=ZONE, agents=BATCH, until=1.0)
        return _counts(Simulation(experiment, "best-fit", 1, workload, zone, lambda _: Policy.parse(BEST_FIT)))

    return _timed(work)


def _staying(workload: Workload) -> Workload:
    return replace(workload, lifetime=np.full(workload.vms, np.inf))


def _run(experiment: Experiment, workload: Workload, zone: Zone, find: Callable[[str], Policy]) -> dict[str, float]:
    """The run alone."""
    simulation = Simulation(experiment, "default", 1, workload, zone, find)
    return _timed(lambda: _counts(simulation))


def _counts(simulation: Simulation) -> tuple[float, float]:
    """Run it: operations, and VMs placed."""
    result = simulation.run()
    placed = result.requests.filter(result.requests["status"] == "placed")["vms"].sum()
    return result.timing["operations"], float(placed)


# By the file and function in which time is spent, what is done there.
PARTS = (
    ("engine", "selection.py", "assign"),
    ("agent: decide, without the engine", "agent.py", "_decide_round"),
    ("agent: take in outcomes and feed", "agent.py", "_take_in"),
    ("commit: settle and write", "memory.py", "commit"),
    ("simulation: everything", "simulation.py", "_loop"),
)


def _profile() -> dict[str, float]:
    """Shares of a run of a day of the Azure trace, by a profiler, which makes small functions look larger."""
    experiment = Experiment(name="azure", workload="azure-2017", fleet=Fleet(machines=3_000), until="1d")
    simulation = Simulation(experiment, "default", 1, *stage(experiment, 1))
    with cProfile.Profile() as profile:
        simulation.run()
    spent: dict[str, float] = {}
    for (file, _, function), (_, _, _, cumulative, _) in pstats.Stats(profile).stats.items():  # type: ignore[attr-defined]
        for part, of_file, of_function in PARTS:
            if file.endswith(f"/{of_file}") and function == of_function:
                spent[part] = spent.get(part, 0.0) + cumulative
    engine, decide, take_in, commit, whole = (spent[part] for part, _, _ in PARTS)
    rest = whole - decide - take_in - commit
    shares = {
        PARTS[0][0]: engine,
        PARTS[1][0]: decide - engine,
        PARTS[2][0]: take_in,
        PARTS[3][0]: commit,
        "simulation: events, samples, books": rest,
    }
    return {part: round(seconds / whole, 3) for part, seconds in shares.items()}
