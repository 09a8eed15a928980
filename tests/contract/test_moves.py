"""A VM goes from one machine to another in one commit, with room held for it meanwhile or not; or nothing happens."""

from __future__ import annotations

import pytest

from roost.model.change import PlacedVM
from roost.model.request import VM, hold_of
from roost.store.contract import Committed, Conflict, Proposal, Store
from roost.store.recheck import Recheck
from tests.contract.tiny import (
    BIG,
    PAIRS,
    SMALL,
    WHOLE,
    condition,
    head,
    move,
    names,
    place,
    release,
    remove,
    unchanged,
)

RUNS = PlacedVM("a", SMALL, "m1")


def where(store: Store) -> dict[str, str]:
    """Every VM and its machine."""
    return {name: row.machine for name, row in head(store).vms.items()}


@pytest.fixture
def settled(store: Store, recheck: Recheck) -> Store:
    """A store where tenant t runs a small VM, a, on m1, at revision 2."""
    assert names(store.commit([place("first of t", "t", {"a": "m1"})], recheck)) == ["committed"]
    return store


def test_a_vm_moves_in_one_entry(settled: Store, recheck: Recheck) -> None:
    before = settled.tenant("t")
    (outcome,) = settled.commit([move("k", "t", RUNS, "m2")], recheck)
    assert before is not None
    assert isinstance(outcome, Committed)
    assert outcome.versions == {"m1": 2, "m2": 1}
    assert where(settled) == {"a": "m2"}
    ((_, entry),) = settled.changes(2).after(2)
    assert (entry.released, entry.placed) == ((RUNS,), (PlacedVM("a", SMALL, "m2"),))
    assert (entry.before, entry.after) == (before.stamp, outcome.stamp)
    tenant = settled.tenant("t")
    assert tenant is not None
    assert (tenant.stamp, tenant.vms) == (outcome.stamp, 1)


def test_room_is_held_and_then_used(settled: Store, recheck: Recheck) -> None:
    (held,) = settled.commit([move("k1", "t", RUNS, "m2", hold=True)], recheck)
    assert isinstance(held, Committed)
    assert held.versions == {"m2": 1}
    assert where(settled) == {"a": "m1", hold_of("a"): "m2"}
    ((_, entry),) = settled.changes(2).after(2)
    assert (entry.released, entry.placed) == ((), (PlacedVM(hold_of("a"), SMALL, "m2"),))

    (done,) = settled.commit([move("k2", "t", RUNS, "m2", held=True)], recheck)
    assert isinstance(done, Committed)
    assert done.versions == {"m1": 2, "m2": 2}
    assert where(settled) == {"a": "m2"}
    ((_, entry),) = settled.changes(3).after(3)
    assert (entry.released, entry.placed) == (
        (RUNS, PlacedVM(hold_of("a"), SMALL, "m2")),
        (PlacedVM("a", SMALL, "m2"),),
    )


def test_room_that_is_held_is_nobody_elses(settled: Store, recheck: Recheck) -> None:
    whole = PlacedVM("w", WHOLE, "m3")
    settled.commit([place("k1", "u", {"w": "m3"}, WHOLE), move("k2", "u", whole, "m2", hold=True)], recheck)
    assert names(settled.commit([place("k3", "v", {"b": "m2"})], recheck)) == ["room"]
    assert names(settled.commit([move("k4", "u", whole, "m2", held=True)], recheck)) == ["committed"]
    assert names(settled.commit([place("k5", "v", {"b": "m3"})], recheck)) == ["committed"]


def test_room_is_given_back_by_releasing_it(settled: Store, recheck: Recheck) -> None:
    settled.commit([move("k1", "t", RUNS, "m2", hold=True)], recheck)
    assert names(settled.commit([release("k2", "t", {hold_of("a"): "m2"})], recheck)) == ["committed"]
    assert where(settled) == {"a": "m1"}


def test_a_move_is_tested_on_what_those_before_it_left_and_so_is_what_follows(settled: Store, recheck: Recheck) -> None:
    """All in one group: the room that one leaves is there for the next."""
    group = [
        place("k1", "u", {"b": "m3"}, WHOLE),
        move("k2", "t", RUNS, "m3"),
        move("k3", "u", PlacedVM("b", WHOLE, "m3"), "m2"),
        move("k4", "t", RUNS, "m3"),
        place("k5", "v", {"c": "m1"}, WHOLE),
        place("k6", "v", {"d": "m2"}),
    ]
    outcomes = settled.commit(group, recheck)
    assert names(outcomes) == ["committed", "room", "committed", "committed", "committed", "room"]
    assert where(settled) == {"a": "m3", "b": "m2", "c": "m1"}


def test_several_steps_may_share_a_group(settled: Store, recheck: Recheck) -> None:
    group = [
        move("k1", "t", RUNS, "m2", hold=True),
        move("k2", "t", RUNS, "m2", held=True),
        move("k3", "t", PlacedVM("a", SMALL, "m2"), "m5"),
        release("k4", "t", {"a": "m5"}),
        place("k5", "t", {"a": "m1"}, BIG),
    ]
    assert set(names(settled.commit(group, recheck))) == {"committed"}
    assert where(settled) == {"a": "m1"}


ALREADY: dict[str, tuple[list[Proposal], Proposal]] = {
    "it is there": ([], move("k", "t", RUNS, "m1")),
    "room where it is": ([], move("k", "t", RUNS, "m1", hold=True)),
    "room is held": ([move("k1", "t", RUNS, "m2", hold=True)], move("k", "t", RUNS, "m2", held=True, hold=True)),
}


@pytest.mark.parametrize(("before", "proposal"), ALREADY.values(), ids=ALREADY)
def test_what_is_so_already_is_done_and_changes_nothing(
    settled: Store, recheck: Recheck, before: list[Proposal], proposal: Proposal
) -> None:
    """Also on a machine that takes nothing more, and for a tenant that has changed since."""
    settled.commit([*before, condition("c1", "m1", state=1), condition("c2", "m2", state=1)], recheck)
    there, tenant = head(settled), settled.tenant("t")
    assert tenant is not None
    (outcome,) = settled.commit([proposal], recheck)
    assert outcome == Committed(stamp=tenant.stamp, changed=False)
    assert list(there.differences(head(settled))) == []
    assert settled.decided("k") is not None
    assert names(settled.commit([proposal], recheck)) == ["replayed"]


LOST: dict[str, tuple[list[Proposal], Proposal, str]] = {
    "a VM that is gone": ([release("k1", "t", {"a": "m1"})], move("k", "t", RUNS, "m2"), "gone"),
    "a VM that was never there": ([], move("k", "t", PlacedVM("b", SMALL, "m1"), "m2"), "gone"),
    "a VM of another tenant": (
        [place("k1", "u", {"b": "m2"})],
        move("k", "t", PlacedVM("b", SMALL, "m2"), "m3"),
        "gone",
    ),
    "room for a VM that is gone": ([release("k1", "t", {"a": "m1"})], move("k", "t", RUNS, "m2", hold=True), "gone"),
    "a VM that went elsewhere": ([move("k1", "t", RUNS, "m3")], move("k", "t", RUNS, "m2"), "tenant"),
    "room for a VM that went elsewhere": (
        [move("k1", "t", RUNS, "m3")],
        move("k", "t", RUNS, "m2", hold=True),
        "tenant",
    ),
    "a VM that is there by now": ([move("k1", "t", RUNS, "m2")], move("k", "t", RUNS, "m2"), "tenant"),
    "a VM that is another one": ([], move("k", "t", PlacedVM("a", BIG, "m1"), "m2"), "tenant"),
    "room that is not held": ([], move("k", "t", RUNS, "m2", held=True), "tenant"),
    "room that is held elsewhere": (
        [move("k1", "t", RUNS, "m3", hold=True)],
        move("k", "t", RUNS, "m2", held=True),
        "tenant",
    ),
    "room that somebody else holds": ([move("k1", "t", RUNS, "m2", hold=True)], move("k", "t", RUNS, "m3"), "tenant"),
    "a second hold": (
        [move("k1", "t", RUNS, "m2", hold=True)],
        move("k", "t", RUNS, "m3", hold=True),
        "tenant",
    ),
    "a machine that is no more": ([remove("k1", "m2")], move("k", "t", RUNS, "m2"), "machine"),
    "a machine that was filled": ([place("k1", "u", {"b": "m2"}, WHOLE)], move("k", "t", RUNS, "m2"), "room"),
    "room on a machine that was filled": (
        [place("k1", "u", {"b": "m2"}, WHOLE)],
        move("k", "t", RUNS, "m2", hold=True),
        "room",
    ),
    "a machine that is down": ([condition("k1", "m2", state=2)], move("k", "t", RUNS, "m2"), "room"),
    "room on a machine that went down": (
        [move("k1", "t", RUNS, "m2", hold=True), condition("k2", "m2", state=2)],
        move("k", "t", RUNS, "m2", held=True),
        "room",
    ),
    "a tenant whose constraints are others": ([], move("k", "t", RUNS, "m2", constraints=PAIRS), "tenant"),
}


@pytest.mark.parametrize(("before", "proposal", "reason"), LOST.values(), ids=LOST)
def test_a_move_that_no_longer_holds_is_a_conflict_and_leaves_no_trace(
    settled: Store, recheck: Recheck, before: list[Proposal], proposal: Proposal, reason: str
) -> None:
    assert set(names(settled.commit(before, recheck))) <= {"committed"}
    with unchanged(settled):
        assert names(settled.commit([proposal], recheck)) == [reason]


def test_a_refused_move_leaves_its_neighbours_rows_as_they_were(settled: Store, recheck: Recheck) -> None:
    """Room that is held on a machine that is down stays held: nobody else gets it, nor what the VM has."""
    big = PlacedVM("b", BIG, "m3")
    settled.commit([place("k1", "u", {"b": "m3"}, BIG), move("k2", "u", big, "m2", hold=True)], recheck)
    group = [
        condition("k3", "m2", state=2),
        move("k4", "u", big, "m2", held=True),
        condition("k5", "m2", state=0),
        place("k6", "v", {"c": "m2"}, BIG),
        place("k7", "v", {"d": "m3"}, BIG),
        place("k8", "v", {"c": "m2", "d": "m3"}),
        move("k9", "u", big, "m2", held=True),
    ]
    outcomes = settled.commit(group, recheck)
    assert names(outcomes) == ["committed", "room", "committed", "room", "room", "committed", "committed"]
    lost = outcomes[1]
    assert isinstance(lost, Conflict)
    assert [row.spec.name for row in lost.machines] == ["m2"]


def test_a_vm_leaves_a_machine_that_is_down(settled: Store, recheck: Recheck) -> None:
    settled.commit([condition("k1", "m1", state=2)], recheck)
    assert names(settled.commit([move("k2", "t", RUNS, "m2")], recheck)) == ["committed"]


def test_a_tenant_with_constraints_must_be_as_it_was_to_move(store: Store, recheck: Recheck) -> None:
    vm = PlacedVM("a", SMALL, "m1")
    (first,) = store.commit([place("k1", "t", {"a": "m1"}, constraints=PAIRS)], recheck)
    assert isinstance(first, Committed)
    store.commit([place("k2", "t", {"b": "m2"}, constraints=PAIRS, stamp=first.stamp)], recheck)
    late = move("k3", "t", vm, "m2", constraints=PAIRS, stamp=first.stamp)
    assert names(store.commit([late], recheck)) == ["tenant"]
    now = store.tenant("t")
    assert now is not None
    assert names(store.commit([move("k4", "t", vm, "m2", constraints=PAIRS, stamp=now.stamp)], recheck)) == [
        "committed"
    ]


def test_a_strict_store_refuses_a_move_to_an_outdated_machine(settled: Store, recheck: Recheck) -> None:
    settled.commit([place("k1", "u", {"b": "m2"})], recheck)
    tenant = settled.tenant("t")
    assert tenant is not None
    for seen, said in (({"m2": 0}, "stale"), ({}, "stale"), ({"m2": 1}, "committed")):
        proposal = move("k2", "t", RUNS, "m2", stamp=tenant.stamp, seen=seen)
        assert names(settled.commit([proposal], recheck, strict=True)) == [said]


def test_who_releases_what_is_no_longer_held_may_look_again(settled: Store, recheck: Recheck) -> None:
    """A VM that is gone is gone; but what was held for it may be forgotten and the rest tried again."""
    both = release("k", "t", {"a": "m1", hold_of("a"): "m2"})
    assert names(settled.commit([both], recheck)) == ["tenant"]
    settled.commit([move("k1", "t", RUNS, "m2", hold=True)], recheck)
    assert names(settled.commit([both], recheck)) == ["committed"]
    assert where(settled) == {}


def test_what_is_held_does_not_outlive_its_vm(settled: Store, recheck: Recheck) -> None:
    """Who has not heard of it yet must look again."""
    settled.commit([move("k1", "t", RUNS, "m2", hold=True)], recheck)
    with unchanged(settled):
        assert names(settled.commit([release("k", "t", {"a": "m1"})], recheck)) == ["tenant"]


def test_isolation_moves_along(store: Store, recheck: Recheck) -> None:
    alone = VM("small", isolated=True)
    store.commit([place("k1", "t", {"a": "m1"}, alone)], recheck)
    vm = PlacedVM("a", alone, "m1")
    store.commit([move("k2", "t", vm, "m2", hold=True)], recheck)
    assert names(store.commit([place("k3", "u", {"b": "m2"})], recheck)) == ["room"]
    store.commit([move("k4", "t", vm, "m2", held=True)], recheck)
    rows = head(store).machines
    assert (rows["m1"].owner, rows["m2"].owner) == ("", "t")
    assert names(store.commit([place("k5", "u", {"b": "m1"})], recheck)) == ["committed"]
