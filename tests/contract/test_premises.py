"""What whoever asks was told of a tenant is so when it is committed, whatever the agent knows; else nothing is done."""

from __future__ import annotations

import pytest

from roost.model.change import PlacedVM
from roost.store.contract import EXISTING, Committed, Conflict, Premise, Proposal, Replayed, SetCondition, Store
from roost.store.recheck import Recheck
from tests.contract.conftest import Home, in_postgres
from tests.contract.tiny import SMALL, Meanwhile, ask, condition, head, move, names, place, release, unchanged

NEW = Premise(generation=0)
RUNS = PlacedVM("a", SMALL, "m1")


def stamp_of(store: Store, tenant: str = "t") -> int:
    """The tenant's, now."""
    known = store.tenant(tenant)
    return known.stamp if known else 0


def everything(premise: Premise) -> list[Proposal]:
    """One of each kind that rests on a premise, and could be done on tenant t with a VM a."""
    return [
        place("p", "t", {"b": "m2"}, premise=premise),
        release("r", "t", {"a": "m1"}, premise=premise),
        move("m", "t", RUNS, "m2", premise=premise),
        move("h", "t", RUNS, "m2", hold=True, premise=premise),
    ]


@pytest.mark.parametrize("number", range(4))
@pytest.mark.parametrize("premise", [NEW, Premise(generation=7), Premise(existing=True, generation=7)])
def test_what_rests_on_another_generation_is_not_done_though_no_constraint_asks_for_it(
    store: Store, recheck: Recheck, number: int, premise: Premise
) -> None:
    store.commit([place("k", "t", {"a": "m1"})], recheck)
    with unchanged(store):
        (outcome,) = store.commit([everything(premise)[number]], recheck)
        assert isinstance(outcome, Conflict)
        assert (outcome.reason, outcome.stamp) == ("premise", stamp_of(store))


@pytest.mark.parametrize("number", range(4))
@pytest.mark.parametrize("premise", [EXISTING, Premise(generation=7)])
def test_what_rests_on_a_tenant_that_is_gone_is_not_done(
    store: Store, recheck: Recheck, number: int, premise: Premise
) -> None:
    store.commit([place("k1", "t", {"a": "m1"})], recheck)
    store.commit([release("k2", "t", {"a": "m1"})], recheck)
    with unchanged(store):
        (outcome,) = store.commit([everything(premise)[number]], recheck)
        assert isinstance(outcome, Conflict)
        assert (outcome.reason, outcome.stamp) == ("premise", 0)


@pytest.mark.parametrize("number", range(4))
def test_what_rests_on_what_is_so_is_done(store: Store, recheck: Recheck, number: int) -> None:
    assert names(store.commit([place("k", "t", {"a": "m1"}, premise=NEW)], recheck)) == ["committed"]
    proposal = everything(Premise(existing=True, generation=stamp_of(store)))[number]
    assert names(store.commit([proposal], recheck)) == ["committed"]


def test_of_a_group_that_rests_on_one_generation_one_is_done(store: Store, recheck: Recheck) -> None:
    group = [place(f"k{i}", "t", {f"v{i}": "m1"}, premise=NEW) for i in range(3)]
    assert names(store.commit(group, recheck)) == ["committed", "premise", "premise"]
    same = Premise(generation=stamp_of(store))
    group = [place(f"g{i}", "t", {f"w{i}": "m2"}, premise=same) for i in range(3)]
    assert names(store.commit(group, recheck)) == ["committed", "premise", "premise"]
    assert set(head(store).vms) == {"v0", "w0"}


def test_a_key_that_was_answered_is_told_again_whatever_it_rested_on(store: Store, recheck: Recheck) -> None:
    first = place("k", "t", {"a": "m1"}, premise=NEW)
    (done,) = store.commit([first], recheck)
    assert isinstance(done, Committed)
    with unchanged(store):
        outcomes = store.commit([first, ask("k")], recheck)
    for outcome in outcomes:
        assert isinstance(outcome, Replayed)
        assert outcome.decided.record.generation == done.stamp


@pytest.mark.parametrize(
    "proposal",
    [
        place("k", "t", {"b": "m2"}),
        release("k", "t", {"a": "m1"}),
        release("k", "t", {"a": "m1", "x": "m1"}),
        move("k", "t", RUNS, "m2"),
        move("k", "t", RUNS, "m1"),
        condition("k", "m1", health=50),
        condition("k", "m1", health=100),
    ],
    ids=["place", "release one", "release all", "move", "move nowhere", "condition", "the same condition"],
)
def test_whatever_was_done_is_told_again_with_the_generation_it_led_to(
    store: Store, recheck: Recheck, proposal: Proposal
) -> None:
    store.commit([place("begin", "t", {"a": "m1", "x": "m1"})], recheck)
    (done,) = store.commit([proposal], recheck)
    assert isinstance(done, Committed)
    store.commit([place("more", "t", {"y": "m3"}), condition("worse", "m1", health=20)], recheck)
    (again,) = store.commit([proposal], recheck)
    assert isinstance(again, Replayed)
    led_to = done.versions.get("m1", 0) if isinstance(proposal, SetCondition) else done.stamp
    assert again.decided.record.generation == led_to


def test_what_was_placed_says_after_which_generation(store: Store, recheck: Recheck) -> None:
    """An agent that knew another one has missed something."""
    first, second = store.commit([place("k1", "t", {"a": "m1"}), place("k2", "t", {"b": "m1"})], recheck)
    assert isinstance(first, Committed)
    assert isinstance(second, Committed)
    assert (first.before, second.before) == (0, first.stamp)


@pytest.mark.parametrize("known", [{"a": "m1"}, {"a": "m1", "b": "m1", "c": "m1"}], ids=["too few", "too many"])
def test_all_vms_of_a_tenant_are_released_only_if_they_are_all(
    store: Store, recheck: Recheck, known: dict[str, str]
) -> None:
    store.commit([place("k1", "t", {"a": "m1", "b": "m1"})], recheck)
    with unchanged(store):
        assert names(store.commit([release("k2", "t", known, stamp=stamp_of(store))], recheck)) == ["tenant"]
    assert names(store.commit([release("k3", "t", known, stamp=1)], recheck)) == ["tenant"]


@in_postgres
@pytest.mark.parametrize("premise", [NEW, Premise(generation=5)], ids=["new", "another"])
def test_a_tenant_that_somebody_creates_meanwhile_is_not_new(
    home: Home, store: Store, recheck: Recheck, premise: Premise
) -> None:
    """After the rows were read, which lock nothing that is not there yet, and before anything is written."""
    other = home.another()

    def create() -> None:
        assert names(other.commit([place("theirs", "t", {"a": "m1"}, premise=NEW)], recheck)) == ["committed"]

    mine = place("mine", "t", {"b": "m2"}, premise=premise)
    assert names(store.commit([mine], Meanwhile(recheck, create))) == ["premise"]
    assert set(head(store).vms) == {"a"}
