"""VMs of machines that are not ready run elsewhere and are taken off there in one transaction; or nothing happens."""

from __future__ import annotations

import pytest

from roost.model.change import PlacedVM
from roost.model.request import VM, hold_of
from roost.model.rows import MachineState
from roost.store.audit import check_invariants
from roost.store.contract import Committed, Place, Store
from roost.store.recheck import Recheck
from tests.contract.tiny import SMALL, WHOLE, condition, head, move, names, place, release, unchanged, victim

DOWN, READY = int(MachineState.DOWN), int(MachineState.READY)
LOST = PlacedVM("a", WHOLE, "m1")
HELD = PlacedVM(hold_of("a"), WHOLE, "m2")


@pytest.fixture
def lost(store: Store, recheck: Recheck) -> Store:
    """A store where VM a of tenant t fills m1, which is down."""
    group = [place("begins", "t", {"a": "m1"}, WHOLE), condition("fails", "m1", state=DOWN)]
    assert names(store.commit(group, recheck)) == ["committed"] * 2
    return store


def heal(key: str, machine: str, *leaving: PlacedVM) -> Place:
    """Place VM a elsewhere."""
    return place(key, "t", {"a": machine}, WHOLE, leaving=leaving or (LOST,))


def where(store: Store) -> dict[str, str]:
    """Every VM and its machine."""
    return {name: row.machine for name, row in head(store).vms.items()}


def test_a_vm_runs_elsewhere_in_one_entry(lost: Store, recheck: Recheck) -> None:
    before = head(lost).revision
    (outcome,) = lost.commit([heal("k", "m2")], recheck)
    assert isinstance(outcome, Committed)
    assert where(lost) == {"a": "m2"}
    ((_, entry),) = lost.changes(before).after(before)
    assert (entry.released, entry.placed) == ((LOST,), (PlacedVM("a", WHOLE, "m2"),))
    assert set(entry.versions) == {"m1", "m2"}
    check_invariants(lost)


def test_only_one_of_two_who_heal_a_vm_does(lost: Store, recheck: Recheck) -> None:
    assert names(lost.commit([heal("k1", "m2"), heal("k2", "m3")], recheck)) == ["committed", "tenant"]
    assert where(lost) == {"a": "m2"}


def test_a_vm_whose_machine_is_ready_again_stays(lost: Store, recheck: Recheck) -> None:
    lost.commit([condition("back", "m1", state=READY)], recheck)
    with unchanged(lost):
        assert names(lost.commit([heal("k", "m2")], recheck)) == ["gone"]


def test_a_vm_that_is_gone_does_not_come_back(lost: Store, recheck: Recheck) -> None:
    lost.commit([release("gone", "t", {"a": "m1"}, WHOLE)], recheck)
    with unchanged(lost):
        assert names(lost.commit([heal("k", "m2")], recheck)) == ["gone"]


def test_a_vm_for_which_room_is_held_by_now_is_not_healed_past_that(store: Store, recheck: Recheck) -> None:
    group = [place("begins", "t", {"a": "m1"}, WHOLE), move("hold", "t", LOST, "m2", hold=True)]
    store.commit([*group, condition("fails", "m1", state=DOWN)], recheck)
    with unchanged(store):
        assert names(store.commit([heal("k", "m3")], recheck)) == ["tenant"]
    assert names(store.commit([heal("k", "m3", LOST, HELD)], recheck)) == ["committed"]
    assert where(store) == {"a": "m3"}


def test_a_vm_is_healed_into_the_room_that_is_held_for_it(store: Store, recheck: Recheck) -> None:
    group = [place("begins", "t", {"a": "m1"}, WHOLE), move("hold", "t", LOST, "m2", hold=True)]
    store.commit([*group, condition("fails", "m1", state=DOWN)], recheck)
    assert names(store.commit([heal("k", "m2", LOST, HELD)], recheck)) == ["committed"]
    assert where(store) == {"a": "m2"}
    check_invariants(store)


def test_a_healing_that_fails_leaves_no_trace_for_what_follows_in_its_group(lost: Store, recheck: Recheck) -> None:
    """Neither is m2 free for another, nor m1 for anybody."""
    lost.commit([place("other", "u", {"b": "m2"})], recheck)
    group = [heal("k1", "m2"), place("k2", "v", {"c": "m2"}, WHOLE), place("k3", "v", {"d": "m1"}), heal("k4", "m3")]
    assert names(lost.commit(group, recheck)) == ["room", "room", "room", "committed"]
    assert where(lost) == {"a": "m3", "b": "m2"}
    check_invariants(lost)


def test_nobody_is_named_as_leaving_and_as_giving_way(store: Store, recheck: Recheck) -> None:
    spot = VM("whole", priority="spot")
    group = [place("begins", "t", {"a": "m1"}, spot), place("beside", "t", {"b": "m2"}, SMALL)]
    store.commit([*group, condition("fails", "m1", state=DOWN)], recheck)
    there = PlacedVM("a", spot, "m1")
    both = place("k", "t", {"a": "m3"}, WHOLE, leaving=[there], victims=[victim("t", "a", "m1", spot)])
    with unchanged(store):
        assert names(store.commit([both], recheck)) == ["rejected"]
