"""What is found out by a look at cached keys is what both policies say when every machine is judged from scratch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from roost.engine.funnel import chosen_clusters
from roost.engine.kernel.codes import INVALID
from roost.engine.ruleset import BoundRule, key_shifts
from roost.engine.selection import Engine
from roost.engine.shape import Shape
from roost.engine.tenant import TenantDesk
from roost.model.errors import RoostError
from roost.model.request import VM, Constraints, Request
from roost.model.rows import MachineState
from roost.model.zone import Zone
from roost.placing.allocator import Allocator
from roost.placing.contrast import Contrast, Difference
from roost.placing.decision import Decision
from tests.property.operators import set_machine_health, set_machine_state
from tests.property.zones import COLUMNS, MIDDLE, TINY, ClusterPlan, build, policy
from tests.unit.test_gangs import HALF

DECISIONS = 400
TYPES = ("A1", "A3", "A7", "D3", "D13", "G3", "Full-gen4")


def differing(rules: tuple[BoundRule, ...], winner: int, loser: int) -> str:
    """The first rule whose buckets differ in two keys."""
    parts = [(winner >> shift, loser >> shift) for shift in key_shifts(rules)]
    return next(bound.rule.name for bound, (ours, theirs) in zip(rules, parts, strict=True) if ours != theirs)


class Judge:
    """Judges every machine of the zone for one VM, as it was just before a decision got to it."""

    def __init__(self, engine: Engine, decision: Decision, at: int, shape: Shape) -> None:
        trial = decision.trial
        self.rules, self.view = engine.rules, decision.allocator.view.at(decision.before)
        for i, machine in zip(trial.order[:at], trial.machines, strict=False):
            self.view.place(machine, trial.shapes[i])
        desk = TenantDesk(self.view)
        homes = (*trial.seating.parts[""].homes, *trial.machines[:at])
        desk.open(decision.constraints, homes, len(trial.order) - at)
        if not homes:
            desk.refuse(trial.refused)
        self.judged = engine.judge(self.view, shape, desk)
        self.chosen = chosen_clusters(engine, self.view, shape, self.judged).tolist()
        looked_at = np.isin(self.view.machines["cluster"], self.chosen) & (self.judged.verdicts < 0)
        self.lowest = int(np.where(looked_at, self.judged.keys, INVALID).min())
        self.best = np.flatnonzero(looked_at & (self.judged.keys == self.lowest)).tolist()

    def against(self, machine: int) -> tuple[str, str]:
        """Why a machine is not among the best, and by which rule; nothing if it is as good."""
        rules, judged = self.rules, self.judged
        if (verdict := judged.verdicts[machine]) >= 0:
            hard = (*rules.cluster_validators, *rules.validators, *rules.tenant_rules)
            return "refused", hard[verdict].rule.name
        own, cluster = int(judged.keys[machine]), int(self.view.machines[machine]["cluster"])
        if cluster not in self.chosen:
            last, theirs = (int(judged.cluster_keys[c]) for c in (self.chosen[-1], cluster))
            if last != theirs:
                return "cluster", differing(rules.cluster_preferences, last, theirs)
        return ("", "") if own <= self.lowest else ("preferred", differing(rules.preferences, self.lowest, own))


def check(contrast: Contrast, decision: Decision, found: Difference | None) -> None:
    trial, names = decision.trial, contrast.allocator.zone.machine_names
    shapes = contrast._shapes(decision)
    for at, vm in enumerate(trial.order[: len(trial.machines) + 1]):
        other = Judge(contrast.arm.engine, decision, at, shapes[vm])
        machine = trial.machines[at] if at < len(trial.machines) else None
        kind, rule = other.against(machine) if machine is not None else ("placed" if other.best else "", "")
        if machine is not None and not other.best:
            kind = "declined"
        if not kind:
            continue
        assert found is not None, f"VM {vm}: {kind} by {rule} was not found"
        own = Judge(decision.engine, decision, at, trial.shapes[vm])
        assert (found.vm, found.kind, found.machine) == (vm, kind, "" if machine is None else names[machine])
        if found.other_machine:
            row = names.index(found.other_machine)
            assert row in other.best
            assert found.kept_by == own.against(row)[1]
        else:
            assert not other.best
        assert found.rule == (found.kept_by if kind == "placed" else rule)
        return
    assert found is None, f"{found} makes no difference"


PLANS = tuple(ClusterPlan(c % 2, c % 3, (3, 2, 1)) for c in range(6))
STANDARD_ZONE, TINY_ZONE = Zone.synthetic(120), build(TINY, PLANS, wear=1)


@pytest.mark.parametrize(
    ("zone", "types", "first", "second"),
    [
        (STANDARD_ZONE, TYPES, "default", "dense"),
        (STANDARD_ZONE, TYPES, "dense", "spread"),
        (STANDARD_ZONE, TYPES, "fast", "default"),
        (STANDARD_ZONE, TYPES, "default", HALF),  # which heeds less
        (TINY_ZONE, TINY.asked, MIDDLE, COLUMNS),  # few clusters at a time, by other traits
        (TINY_ZONE, TINY.asked, COLUMNS, MIDDLE),
    ],
    ids=lambda value: value.split("\n")[1 if value[0] == "\n" else 0] if isinstance(value, str) else "",
)
def test_differences_are_those_of_judging_every_machine(
    zone: Zone, types: Sequence[str], first: str, second: str
) -> None:
    rng = np.random.default_rng([len(first), len(second)])
    allocator = Allocator(zone, policy(first), seed=1)
    twin = Allocator(zone, policy(first), seed=1)  # nobody watches what it decides
    contrast = Contrast(allocator, policy(second))
    kinds: Counter[str] = Counter()
    for number in range(DECISIONS):
        request = _request(allocator, rng, types)
        try:
            decision = allocator.allocate(request)
        except RoostError:
            with pytest.raises(RoostError):
                twin.allocate(request)
            continue
        before = _rows(allocator)
        explained = number % 3 == 0
        found = contrast.compare(decision, lambda _, wanted=explained: wanted)  # type: ignore[misc]
        assert before == _rows(allocator), "something stayed changed"
        assert twin.allocate(request).placements == decision.placements, "who is watched decides otherwise"
        if found is None or found.kind != "invalid":
            check(contrast, decision, found)
        if found is not None:
            kinds[found.kind] += 1
            assert bool(found.text) == (explained or found.kind == "invalid")
        machine = zone.machine_names[rng.integers(len(zone.machine_names))]
        for each in (allocator, twin):
            _happen(each, np.random.default_rng(number), machine)
    allocator.check_invariants()
    assert 10 < sum(kinds.values()) < DECISIONS, kinds
    assert kinds["cluster"] > 5 or zone is not TINY_ZONE


def _rows(allocator: Allocator) -> list[bytes]:
    return [table.tobytes() for table in allocator.view.rows[:3]]


def _request(allocator: Allocator, rng: np.random.Generator, types: Sequence[str]) -> Request:
    """One VM or several, now and then with something special."""
    tenant = f"t{rng.integers(60)}"
    vms = [VM(str(rng.choice(types)), isolated=bool(rng.random() < 0.05))] * int(rng.choice([1, 1, 1, 2, 5, 20]))
    constraints = None
    if tenant not in allocator.tenants and rng.random() < 0.3:
        given: list[dict[str, Any]] = [
            {"min_fault_domains": 2}, {"max_per_machine": 1}, {"colocate": "rack"}, {"max_per_rack": 3},
        ]  # fmt: skip
        constraints = Constraints(**given[rng.integers(4)])
    return Request(tenant, vms, constraints)


def _happen(allocator: Allocator, rng: np.random.Generator, machine: str) -> None:
    """VMs leave, machines fail or fall ill."""
    if allocator.vms and rng.random() < 0.3:
        for name in rng.choice(sorted(allocator.vms), min(5, len(allocator.vms)), replace=False).tolist():
            allocator.release(name)
    if rng.random() < 0.1:
        set_machine_health(allocator, machine, int(rng.choice([20, 60, 85])))
    if rng.random() < 0.05:
        set_machine_state(allocator, machine, str(rng.choice([s.name.lower() for s in MachineState])))
