"""Room for growth and healing: thresholds in empty machines, and why not in utilisation (Azure's VM allocator)."""

from __future__ import annotations

from typing import Any

import numpy as np

from roost.admission.thresholds import compute
from roost.agent.verbs.machine import SetMachine
from roost.experiments.room_demand import OVERLOAD, WHOLE, Span
from roost.experiments.room_findings import TARGETS, draw, find
from roost.experiments.room_life import Life
from roost.experiments.study import Cell, CellContext, FigureValue, Study
from roost.model.request import VM
from roost.model.rows import MachineState
from roost.model.thresholds import Thresholds
from roost.rules.policy import Policy
from roost.sim.simulation import Progress
from roost.store.ledger import Ledger
from roost.whatif.trial_zone import TrialZone

TRIED = 12  # machines of a sample that are tried to be healed from
PAST = 1_000  # added to a seed: a cluster's past is not what comes
HEALING = (0, 2, 4, 8, 12)  # machines between scale-outs' threshold and healing's
GROWING = (0, 1, 2, 4, 8, 16)  # machines between new deployments' threshold and scale-outs'
LOADS = (0.4, 0.55, 0.7, 0.85)
QUICK_LOADS = (0.55, OVERLOAD)  # a short life has states with empty machines by the one, and without by the other
POLICIES = ("fast", "spread")  # one packs, the other spreads out


def cells(quick: bool) -> list[Cell]:
    """Buffers for healing, buffers for growth, thresholds from history, and states without thresholds."""
    size = {"machines": 40, "days": 6.0, "warm_up": 2.0} if quick else {"machines": 200, "days": 320.0, "warm_up": 20.0}
    seeds = (1,) if quick else (1, 2, 3)
    found = []
    for seed in seeds:
        common: dict[str, Any] = {"seed": seed, **size}
        for spare in HEALING[::2] if quick else HEALING:
            kept = {"kind": "healing", "new": spare + 1, "scale_out": spare}
            found.append(Cell(f"healing-{spare}-seed{seed}", {**kept, **common}))
        for spare in GROWING[::3] if quick else GROWING:
            kept = {"kind": "growth", "new": spare + 2, "scale_out": 2}
            found.append(Cell(f"growth-{spare}-seed{seed}", {**kept, **common}))
        found.append(Cell(f"history-seed{seed}", {"kind": "history", **common}))
        for policy in POLICIES:
            for load in QUICK_LOADS if quick else LOADS:
                short = common | {"days": min(60.0, size["days"])}
                label = f"state-{policy}-{load}-seed{seed}"
                found.append(Cell(label, {"kind": "state", "policy": policy, "load": load, **short}))
    return found


def perform(cell: Cell, context: CellContext) -> list[dict[str, FigureValue]]:
    """One life, or the states of one."""
    span = Span(cell["machines"], cell["days"], cell["warm_up"], cell["seed"])
    if cell["kind"] == "state":
        return _states(cell, span, context)
    if cell["kind"] == "history":
        kept = _from_history(span, _part(context, 0.0, 0.4))
        return [_with(kept, "history", span, _part(context, 0.4, 1.0))]
    kept = Thresholds(new=cell["new"], scale_out=cell["scale_out"])
    return [_with(kept, cell["kind"], span, _part(context, 0.0, 1.0))]


def _part(context: CellContext, begin: float, end: float) -> Progress:
    """Tells how far a cell is, by how far one part of it is."""
    return lambda share, done: context.tell(begin + share * (end - begin), done)


def _with(kept: Thresholds, kind: str, span: Span, tell: Progress) -> dict[str, FigureValue]:
    """What comes of keeping machines empty."""
    life = Life(span, "fast", kept)
    return {"kind": kind, "new": kept.new, "scale_out": kept.scale_out, **life.measured(life.run(tell))}


def _from_history(span: Span, tell: Progress) -> Thresholds:
    """What a past asks for in which there was much to spare, so that it is that of demand."""
    spare = span.machines // 4
    past = Span(span.machines, (span.warm_up + span.days) / 2, span.warm_up, span.seed + PAST)
    life = Life(past, "fast", Thresholds(new=spare, scale_out=spare // 4))
    life.run(tell)
    (found,) = compute(life.history(), TARGETS)
    return found.thresholds


def _states(cell: Cell, span: Span, context: CellContext) -> list[dict[str, FigureValue]]:
    """A cluster without thresholds, looked at once a day: how full, how many empty, what could be healed and hosted."""
    rows: list[dict[str, FigureValue]] = []
    random, policy = np.random.default_rng([span.seed, 10]), Policy.named(cell["policy"])

    def look() -> None:
        allocator, ledger = life.allocator, life.simulation.store.load()
        machines = allocator.view.machines
        in_use = np.flatnonzero((machines["vms"] > 0) & (machines["state"] == MachineState.READY))
        tried = random.choice(in_use, min(TRIED, len(in_use)), replace=False).tolist()
        healed = sum(heals(ledger, policy, allocator.zone.machine_names[m]) for m in tried)
        rows.append(
            {
                "kind": "state",
                "policy": cell["policy"],
                "load": cell["load"],
                "seed": cell["seed"],
                "utilisation": allocator.usage().utilisation,
                "empty": life.empty,
                "healable": healed / max(1, len(tried)),
                "hosts": int(allocator.has_machine_for(VM(WHOLE), allocator.arms[0])),
            }
        )

    life = Life(span, cell["policy"], Thresholds(), cell["load"], every=1.0, looked=look)
    life.run(_part(context, 0.0, 1.0))
    return rows


def heals(ledger: Ledger, policy: Policy, machine: str) -> bool:
    """Whether all VMs of a machine would find another one, if it failed: the service's healer says it, on a copy."""
    trial = TrialZone(ledger, policy)
    vms = trial.vms_on([machine])
    trial.do(SetMachine(machine, state="down"))
    trial.rest()
    return all(trial.runs(vm) for vm in vms)


SLIDES_THRESHOLDS = Study(
    name="slides-thresholds",
    title="thresholds in empty machines",
    source="Azure's VM allocator internals (slides): buffers, setting the thresholds, utilisation against empty nodes",
    question="Do empty machines tell what utilisation does not, and what do thresholds bring and cost?",
    cells=cells,
    perform=perform,
    find=find,
    draw=draw,
)
