"""Nobody gives way while a machine has room, and whoever does costs no more than any others would: by brute force."""

from __future__ import annotations

from itertools import chain, combinations

from hypothesis import given, settings
from hypothesis import strategies as st

from roost.model.request import VM, Request
from roost.model.zone import MachineGroup, Zone
from roost.placing.allocator import Allocator
from roost.placing.books import RunningVM
from roost.rules.policy import Policy
from tests.property.cramped import BANDS, SIZES
from tests.property.cramped import zone as cramped
from tests.property.effort import examples

CAPACITY = (8, 16)
CLUSTERS, IN_EACH = 3, 2
POLICY = Policy.parse("""
name: sparing
top_clusters: 1
machines:
  validators: [is_ready, has_room]
  preferences: [{rule: nobody_gives_way, buckets: 1}, {rule: best_fit, buckets: 3}]
evictions: {among: 1, number: 1, size: 2, age: 0, types: {tall: 3}}
""")
WEIGHTS = {"tall": 3.0}


def zone() -> Zone:
    """The cramped zone's machines in three clusters."""
    plain = cramped(1)
    groups = tuple(
        MachineGroup(
            datacenter="d", cluster=f"c{c}", rack=f"c{c}-r{m}", generation="only", names=(f"c{c}-m{m}",),
            update_domains=[0],
        )
        for c in range(CLUSTERS)
        for m in range(IN_EACH)
    )  # fmt: skip
    return Zone(
        name="z", resources=plain.resources, bands=BANDS, generations=plain.generations, vm_types=plain.vm_types,
        groups=groups,
    )  # fmt: skip


ZONE = zone()


def short(vms: list[RunningVM], wish: VM) -> list[int]:
    """What a machine with these VMs lacks for one more, by resource."""
    used = [sum(SIZES[each.vm.type][r] for each in vms) for r in range(2)]
    return [max(0, used[r] + SIZES[wish.type][r] - CAPACITY[r]) for r in range(2)]


def cost(gone: tuple[RunningVM, ...]) -> tuple[float, ...]:
    """By band, the highest first: what the terms of the policy make of those who go."""
    by_band = dict.fromkeys(BANDS[1:], 0.0)
    for each in gone:
        share = max(SIZES[each.vm.type][r] / CAPACITY[r] for r in range(2))
        by_band[each.vm.priority] += (1 + 2 * share) * WEIGHTS.get(each.vm.type, 1.0)
    return tuple(round(each, 6) for each in by_band.values())


def cheapest(vms: list[RunningVM], wish: VM) -> tuple[float, ...] | None:
    """The least that it costs to make room on a machine; None if nobody who could go would make enough."""
    lower = [each for each in vms if BANDS.index(each.vm.priority) > BANDS.index(wish.priority)]
    subsets = chain.from_iterable(combinations(lower, n) for n in range(len(lower) + 1))
    enough = [
        cost(gone) for gone in subsets if not any(short([each for each in vms if each not in gone], wish))
    ]  # fmt: skip
    return min(enough, default=None)


wishes = st.lists(st.tuples(st.sampled_from(sorted(SIZES)), st.sampled_from(BANDS)), min_size=5, max_size=40)


@given(wishes, st.integers(0, 2**31))
@settings(max_examples=examples(60), deadline=None)
def test_who_gives_way_is_as_few_as_brute_force_finds(wanted: list[tuple[str, str]], seed: int) -> None:
    where = Allocator(ZONE, POLICY, seed)
    for number, (kind, band) in enumerate(wanted):
        wish = VM(kind, priority=band)
        machines: list[list[RunningVM]] = [[] for _ in ZONE.machine_names]
        for each in where.vms.values():
            machines[each.machine].append(each)
        least = min((price for vms in machines if (price := cheapest(vms, wish)) is not None), default=None)
        decision = where.allocate(Request(f"t{number}", (wish,)))
        assert decision.ok == (least is not None)
        where.check_invariants()
        if least is None:
            continue
        if not any(least):
            assert decision.victims == (), "somebody had to go although a machine had room"
            continue
        # The policy looks at one cluster at a time, but for the question whether somebody has to go at all.
        there = ZONE.machines["cluster"][ZONE.machine_index[decision.placements[0].machine]]
        of_cluster = [vms for vms, c in zip(machines, ZONE.machines["cluster"], strict=True) if c == there]
        prices = [price for vms in of_cluster if (price := cheapest(vms, wish)) is not None]
        assert cost(decision.victims) == min(prices)
