"""Many VMs that come and go at once leave the rows as they would one by one, and can be undone as one by one."""

from __future__ import annotations

import random

import numpy as np
import pytest

from roost.engine.kernel.compiler import compile_rules
from roost.engine.selection import Engine
from roost.engine.shape import Shapes
from roost.engine.view import View
from roost.model.request import VM
from roost.model.zone import Zone
from roost.rules.policy import Policy

ZONE = Zone.synthetic(100, seed=1)
KINDS = [VM("A1"), VM("A1", isolated=True), VM("A4", priority="spot"), VM("A2")]


@pytest.mark.parametrize("seed", range(5))
def test_many_at_once_are_as_one_by_one(seed: int) -> None:
    rules, draw = Policy.default().rules, random.Random(seed)
    shapes = Shapes(ZONE, rules)
    known = [shapes.of_running(vm, 3) for vm in KINDS]
    single, bulk = (View(ZONE, compile_rules(rules, ZONE)) for _ in range(2))
    revisions, states = [], []
    for _ in range(6):
        revisions.append(bulk.revision)
        states.append(bulk.machines.copy())
        machines = np.array([draw.randrange(10) for _ in range(draw.randint(1, 40))])
        which = np.array([draw.randrange(len(known)) for _ in machines])
        signs = np.array([draw.choice([1, 1, -1]) for _ in machines])
        bulk.place_many(machines, which, signs, np.concatenate([shape.plain for shape in known]))
        for machine, kind, sign in zip(machines.tolist(), which.tolist(), signs.tolist(), strict=True):
            (single.place if sign > 0 else single.remove)(machine, known[kind])
        for mine, theirs in zip(bulk.rows[:3], single.rows[:3], strict=True):
            assert (mine == theirs).all()
        assert bulk.revision == single.revision, "each VM is a change of its own"
    for revision, state in zip(reversed(revisions), reversed(states), strict=True):
        assert (bulk.at(revision).machines == state).all()
        bulk.rewind(revision)
        assert (bulk.machines == state).all()


def test_what_is_kept_to_go_back_to_is_counted_by_changes() -> None:
    rules = Policy.named("fast").rules
    shape = Shapes(ZONE, rules).of_running(VM("A1"), 0)
    view = View(ZONE, compile_rules(rules, ZONE), history=100)
    for _ in range(10):
        many = np.zeros(30, np.int64)
        view.place_many(many, many, many + 1, shape.plain)
    assert view.revision - view._history.reach < 100
    view.at(view._history.reach)


def test_what_the_kernel_places_counts_too() -> None:
    rules = Policy.named("fast").rules
    view = View(ZONE, compile_rules(rules, ZONE), history=20)
    engine, shape = Engine(view, rules), Shapes(ZONE, rules).of(VM("A1"), 0)
    for _ in range(50):
        assert engine.assign(shape).machine >= 0
    assert view.revision - view._history.reach == 20
    assert view.reaches(view.revision - 20)
    assert not view.reaches(view.revision - 21)
