"""Machines that are set aside get nothing; of all others the best are chosen, as if nothing were set aside."""

from __future__ import annotations

import random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from roost.engine.funnel import chosen_clusters
from roost.model.request import VM, Constraints, Request
from tests.property.crowded import LIMITS, TYPES, ZONE, crowded
from tests.property.effort import examples


@settings(max_examples=examples(10))
@given(seed=st.integers(0, 2**16))
def test_the_best_machine_that_is_not_set_aside_is_chosen_or_there_is_none_without_giving_way(seed: int) -> None:
    draw = random.Random(seed)
    allocator = crowded(draw)
    engine, view = allocator.engine, allocator.view
    for i in range(20):
        aside = np.array(draw.sample(range(len(ZONE.machines)), draw.choice([1, 50, 90, 99])))
        vm, limits = VM(draw.choice(TYPES), priority=draw.choice(["", "spot"])), draw.choice(LIMITS)
        shape, before = allocator.shape(vm, f"new {i}"), view.machines.copy()
        engine.desk.open(limits, [], 1)
        judged = engine.judge(view, shape, engine.desk)
        engine.desk.close()
        judged.verdicts[aside] = 0
        valid = judged.verdicts < 0
        looked_at = valid & np.isin(before["cluster"], chosen_clusters(engine, view, shape, judged))
        best = looked_at & (judged.keys == judged.keys[looked_at].min(initial=2**62))
        must_give_way = (before["free"][:, -1] < shape.row["demand"][0][before["generation"]]).any(axis=1)
        decision = allocator.decide(Request(f"new {i}", (vm,), limits), aside=aside)
        if decision.ok:
            (machine,) = decision.trial.machines
            assert (best[machine], must_give_way[machine], decision.victims) == (True, False, ())
            found = decision.explanation
            assert (found.candidates[0].machine, found.valid) == (ZONE.machine_names[machine], valid.sum())
            assert sum(reason.machines for reason in found.reasons) == len(ZONE.machines) - found.valid
        else:
            assert not best.any() or must_give_way[best].any()
            assert (view.machines == before).all()
        assert not engine.desk.counts.any(), "the next one may have them"
    allocator.check_invariants()


@settings(max_examples=examples(10))
@given(seed=st.integers(0, 2**16))
def test_several_vms_keep_off_machines_set_aside_however_they_are_placed(seed: int) -> None:
    draw = random.Random(seed)
    allocator = crowded(draw)
    for i in range(10):
        aside = np.array(draw.sample(range(len(ZONE.machines)), draw.choice([50, 90, 97])))
        vms = [VM(draw.choice(TYPES)) for _ in range(draw.choice([2, 3]))]
        limits = Constraints(max_per_machine=1, min_fault_domains=draw.choice([0, 2]))
        decision = allocator.decide(Request(f"new {i}", vms, limits), aside=aside)
        machines = decision.trial.machines if decision.ok else ()
        assert not set(machines) & set(aside.tolist())
        assert len(set(machines)) == len(machines)
    allocator.check_invariants()
