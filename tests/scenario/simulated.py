"""Runs of a handful of VMs on a handful of machines, in few words, and somebody who writes down all that happens.

All zones have one shape, that of `tests.property.zones`, so that kernels are shared.
An old machine has 4 cores and 8 GiB, a new one 6 and 6.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import numpy as np

import roost.sim.simulation
from roost.agent.operation import Answer, Operation
from roost.model.request import Constraints
from roost.model.zone import Zone
from roost.sim.experiment import Experiment
from roost.sim.result import RunResult
from roost.sim.simulation import Simulation
from roost.store.contract import Outcome, Proposal
from roost.traces.workload import ANY, Workload, WorkloadType
from roost.wiring import find_policy
from tests.property.zones import TINY, ClusterPlan, build

NEVER = float("inf")
# What a VM takes of an old machine; of a new one a big takes (2, 3) and a whole (6, 6).
DEMAND = {"small": (1, 1), "wide": (2, 1), "tall": (1, 3), "big": (3, 6), "whole": (4, 8)}
KINDS = tuple(DEMAND)


@dataclass(frozen=True)
class Ask:
    """VMs that are asked for together: the type of each, and how long it stays."""

    at: float
    vms: Sequence[tuple[str, float]]
    tenant: str = ""  # one of its own
    constraints: Constraints | None = None
    priority: str = ""


def ask(at: float, *types: str, stay: float = NEVER, tenant: str = "", **more: Any) -> Ask:
    """VMs that stay for the same time."""
    return Ask(at, [(kind, stay) for kind in types], tenant, **more)


def workload(asks: Sequence[Ask], name: str = "by-hand") -> Workload:
    """These requests, in this order."""
    vms = [(*vm, each.priority) for each in asks for vm in each.vms]
    bands = ("", *TINY.bands)
    return Workload(
        name=name,
        types=[WorkloadType(kind, {ANY: tuple(map(float, DEMAND[kind]))}) for kind in KINDS],
        resources=("cores", "memory"),
        arrival=np.array([each.at for each in asks], np.float64),
        first=np.cumsum([0, *(len(each.vms) for each in asks)]),
        type=np.array([KINDS.index(kind) for kind, _, _ in vms], np.int32),
        lifetime=np.array([stay for _, stay, _ in vms], np.float64),
        tenants=[each.tenant or f"t{i}" for i, each in enumerate(asks)],
        priority=np.array([bands.index(band) for _, _, band in vms], np.int8),
        priorities=bands,
        constraints={i: each.constraints for i, each in enumerate(asks) if each.constraints is not None},
    )


def machines(old: int = 0, new: int = 0) -> Zone:
    """A zone with a cluster of old machines, one of new ones, or both."""
    plans = [ClusterPlan(0, 0, (old,))] if old else []
    return build(TINY, (*plans, *([ClusterPlan(1, 0, (new,))] if new else [])))


def experiment(**what: Any) -> Experiment:
    """One that leaves nothing for later: no checkpoints, a sample a second."""
    fields: dict[str, Any] = {"workload": "given", "zone": "given", "checkpoint": 0, "sample": 1.0} | what
    return Experiment(name="by-hand", **fields)


def simulation(
    asks: Sequence[Ask] | Workload, zone: Zone, policy: str = "fast", seed: int = 1, **what: Any
) -> Simulation:
    """A run that has not begun."""
    given = asks if isinstance(asks, Workload) else workload(asks)
    return Simulation(experiment(**what), policy, seed, given, zone, find_policy)


class Fate:
    """Draws that are known beforehand, in place of random ones."""

    def __init__(self, shares: Sequence[float]) -> None:
        self._shares = iter(shares)

    def random(self) -> float:
        """Below the ratio of hits: a hit."""
        return next(self._shares, 0.0)


def fails(simulation: Simulation, *failures: tuple[float, int, float], shares: Sequence[float] = ()) -> Simulation:
    """Let machines fail: when, which by its row, and for how long."""
    simulation.crew.random = Fate(shares)  # type: ignore[assignment]
    for at, machine, lasts in failures:
        simulation.faults.plan(at, [machine], lasts)
    return simulation


def run(asks: Sequence[Ask] | Workload, zone: Zone, policy: str = "fast", seed: int = 1, **what: Any) -> RunResult:
    """A run, to its end."""
    return Watched.of(simulation(asks, zone, policy, seed, **what)).tables


@dataclass
class Seen:
    """An operation and its answer, when it got there."""

    at: float
    operation: Operation
    answer: Answer


@dataclass
class Commit:
    """What was proposed to the store at a moment, and what came of it."""

    at: float
    proposals: Sequence[Proposal]
    outcomes: Sequence[Outcome]


@dataclass
class Watched:
    """A run of which everything is written down: each answer, and each commit."""

    simulation: Simulation
    answers: list[Seen] = field(default_factory=list)
    commits: list[Commit] = field(default_factory=list)
    result: RunResult | None = None

    @classmethod
    def of(cls, made: Simulation) -> Watched:
        """From its beginning to its end. Checkpoints are not for it: the store would be another one afterwards."""
        watched = cls(made)

        def witness(operation: Operation, answer: Answer) -> None:
            watched.answers.append(Seen(made.clock.now, operation, answer))

        made.crew.witness = witness
        store, commit = made.store, made.store.commit

        def noted(group: Sequence[Proposal], *arguments: Any, **named: Any) -> list[Outcome]:
            outcomes = commit(group, *arguments, **named)
            watched.commits.append(Commit(made.clock.now, group, outcomes))
            return outcomes

        store.commit = noted  # type: ignore[method-assign]
        with patch.object(roost.sim.simulation, "_little_garbage", nullcontext):  # it takes longer than such a run
            watched.result = made.run()
        return watched

    @property
    def tables(self) -> RunResult:
        """What the run left."""
        assert self.result is not None
        return self.result


def column(result: RunResult, name: str, table: str = "timeline") -> list[Any]:
    """Of a table, as a list."""
    values: list[Any] = getattr(result, table)[name].to_list()
    return values


def rows(result: RunResult) -> list[Mapping[str, Any]]:
    """The requests."""
    return list(result.requests.iter_rows(named=True))
