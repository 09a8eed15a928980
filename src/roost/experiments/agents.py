"""What studies of one to many agents share: how agents avoid conflicts, a run with so many, what came of it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from roost.experiments.simulated import simulate
from roost.experiments.study import Cell, CellContext, FigureValue
from roost.sim.experiment import Agents, Experiment, Generated
from roost.sim.result import RunResult
from roost.traces.generate import generate
from roost.wiring import find_zone

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from roost.model.zone import Zone
    from roost.traces.workload import Workload

# What an agent does when it loses races: nothing; draw among the best 100 (Protean's); keep to machines of its own.
AVOIDANCE: dict[str, dict[str, Any]] = {
    "off": {"top": 1},
    "Protean's": {"favourites": False},
    "Roost's": {},
}
AS_SERVED = {"group": 128, "pipeline": 2}  # with our own latencies, agents work as those of the service do
MODELS = {"paper": "the paper's latencies", "measured": "our own latencies"}


def measures_time(cell: Cell) -> bool:
    """Whether it depends on how fast this machine is."""
    return bool(cell["latency"] == "measured")


def at_rate(cell: Cell, arrival: NDArray[np.float64]) -> tuple[Workload, Zone]:
    """Requests like those of a zone, at these times, and the zone. Sped up, VMs leave sooner, too."""
    zone = find_zone(f"synthetic:{cell['machines']}")
    shape = Generated(days=1.0, requests_per_day=len(arrival), spikes_per_day=0, services=0.2)
    workload, speed = generate(shape, cell["seed"], zone), cell.settings.get("speed", 1)
    return replace(workload, arrival=arrival, lifetime=workload.lifetime / speed), zone


def run(cell: Cell, context: CellContext, arrival: NDArray[np.float64], until: float, **agents: Any) -> RunResult:
    """A run with so many agents."""
    workload, zone = at_rate(cell, arrival)
    if measures_time(cell):
        agents = AS_SERVED | agents
    experiment = Experiment(
        name="agents",
        workload=Generated(),  # what it is like is said here, when it is made
        zone=f"synthetic:{cell['machines']}",
        fill=cell.settings.get("fill", 0.0),
        agents=Agents(count=cell["agents"], **agents),
        latency=cell["latency"],
        until=until,
        bin=1.0,
        checkpoint=0,
    )
    return simulate(experiment, "default", cell["seed"], context, on=(workload, zone))


def per_second(result: RunResult, until: float) -> NDArray[np.int64]:
    """Requests that were placed in each second."""
    placed = result.requests.filter((result.requests["status"] == "placed") & (result.requests["request"] >= 0))
    at = (placed["time_s"] + placed["latency_s"]).to_numpy()
    return np.bincount(at.astype(np.int64), minlength=int(until))[: int(until)]


def p99(values: NDArray[np.int64]) -> float:
    """By nearest rank."""
    return float(np.sort(values)[int(np.ceil(0.99 * len(values))) - 1])


def overload_row(cell: Cell, result: RunResult, until: float) -> dict[str, FigureValue]:
    """What came of requests that came too fast."""
    placed, found = per_second(result, until), result.summary
    whole = result.rates.filter(result.rates["time_s"] < until)
    rejected = (found["gave_up"] or 0) + (found["declined"] or 0)
    return {
        **{name: cell[name] for name in ("agents", "avoidance", "latency", "rate")},
        "throughput": float(placed.sum() / until),
        "conflicts_per_s_p99": p99(whole["conflicts"].to_numpy()),
        "conflict_ratio": found["conflict_ratio"],
        "answered": found["requests"],
        "rejected": rejected / found["requests"] if found["requests"] else None,
        "gave_up": found["gave_up"],
        "declined": found["declined"],
    }


def agents_in_words(count: object) -> str:
    """`1 agent`, `5 agents`."""
    return f"{count} agent" + "s" * (count != 1)
