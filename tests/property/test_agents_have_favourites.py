"""An agent that avoids conflicts takes, of the best few machines, the one it likes most, for as long as it fits."""

from __future__ import annotations

from collections import Counter

import pytest

from roost.engine.choice import Favourite
from roost.engine.selection import Engine
from roost.model.request import VM, Constraints
from tests.oracle.plain import Wish
from tests.property.test_ties_are_drawn_uniformly import UNEVEN, assert_uniform, graded_world
from tests.property.world import World
from tests.property.zones import STANDARD, build, policy

SEEDS = 4_000


def favourite(world: World, wish: Wish, top: int, seed: int) -> int:
    """What an agent of a seed takes, of so many of the best; the zone is as it was before."""
    allocator = world.allocator
    engine = Engine(allocator.view, allocator.policy.rules, seed)
    shape = allocator.shapes.of(wish.vm, 1)
    engine.desk.open(wish.constraints, world.oracle.homes(wish.tenant), wish.remaining)
    machine = engine.assign(shape, Favourite(top)).machine
    engine.desk.close()
    allocator.view.remove(machine, shape)
    return machine


@pytest.mark.parametrize("top", [2, 6, 13, 100])
def test_a_favourite_is_among_the_best_and_every_one_of_them_is_somebodys(top: int) -> None:
    world = graded_world()
    wish = Wish(VM("A1"), "t")
    sure, border = world.answer(wish).top(top)
    counts = Counter(favourite(world, wish, top, seed) for seed in range(SEEDS))
    assert_uniform(counts, sure | border)


def test_a_favourite_stays_the_same_while_others_change() -> None:
    world = graded_world()
    wish = Wish(VM("A1"), "t")
    first = [favourite(world, wish, 13, seed) for seed in range(50)]
    for machine in set(range(13)) - {first[0]}:
        world.set_health(machine, 100)
    assert favourite(world, wish, 13, 0) == first[0]
    assert len(set(first)) > 5, "agents like different machines"


def test_a_favourite_is_one_that_the_tenants_constraints_allow() -> None:
    world = World(build(STANDARD, UNEVEN), policy("default"), seed=3)
    wish = Wish(VM("A1"), "t", Constraints(max_per_machine=1))
    answer = world.answer(wish)
    for seed in range(100):
        assert favourite(world, wish, 13, seed) in answer.candidates
