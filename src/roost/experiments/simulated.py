"""Cells that simulate: from a checkpoint if there is one, telling how far they are; policies with a rule changed."""

from __future__ import annotations

import re
from collections.abc import Callable

from roost.experiments.study import CellContext
from roost.model.errors import InvalidInput
from roost.model.zone import Zone
from roost.rules.policy import SHIPPED, Policy
from roost.sim.checkpoint import keeper
from roost.sim.experiment import Experiment
from roost.sim.processes import NEARLY
from roost.sim.result import RunResult
from roost.sim.runs import stage
from roost.sim.simulation import Simulation
from roost.traces.workload import Workload
from roost.wiring import find_policy


def simulate(
    experiment: Experiment,
    policy: str,
    seed: int,
    context: CellContext,
    find: Callable[[str], Policy] = find_policy,
    on: tuple[Workload, Zone] | None = None,
) -> RunResult:
    """One run of an experiment. `find`: the policies that it may use, by name; `on`: instead of what it describes."""
    workload, zone = on or stage(experiment, seed)[:2]
    simulation = Simulation(experiment, policy, seed, workload, zone, find)
    saved = context.checkpoint
    if saved.exists():
        try:
            simulation.go_on(saved.read_bytes())
        except InvalidInput:
            saved.unlink()  # of another version: begin anew

    return simulation.run(lambda share, done: context.tell(min(share, NEARLY), done), keeper(saved))


def changed(base: str, pattern: str, replacement: str) -> Policy:
    """A shipped policy with one place of its text replaced."""
    text, places = re.subn(pattern, replacement, (SHIPPED / f"{base}.yaml").read_text())
    assert places == 1, f"{pattern} is in {places} places of {base}"
    return Policy.parse(text, f"{base}.yaml")
