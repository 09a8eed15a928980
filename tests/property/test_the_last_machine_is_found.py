"""Selecting the best few clusters never hides the last machine that would do, however badly its cluster ranks."""

from __future__ import annotations

import pytest

from roost.model.request import VM, Constraints, Request
from tests.oracle.plain import Wish
from tests.property.world import World
from tests.property.zones import STANDARD, ClusterPlan, build, policy

# More clusters than any shipped policy looks at; the last is newest, and has hardware that nobody asked for.
ORDINARY, RACK_SIZE = 18, 2
CLUSTERS = (
    *(ClusterPlan(1, 0, (RACK_SIZE, RACK_SIZE)) for _ in range(ORDINARY)),
    ClusterPlan(3, 1, (3, 3), features=("infiniband",)),
)
ZONE = build(STANDARD, CLUSTERS)
LAST = ORDINARY
each_policy = pytest.mark.parametrize("name", ["default", "dense", "spread", "fast"])


def fill_last_cluster(world: World, machines: int) -> None:
    """Fill some machines of the last cluster to the brim, so that every ranking puts it last."""
    for i in range(machines):
        assert world.allocate(Request(f"full{i}", (VM("Full-gen6"),))).decision.ok


def hold_other_clusters(world: World) -> None:
    """A small isolated VM on each machine of the other clusters: hardly anything is used, and nobody else may come."""
    for i in range(ORDINARY * 2 * RACK_SIZE):
        pinned = VM("A0", isolated=True, cluster=ZONE.cluster_names[i % ORDINARY])
        assert world.allocate(Request(f"alone{i}", (pinned,))).decision.ok


def ranks_last(world: World, wish: Wish) -> bool:
    """Whether more valid clusters than the policy looks at rank before the last one."""
    answer = world.answer(wish)
    better = [c for c in answer.cluster_keys if answer.cluster_keys[c] < answer.cluster_keys[LAST]]
    return len(better) > answer.rules.top_clusters


@each_policy
@pytest.mark.parametrize("seed", [0, 1])
def test_the_last_valid_machine_is_found_in_the_cluster_that_ranks_worst(name: str, seed: int) -> None:
    world = World(ZONE, policy(name), seed, limits=None)
    fill_last_cluster(world, 5)
    wish = Wish(VM("A1"), "t")
    assert len(world.answer(wish).valid) == len(ZONE.machines) - 5
    assert world.allocate(Request("early", (VM("A1"),))).decision.ok  # an evaluation that is stale later
    world.release("early/0")
    hold_other_clusters(world)
    answer = world.answer(wish)
    assert len(answer.valid) == 1
    assert answer.ranked == (LAST,)
    assert ranks_last(world, wish)
    assert list(world.allocate(Request("t", (VM("A1"),))).decision.trial.machines) == answer.valid
    world.check()


@each_policy
@pytest.mark.parametrize(
    "constraints",
    [
        Constraints(colocate="rack"),
        Constraints(colocate="cluster"),
        Constraints(colocate="datacenter"),
        Constraints(max_fault_domains=1),
        Constraints(colocate="cluster", max_per_machine=1),
    ],
    ids=lambda c: "-".join(c.named),
)
def test_a_tenant_held_in_the_cluster_that_ranks_worst_is_served_there(name: str, constraints: Constraints) -> None:
    world = World(ZONE, policy(name), limits=None)
    first = Request("t", (VM("A1", cluster=ZONE.cluster_names[LAST]),), constraints)
    assert world.allocate(first).decision.ok
    fill_last_cluster(world, 4)
    wish = Wish(VM("A1"), "t", constraints)
    answer = world.answer(wish)
    assert 1 <= len(answer.valid) <= 2
    assert answer.ranked == (LAST,)
    assert ranks_last(world, wish)
    assert world.allocate(Request("t", (VM("A1"),))).decision.trial.machines[0] in answer.best
    world.check()


@each_policy
def test_a_zone_filled_to_the_brim_serves_as_long_as_a_single_machine_can(name: str) -> None:
    """VMs are asked for until one is refused; each choice is checked, and so is that nothing is left for the last."""
    zone = build(STANDARD, (*(ClusterPlan(0, 0, (1, 1)) for _ in range(17)), ClusterPlan(2, 0, (1,))), 1)
    world = World(zone, policy(name), seed=3, limits=None)
    served = 0
    while world.allocate(Request(f"t{served}", (VM("A6"),))).decision.ok:
        served += 1
    assert served >= 30
    world.check()
