"""Machines that no preference can tell apart are equally likely, wherever they are; so are the best few, if asked for.

Seeds are fixed, so these tests always see the same draws; a fair draw fails a chi-square test at 0.1 % once in a
thousand seeds, a biased one nearly always.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable

import pytest

from roost.engine.choice import AmongBest
from roost.model.request import VM, Constraints, Request
from roost.model.rows import MachineState
from tests.oracle.plain import Wish
from tests.property.world import World
from tests.property.zones import MIDDLE, STANDARD, TINY, ClusterPlan, build, policy

DRAWS = 20_000
UNEVEN = (ClusterPlan(0, 0, (1, 4, 2)), ClusterPlan(0, 1, (3,)), ClusterPlan(0, 2, (2, 1)))


def critical(degrees: int) -> float:
    """What chi-square exceeds once in a thousand times (Wilson and Hilferty)."""
    spread = 2 / (9 * degrees)
    return degrees * (1 - spread + 3.0902 * math.sqrt(spread)) ** 3


def assert_uniform(counts: Counter[int], among: Iterable[int]) -> None:
    """Each was drawn, nothing else was, and none too often."""
    wanted = sorted(among)
    assert set(counts) == set(wanted)
    expected = counts.total() / len(wanted)
    chi_square = sum((counts[m] - expected) ** 2 / expected for m in wanted)
    assert chi_square < critical(len(wanted) - 1), f"chi-square {chi_square:.1f} of {dict(counts)}"


def drawn(world: World, draw: Callable[[], int]) -> Counter[int]:
    """Many draws; the zone is as it was before after each."""
    counts = Counter(draw() for _ in range(DRAWS))
    world.allocator.check_invariants()
    return counts


def allocate_and_release(world: World, vm: VM, constraints: Constraints | None = None) -> Callable[[], int]:
    """Place one VM, and take it away."""

    def draw() -> int:
        decision = world.allocator.allocate(Request("t", (vm,), constraints))
        world.allocator.release(decision.placements[0].vm)
        return decision.trial.machines[0]

    return draw


@pytest.mark.parametrize("name", ["default", "dense", "spread", "fast"])
def test_ties_over_racks_and_clusters_of_different_sizes_are_equally_likely(name: str) -> None:
    world = World(build(STANDARD, UNEVEN), policy(name), seed=7)
    answer = world.answer(Wish(VM("A1"), "t"))
    assert len(answer.best) == 13
    assert_uniform(drawn(world, allocate_and_release(world, VM("A1"))), answer.best)


def test_ties_among_some_machines_of_some_racks_are_equally_likely() -> None:
    world = World(build(STANDARD, UNEVEN), policy("default"), seed=8)
    for machine in (0, 1, 5, 8):
        world.set_health(machine, 60)
    world.set_state(11, MachineState.DOWN)
    answer = world.answer(Wish(VM("A3"), "t"))
    assert answer.best == {2, 3, 4, 6, 7, 9, 10, 12}
    assert_uniform(drawn(world, allocate_and_release(world, VM("A3"))), answer.best)


def test_ties_are_equally_likely_for_a_tenant_whose_constraints_exclude_some() -> None:
    world = World(build(STANDARD, UNEVEN), policy("fast"), seed=9)
    limits = Constraints(max_per_rack=1, max_per_machine=1, update_domain_skew=1)
    for cluster in ("c0", "c0", "c2"):
        assert world.allocate(
            Request("t", (VM("Full-gen3", cluster=cluster),), limits if not world.history else None)
        ).decision.ok
    answer = world.answer(Wish(VM("A1"), "t", limits))
    assert 3 <= len(answer.best) < 10
    anywhere = VM("A1", cluster="*")  # not where the tenant began
    assert_uniform(drawn(world, allocate_and_release(world, anywhere)), answer.best)


def draw_top(world: World, wish: Wish, top: int) -> Callable[[], int]:
    """Let the engine draw among the best few, and take the VM away."""
    engine, view = world.allocator.engine, world.allocator.view
    shape = world.allocator.shapes.of(wish.vm, 1)
    homes = world.oracle.homes(wish.tenant)

    def draw() -> int:
        engine.desk.open(wish.constraints, homes, wish.remaining)
        machine = engine.assign(shape, AmongBest(top)).machine
        engine.desk.close()
        view.remove(machine, shape)
        return machine

    return draw


def graded_world() -> World:
    """Thirteen machines in five grades: health in steps that the default policy tells apart."""
    world = World(build(STANDARD, UNEVEN), policy("default"), seed=11)
    for machine, health in enumerate((100, 99, 70, 99, 45, 100, 70, 99, 40, 70, 99, 45, 70)):
        world.set_health(machine, health)
    return world


@pytest.mark.parametrize("top", [2, 3, 6, 7, 9, 12, 13, 14, 100, 1_000])
def test_a_draw_among_the_top_few_is_uniform_and_fair_to_ties_at_the_border(top: int) -> None:
    world = graded_world()
    wish = Wish(VM("A1"), "t")
    answer = world.answer(wish)
    sure, border = answer.top(top)
    counts = drawn(world, draw_top(world, wish, top))
    assert set(counts) == sure | border
    size = min(top, len(answer.candidates))
    if sure:
        assert_uniform(Counter({m: counts[m] for m in sure}), sure) if len(sure) > 1 else None
    if len(border) > 1:
        assert_uniform(Counter({m: counts[m] for m in border}), border)
    share, expected = sum(counts[m] for m in sure) / DRAWS, len(sure) / size
    assert abs(share - expected) < 4 * math.sqrt(expected * (1 - expected) / DRAWS) + 1e-12


def test_a_draw_among_the_top_few_of_continuous_scores_is_uniform() -> None:
    world = World(build(TINY, (ClusterPlan(1, 0, (3, 1, 4)), ClusterPlan(0, 1, (2,)))), policy(MIDDLE), seed=12)
    for i, kind in enumerate(("small", "tall", "wide", "big", "small", "only-new")):
        world.allocate(Request(f"t{i}", (VM(kind, cluster="c0"),)))
    wish = Wish(VM("small", cluster="c0"), "t")
    sure, border = world.answer(wish).top(5)
    assert len(sure | border) == 5
    assert_uniform(drawn(world, draw_top(world, wish, 5)), sure | border)


@pytest.mark.parametrize("top", [2, 3, 5])
def test_a_draw_among_the_top_few_is_uniform_for_a_tenant_whose_constraints_exclude_some(top: int) -> None:
    """What the tenant refuses is no part of the top few: it must not make those before it more likely."""
    world = World(build(STANDARD, UNEVEN), policy("default"), seed=13)
    limits = Constraints(max_per_rack=1)
    for machine in set(range(13)) - {2}:
        world.set_health(machine, 99)
    assert world.allocate(Request("t", (VM("A1"),), limits)).decision.trial.machines == (2,)  # in the rack of 1 to 4
    for machine, health in enumerate((100, 99, 70, 99, 99, 70, 70, 70, 70, 40, 40, 40, 40)):
        world.set_health(machine, health)
    wish = Wish(VM("A1"), "t", limits)
    answer = world.answer(wish)
    assert [m for m, bound in enumerate(answer.failures) if bound is not None] == [1, 2, 3, 4]
    assert world.answer(Wish(VM("A1"), "t")).candidates[:4] == [0, 1, 3, 4]  # three that are refused come second
    sure, border = answer.top(top)
    assert (sorted(sure), sorted(border)) == ([0], [5, 6, 7, 8])
    counts = drawn(world, draw_top(world, wish, top))
    assert set(counts) == sure | border
    assert abs(counts[0] / DRAWS - 1 / top) < 4 * math.sqrt(1 / top / DRAWS), f"machine 0 was drawn {counts[0]} times"
    assert_uniform(Counter({m: counts[m] for m in border}), border)
