"""Where a VM of low priority can stay longest: the slides' examples, and the future played out many times."""

from __future__ import annotations

import random

import numpy as np
import pytest

from roost.engine.funnel import fact, plain
from roost.engine.rule import rule_of
from roost.engine.side_tables import FORESIGHT
from roost.model.change import PlacedVM
from roost.model.foresight import foresee, table_of
from roost.model.request import VM, Request
from roost.model.zone import Generation, MachineGroup, Resource, VMType, Zone
from roost.placing.allocator import Allocator
from roost.placing.books import RunningVM
from roost.rules.columns.danger import danger
from roost.rules.policy import Policy

# The slides' two types: a large VM comes every three hours, a small one every hour.
Rates = dict[tuple[str, str], float]
RATES: Rates = {("large", ""): 1 / 3, ("small", ""): 1.0}
MOSTLY_LARGE: Rates = {("large", ""): 0.7, ("small", ""): 0.1}
TEXT = """
name: two-priorities
machines:
  validators: [is_ready, has_room]
  preferences:
    - {rule: safest, buckets: 1000}
    - {rule: non_empty, buckets: 1}
    - {rule: best_fit, buckets: 3}
    - {rule: nobody_gives_way, buckets: 1}
"""
POLICY = Policy.parse(TEXT)
UNAWARE = Policy.parse(TEXT.replace("    - {rule: safest, buckets: 1000}\n", ""))
# As many types as other tests' zones have, so that kernels are shared; only two are asked for.
SIZES = {"small": 1, "two": 2, "large": 4, "eight": 8}


def zone_of(machines: int) -> Zone:
    """Machines of eight cores; a large VM takes four of them, a small one a single one."""
    names = tuple(f"m{i}" for i in range(machines))
    group = MachineGroup(
        datacenter="d", cluster="c", rack="r", generation="only", names=names, update_domains=[0] * machines
    )
    return Zone(
        name="z",
        resources=(Resource("cores", "cores", 1), Resource("memory", "GiB", 1)),
        bands=("regular", "spot"),
        generations=(Generation("only", (8, 8)),),
        vm_types=tuple(VMType(name, "s", {"only": (size, size)}) for name, size in SIZES.items()),
        groups=(group,),
    )


def state(used: list[int], spot: list[int] | None = None, policy: Policy = POLICY, rates: Rates = RATES) -> Allocator:
    """Machines that hold so many small regular VMs, and so many small spot VMs, each; what is to come is foreseen."""
    allocator = Allocator(zone_of(len(used)), policy)
    for machine in range(len(used)):
        for band, count in (("", used[machine]), ("spot", (spot or [0] * len(used))[machine])):
            for _ in range(count):
                put(allocator, machine, VM("small", priority=band))
    look_ahead(allocator, rates)
    return allocator


def put(allocator: Allocator, machine: int, vm: VM) -> None:
    """A VM runs on a machine of choice."""
    name = f"vm{len(allocator.vms)}"
    shape = allocator.shape(vm, name)
    allocator.view.place(machine, shape)
    allocator.enter(RunningVM(PlacedVM(name, vm, allocator.zone.machine_names[machine]), name, machine, shape))


def look_ahead(allocator: Allocator, rates: Rates) -> None:
    told = foresee(allocator.zone, allocator.view.machines, rates)
    allocator.view.set_table(FORESIGHT, table_of(told, allocator.zone))


def dangers(allocator: Allocator, vm: VM) -> list[float]:
    """How often something would have to give way on each machine that has room for a VM, if that came to it."""
    rule, view = rule_of(danger), allocator.view
    assert rule is not None
    shape = allocator.shape(vm, "t")
    wish = plain(shape.row[0])
    return [fact(rule, view, m, plain(row), wish) for m, row in enumerate(view.machines)]


SPOT = VM("small", priority="spot")


# ------------------------------------------------------------------------------------------------- the slides' examples


def test_the_node_that_is_filled_next_is_the_most_dangerous() -> None:
    """Example 1: the true safety of nodes. Nodes with 7, 4 and 2 of 8 cores in use.

    The fullest is where the next small VM goes, and its one core is all there is; no large VM fits there, so only small
    ones are a danger to it. The emptiest is filled last, and has room for a spot VM beside what comes.
    """
    first, second, third = dangers(state([7, 4, 2]), SPOT)
    assert first > second > third


def test_more_empty_nodes_make_an_empty_node_safer_than_any_other() -> None:
    """Example 2: the same with two empty nodes more. To them regular VMs come last of all."""
    before = dangers(state([7, 4, 2]), SPOT)
    after = dangers(state([7, 4, 2, 0, 0]), SPOT)
    assert after[3] == after[4] < min(after[:3])
    assert after[:3] == pytest.approx(before)  # what is filled before the empty nodes is in danger as it was


def test_a_node_that_has_a_low_priority_vm_is_another_one() -> None:
    """Example 3: one of the empty nodes has spot VMs by now. There is less room to spare on it, so it is less safe; and
    regular VMs rather come to the other one, where nobody has to give way, so that is a little less safe, too.
    """
    alone = dangers(state([7, 4, 2, 0, 0]), SPOT)
    beside = dangers(state([7, 4, 2, 0, 0], spot=[0, 0, 0, 0, 5]), SPOT)
    assert beside[4] > beside[3] > alone[3]
    assert beside[3] < 1.2 * alone[3]


def test_a_spot_vm_goes_where_it_is_safest() -> None:
    allocator = state([7, 4, 2, 0, 0])
    assert allocator.allocate(Request("batch", (SPOT,))).placements[0].machine in ("m3", "m4")


def test_a_regular_vm_does_not_care() -> None:
    safe, unaware = state([7, 4, 2, 0, 0]), state([7, 4, 2, 0, 0], policy=UNAWARE)
    wish = Request("shop", (VM("small"),))
    assert safe.allocate(wish).placements == unaware.allocate(wish).placements


def test_types_that_a_cluster_does_not_take_are_no_danger_there_and_find_no_room() -> None:
    names = ("taken", "refused")
    groups = tuple(
        MachineGroup(datacenter="d", cluster=c, rack=c, generation="only", names=(f"{c}-m",), update_domains=[0])
        for c in names
    )
    zone = Zone(
        name="z", resources=(Resource("cores", "cores", 1),), bands=("regular", "spot"),
        generations=(Generation("only", (8,)),),
        vm_types=tuple(VMType(name, "s", {"only": (size,)}) for name, size in SIZES.items()),
        groups=groups, excluded={"refused": ["small"]},
    )  # fmt: skip
    told = foresee(zone, zone.machines, {("small", ""): 1.0})
    assert told.ahead["small"][-1] == 8.0
    allocator = Allocator(zone, POLICY)
    allocator.view.set_table(FORESIGHT, table_of(told, zone))
    rule, wish = rule_of(danger), plain(allocator.shape(SPOT, "t").row[0])
    assert rule is not None
    rows = enumerate(allocator.view.machines)
    there, elsewhere = (fact(rule, allocator.view, m, plain(row), wish) for m, row in rows)
    assert there > elsewhere == 0.0


def test_types_that_come_seldom_count_as_the_one_most_like_them() -> None:
    """Every change of a machine asks about each type that is told apart, so there are not many of those."""
    zone = Zone.synthetic(300, seed=1)
    often = {(name, ""): 10.0 + i for i, name in enumerate(("A1", "A2", "A3", "A4", "D1", "D3", "D4", "G3"))}
    seldom = {("D2", ""): 1.0, ("G4", ""): 2.0}
    told = foresee(zone, zone.machines, often | seldom)
    assert set(told.arrivals) == set(told.ahead) == {name for name, _ in often}
    assert sum(rates[0] for rates in told.arrivals.values()) == pytest.approx(sum((often | seldom).values()))
    gained = {name for name, rates in told.arrivals.items() if rates[0] != often[name, ""]}
    assert "G3" in gained  # like the other very large one
    assert len(gained) == 2


# ------------------------------------------------------------------------------------------ the future, by brute force


def survival(
    used: list[int], spot: list[int], machine: int, seed: int, rates: Rates = RATES, futures: int = 20
) -> float:
    """How long it takes on average, in hours, until something on a machine has to give way, if a spot VM comes to it.

    Regular VMs come at random, and nothing leaves, as the score has it; after 60 hours nobody looks any more.
    """
    total = 0.0
    for future in range(futures):
        draw = random.Random(1_000 * seed + future)
        allocator = state(used, spot, UNAWARE)
        put(allocator, machine, SPOT)
        now = 0.0
        while now < 60.0:
            now += draw.expovariate(sum(rates.values()))
            kind = draw.choices([kind for kind, _ in rates], list(rates.values()))[0]
            decision = allocator.allocate(Request(f"r{now}", (VM(kind),)))
            if any(victim.machine == machine for victim in decision.victims):
                break
        total += min(now, 60.0)
    return total / futures


def rank_correlation(first: list[float], second: list[float]) -> float:
    """Spearman's."""

    def ranks(values: list[float]) -> np.ndarray:
        rounded = np.round(values, 6)
        return np.array([np.mean(np.flatnonzero(np.sort(rounded) == value)) for value in rounded])

    return float(np.corrcoef(ranks(first), ranks(second))[0, 1])


@pytest.mark.parametrize("rates", [RATES, MOSTLY_LARGE], ids=["mostly small", "mostly large"])
def test_the_score_ranks_machines_as_the_future_does(rates: Rates) -> None:
    """Over random states the rank correlation of score and simulated survival is at least 0.8, and higher than that of
    what is free: where large VMs come, those are safest who are where none fits.
    """
    draw, by_score, by_room = random.Random(7), [], []
    for seed in range(6):
        used = [draw.choice([0, 0, 1, 2, 3, 4, 5, 6, 7]) for _ in range(10)]
        spot = [draw.choice([0, (8 - u) // 2]) for u in used]
        scores = [1.0 / max(1e-9, each) for each in dangers(state(used, spot, rates=rates), SPOT)]
        lived = [survival(used, spot, machine, seed, rates) for machine in range(len(used))]
        by_score.append(rank_correlation(scores, lived))
        by_room.append(rank_correlation([8.0 - u for u in used], lived))
    assert np.mean(by_score) >= 0.8
    assert np.mean(by_score) > np.mean(by_room)
