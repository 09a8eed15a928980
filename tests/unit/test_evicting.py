"""Who gives way to VMs of a higher priority, and who does not have to."""

from collections.abc import Sequence
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roost.engine.choice import AmongBest, Choice, Favourite
from roost.model.errors import InvalidInput
from roost.model.request import VM, Constraints, Request
from roost.model.zone import Generation, MachineGroup, Resource, VMType, Zone
from roost.placing.allocator import Allocator
from roost.placing.victims import VictimSet, cheapest
from roost.rules.policy import Policy

BANDS = ("gold", "silver", "bronze", "iron")
# As many types as the zones of `tests.property.cramped` have, to share the common part of their kernels.
SIZES = {"one": 1, "two": 2, "three": 3, "four": 4, "five": 5, "eight": 8}
PLAIN = """
name: plain
machines: {validators: [is_ready, has_room, respects_isolation], preferences: [nobody_gives_way]}
tenants: [max_per_machine]
"""


def zone(machines: int = 1) -> Zone:
    """Machines of eight cores."""
    names = tuple(f"m{i}" for i in range(machines))
    group = MachineGroup(
        datacenter="d", cluster="c", rack="r", generation="only", names=names, update_domains=[0] * machines
    )
    return Zone(
        name="z",
        resources=(Resource("cores", "cores", 1), Resource("memory", "GiB", 1)),
        bands=BANDS,
        generations=(Generation("only", (8, 16)),),
        vm_types=tuple(VMType(name, "s", {"only": (size, size)}) for name, size in SIZES.items()),
        groups=(group,),
    )


def allocator(machines: int = 1, evictions: str = "") -> Allocator:
    text = PLAIN + f"evictions: {evictions or '{among: 1}'}\n"
    return Allocator(zone(machines), Policy.parse(text))


def place(where: Allocator, tenant: str, kind: str, band: str, count: int = 1, **options: Any) -> list[str]:
    """Place VMs, check the books, and say who had to give way."""
    at = options.pop("at", 0.0)
    constraints = options.pop("constraints", None)
    request = Request(tenant, (VM(kind, priority=band, **options),) * count, constraints)
    decision = where.allocate(request, at=at)
    assert decision.ok
    where.check_invariants()
    return [victim.name for victim in decision.victims]


def test_what_lower_bands_hold_is_free_and_they_give_way() -> None:
    where = allocator()
    assert place(where, "batch", "four", "iron", 2) == []
    assert place(where, "shop", "four", "gold") == ["batch/0"]
    assert set(where.vms) == {"batch/1", "shop/0"}


def test_nobody_gives_way_to_its_own_band_or_a_lower_one() -> None:
    where = allocator()
    place(where, "batch", "eight", "silver")
    for band in ("silver", "bronze", "iron"):
        assert not where.allocate(Request("other", (VM("one", priority=band),))).ok
    assert set(where.vms) == {"batch/0"}


def test_the_lowest_band_goes_first_however_much_more_of_it_must_go() -> None:
    where = allocator()
    place(where, "silver", "two", "silver")
    place(where, "iron", "one", "iron", 6)
    assert place(where, "shop", "two", "gold") == ["iron/0", "iron/1"]
    assert place(where, "shop", "four", "gold") == ["iron/2", "iron/3", "iron/4", "iron/5"]
    assert place(where, "shop", "two", "gold") == ["silver/0"]


def test_no_more_give_way_than_needed() -> None:
    where = allocator()
    place(where, "a", "four", "iron")
    place(where, "b", "one", "iron", 4)
    assert place(where, "shop", "four", "gold") == ["a/0"]  # one large VM instead of four small ones


def test_a_machine_where_nobody_has_to_go_is_preferred() -> None:
    where = allocator(machines=2)
    place(where, "batch", "eight", "iron")
    assert place(where, "shop", "eight", "gold") == []


@pytest.mark.parametrize(
    ("evictions", "expected"),
    [
        ("{number: 1, size: 0, age: 0}", ["a/0"]),
        ("{number: 1, size: 0, age: 0, types: {four: 10}}", ["b/0", "b/1", "b/2", "b/3"]),
        ("{number: 0, size: 0, age: 1}", ["b/0", "b/1", "b/2", "b/3"]),
    ],
)
def test_a_policy_says_what_an_eviction_costs(evictions: str, expected: list[str]) -> None:
    where = allocator(evictions=evictions)
    place(where, "a", "four", "iron", at=1_000.0)
    place(where, "b", "one", "iron", 4, at=600_000.0)
    assert place(where, "shop", "four", "gold", at=600_000.0) == expected


@pytest.mark.parametrize(
    ("evictions", "words"),
    [
        ("{number: -1}", "evictions: number: is -1"),
        ("{among: 1.5}", "evictions: among: is 1.5"),
        ("{number: 0, size: 0, age: 0}", "cost nothing"),
        ("{types: {four: 0}}", "evictions: types: four"),
        ("{grce: 3}", "grce"),
    ],
)
def test_terms_that_make_no_sense_are_refused(evictions: str, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        Policy.parse(f"{PLAIN}evictions: {evictions}\n")


def test_a_tenant_may_want_its_vms_to_go_together() -> None:
    where = allocator(machines=2)
    together = Constraints(evict_together=True, max_per_machine=1)
    place(where, "pair", "four", "iron", 2, constraints=together)
    place(where, "batch", "four", "iron", 2)
    # Two of the pair would go for one of the batch, so one of the batch does.
    assert place(where, "shop", "four", "gold") in (["batch/0"], ["batch/1"])
    place(where, "shop", "four", "gold")
    assert sorted(place(where, "shop", "four", "gold")) == ["pair/0", "pair/1"]


def test_those_who_go_together_spare_others_on_their_machines() -> None:
    where = allocator(machines=1)
    place(where, "pair", "two", "iron", 2, constraints=Constraints(evict_together=True))
    place(where, "batch", "one", "iron", 4)
    assert sorted(place(where, "shop", "four", "gold")) == ["pair/0", "pair/1"]


def test_a_request_never_evicts_its_own_vms() -> None:
    where = allocator(machines=2)
    request = Request("mixed", (VM("eight", priority="iron"), VM("eight", priority="gold")))
    decision = where.allocate(request)
    assert decision.ok
    assert decision.victims == ()
    full = where.allocate(Request("more", (VM("one", priority="iron"), VM("eight", priority="gold"))))
    assert not full.ok


@pytest.mark.parametrize("choice", [Favourite(100), AmongBest(100)], ids=["favourites", "draws"])
def test_nobody_gives_way_only_because_somebody_avoids_conflicts(choice: Choice) -> None:
    for seed in range(10):
        where = Allocator(zone(machines=4), Policy.parse(PLAIN), seed)
        place(where, "batch", "eight", "iron", 3)
        decision = where.allocate(Request("shop", (VM("eight", priority="gold"),)), choice)
        assert decision.victims == ()
        decision = where.allocate(Request("shop", (VM("eight", priority="gold"),)), choice)
        assert (len(decision.victims), decision.trial.choice) == (1, choice)
        where.check_invariants()
        assert str(decision.explanation)


def test_a_policy_may_spare_everybody() -> None:
    spared = Allocator(zone(), Policy.parse(PLAIN.replace("has_room,", "has_room, evicts_nobody,")))
    place(spared, "batch", "eight", "iron")
    assert not spared.allocate(Request("shop", (VM("one", priority="gold"),))).ok


def test_an_explanation_names_who_gives_way() -> None:
    where = allocator()
    place(where, "batch", "four", "iron", 2)
    decision = where.allocate(Request("shop", (VM("eight", priority="gold"),)))
    assert decision.explanation.victims == ("batch/0", "batch/1")
    assert "batch/0, batch/1 give way to it" in str(decision.explanation)


# ------------------------------------------------------------------------------------------------------- the cheapest


def total(group: Sequence[VictimSet]) -> tuple[float, ...]:
    """What a group costs, by band."""
    return tuple(sum(c.cost[band] for c in group) for band in range(2))


def brute_force(short: list[int], candidates: list[VictimSet]) -> tuple[float, ...] | None:
    """The least cost at which enough is freed, by trying everything."""
    costs = []
    for count in range(len(candidates) + 1):
        for group in combinations(candidates, count):
            if all(sum(c.amounts[r] for c in group) >= short[r] for r in range(len(short))):
                costs.append(total(group))
    return min(costs, default=None)


AMOUNT = st.integers(0, 6)
CANDIDATES = st.lists(st.tuples(AMOUNT, AMOUNT, st.integers(1, 9), st.booleans()), max_size=8)


@given(short=st.tuples(st.integers(0, 12), st.integers(0, 12)).filter(any), candidates=CANDIDATES)
@settings(max_examples=300, deadline=None)
def test_the_cheapest_are_found(short: tuple[int, int], candidates: list[tuple[int, int, int, bool]]) -> None:
    """Of two bands: whatever the lower one costs, it goes first."""
    offered = [
        VictimSet((), (first, second), (float(cost), 0.0) if higher else (0.0, float(cost)))
        for first, second, cost, higher in candidates
    ]
    found = cheapest(short, offered)
    expected = brute_force(list(short), offered)
    if found is None:
        assert expected is None
    else:
        assert total(found) == expected
        for r in range(2):
            assert sum(c.amounts[r] for c in found) >= short[r]


@given(short=st.integers(1, 60), sizes=st.lists(st.tuples(AMOUNT, st.integers(1, 9)), min_size=20, max_size=64))
@settings(max_examples=60, deadline=None)
def test_of_many_none_is_needless(short: int, sizes: list[tuple[int, int]]) -> None:
    found = cheapest([short], [VictimSet((), (amount,), (float(cost),)) for amount, cost in sizes])
    if found is None:
        assert sum(amount for amount, _ in sizes) < short
        return
    freed = sum(c.amounts[0] for c in found)
    assert freed >= short
    assert all(freed - c.amounts[0] < short for c in found)
