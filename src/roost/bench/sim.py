"""How fast the simulator is, on one core, and where its time goes.

Beside the figures stands how long this machine takes for a fixed piece of plain Python, so that runs elsewhere, or at
another hour on a shared machine, can be compared.
"""

from __future__ import annotations

import cProfile
import pstats
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from typing import Any

import numpy as np

from roost.model.zone import Zone
from roost.rules.policy import Policy
from roost.sim.experiment import Agents, Experiment, Fleet, Latency
from roost.sim.result import Result
from roost.sim.runs import stage
from roost.sim.simulation import Simulation
from roost.traces.generate import WorkloadShape, generate
from roost.traces.names import Numbered
from roost.traces.workload import Workload
from roost.wiring import find_policy

Progress = Callable[[str, float], None]

MACHINES = 20_000
BATCH = Agents(group=128)  # what comes while a commit is under way is decided and committed together
COMMIT = Latency(commit_ms=5)
REQUESTS = 100_000  # of the generated workload
ARRIVALS = 15_000  # a second of virtual time, where agents have as much to do as they can
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


def bench_sim(repeats: int, progress: Progress = lambda _t, _s: None) -> dict[str, Any]:
    """All figures: medians of measurements that take turns."""
    cases: dict[str, Callable[[], dict[str, float]]] = {
        "plain Python": _plain_python,
        "azure-2017, 3,000 machines, default": _azure,
        "20,000 machines, one after another": lambda: _placements(spaced=False),
        "20,000 machines, natural arrivals and departures": lambda: _placements(spaced=True),
        "20,000 machines, 40,000 VMs, best fit": _best_fit,
    }
    done = count()
    found: dict[str, list[dict[str, float]]] = {name: [] for name in cases}
    for name, measure in cases.items():  # kernels are compiled once, and kept on disk
        progress(f"warm up: {name}", next(done) / (len(cases) * (repeats + 1)))
        if measure is not _azure:
            measure()
    for _ in range(repeats):
        for name, measure in cases.items():
            progress(name, next(done) / (len(cases) * (repeats + 1)))
            found[name].append(measure())
    rows = [
        {"case": name, **{key: round(statistics.median(one[key] for one in all_), 3) for key in all_[0]}}
        for name, all_ in found.items()
    ]
    return {"repeats": repeats, "rows": rows, "where_the_time_goes": _profile()}


def _plain_python() -> dict[str, float]:
    started = time.perf_counter()
    total = 0
    for number in range(LOOPS):
        total += number & 7
    return _figures(time.perf_counter() - started, 0, 0)


def _figures(seconds: float, operations: float, vms: float) -> dict[str, float]:
    return {
        "seconds": seconds,
        "operations/s": operations / seconds,
        "VMs placed/s": vms / seconds,
    }


def _azure() -> dict[str, float]:
    """From reading the trace to the last table."""
    started = time.perf_counter()
    experiment = Experiment(name="azure", workload="azure-2017", fleet=Fleet(machines=3_000), warm_up="12h")
    result = Simulation(experiment, "default", 1, *stage(experiment, 1)).run()
    return _of(result, time.perf_counter() - started)


def _placements(*, spaced: bool) -> dict[str, float]:
    """Requests of the mix that Protean reports. Not `spaced`: nobody leaves, and agents always have work to do."""
    zone = Zone.synthetic(MACHINES, seed=1)
    workload = generate(WorkloadShape(days=1, requests_per_day=CHURN if spaced else REQUESTS), 1, zone)
    experiment = Experiment(name="rate", workload="generated", zone=f"synthetic:{MACHINES}")
    if not spaced:
        workload = replace(workload, lifetime=np.full(workload.vms, np.inf))
        speed = workload.span / (REQUESTS / ARRIVALS)
        experiment = Experiment(
            name="rate", workload="generated", zone=f"synthetic:{MACHINES}", agents=BATCH, latency=COMMIT, speed=speed
        )
    return _run(experiment, workload, zone, find_policy)


def _best_fit() -> dict[str, float]:
    """What CloudSim Plus publishes 15.7 minutes for: all VMs at once; the zone is made and loaded within the time."""
    started = time.perf_counter()
    zone = Zone.synthetic(MACHINES, seed=1)
    mix = generate(WorkloadShape(days=1, requests_per_day=CLOUDSIM_VMS), 1, zone)
    workload = replace(
        mix,
        arrival=np.zeros(CLOUDSIM_VMS),
        first=np.arange(CLOUDSIM_VMS + 1),
        type=mix.type[mix.first[:-1]],
        lifetime=np.full(CLOUDSIM_VMS, np.inf),
        tenants=Numbered("vm-", CLOUDSIM_VMS),
        priority=np.zeros(CLOUDSIM_VMS, np.int8),
        constraints={},
    )
    experiment = Experiment(
        name="best-fit", workload="generated", zone=f"synthetic:{MACHINES}", agents=BATCH, until=1.0
    )
    simulation = Simulation(experiment, "best-fit", 1, workload, zone, lambda _: Policy.parse(BEST_FIT))
    return _of(simulation.run(), time.perf_counter() - started)


def _run(experiment: Experiment, workload: Workload, zone: Zone, find: Callable[[str], Policy]) -> dict[str, float]:
    simulation = Simulation(experiment, "default", 1, workload, zone, find)
    return _of(simulation.run(), simulation.timing["run_s"])


def _of(result: Result, seconds: float) -> dict[str, float]:
    placed = result.requests.filter(result.requests["status"] == "placed")["vms"].sum()
    return _figures(seconds, result.timing["operations"], float(placed))


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
