"""VMs of lower priority give way in the same transaction as what needs their room is placed; or nothing happens.

A machine of cluster c1 has 4 cores and 8 GiB: four small VMs and one half of its memory, or one big and one small VM.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import pytest

from roost.engine.recheck import CompiledRecheck as EngineRecheck
from roost.model.change import Entry, Eviction, PlacedVM
from roost.model.inventory import Catalogue, zone_of
from roost.model.registry import WAITING
from roost.model.request import UNCONSTRAINED, VM, Constraints, hold_of
from roost.model.waiting import Waiting
from roost.rules.policy import Policy
from roost.store.audit import check_invariants
from roost.store.contract import Committed, Conflict, Proposal, Record, Rejected, Release, Replayed, Store, Victim
from roost.store.history import ledger_at
from roost.store.memory import MemoryStore
from roost.store.recheck import Recheck
from tests.contract.conftest import that_last
from tests.contract.tiny import (
    BIG,
    CATALOGUE,
    MACHINES,
    SMALL,
    WHOLE,
    add,
    condition,
    head,
    move,
    names,
    place,
    register,
    release,
    same,
    unchanged,
    victim,
)

SPOT, BIG_SPOT, WHOLE_SPOT = (VM(kind, priority="spot") for kind in ("small", "big", "whole"))
BATCH, SCRAP = VM("small", priority="batch"), VM("small", priority="scrap")
AGAIN = VM("small", priority="spot", requeue=True)
TOGETHER = Constraints(evict_together=True)
A, B, C, D = (victim("low", vm, "m1", SPOT) for vm in "abcd")  # as in `crowd`


@pytest.fixture
def crowd(store: Store, recheck: Recheck) -> Store:
    """A store where m1 is full of four small spot VMs of tenant low, placed at 100 s, at revision 2."""
    where = tuple(PlacedVM(vm, SPOT, "m1", 100.0) for vm in "abcd")
    assert names(store.commit([place("crowd", "low", where)], recheck)) == ["committed"]
    return store


def news(store: Store, since: int) -> list[Entry]:
    """What the feed says after a revision."""
    return [entry for _, entry in store.changes(since, patient=True).after(since)]


def evicted(store: Store, since: int = 0) -> list[str]:
    """Who had to give way, in order."""
    return [vm.vm for entry in news(store, since) if entry.eviction for vm in entry.released]


def as_known(store: Store, victims: Sequence[Victim]) -> list[Victim]:
    """Victims as somebody names them who knows their tenants as they are now."""
    tenants = head(store).tenants
    return [Victim(each.tenant, each.vm, tenants[each.tenant].stamp) for each in victims]


def running(store: Store) -> set[str]:
    """The names of all VMs."""
    return set(head(store).vms)


# ------------------------------------------------------------------------------------------------------ what is done


def test_victims_go_and_what_needs_their_room_comes_in_one_transaction(crowd: Store, recheck: Recheck) -> None:
    before = crowd.tenant("low")
    (outcome,) = crowd.commit([place("k", "high", {"x": "m1"}, victims=[A])], recheck)
    assert before is not None
    assert isinstance(outcome, Committed)
    assert running(crowd) == {"b", "c", "d", "x"}
    (row,) = crowd.changes(2).rows
    gone, come = row.entries
    assert (gone.tenant, gone.released, gone.placed) == ("low", (PlacedVM("a", SPOT, "m1", 100.0),), ())
    assert (come.tenant, come.placed, come.released) == ("high", (PlacedVM("x", SMALL, "m1"),), ())
    assert gone.key == come.key == "k"
    low, high = crowd.tenant("low"), crowd.tenant("high")
    assert low is not None
    assert high is not None
    assert (gone.before, gone.after, low.vms) == (before.stamp, low.stamp, 3)
    assert (come.before, come.after, high.vms) == (0, outcome.stamp, 1)
    assert low.stamp != before.stamp


def test_the_versions_of_a_machine_count_every_entry(crowd: Store, recheck: Recheck) -> None:
    (outcome,) = crowd.commit([place("k", "high", {"x": "m1"}, victims=[A])], recheck)
    gone, come = news(crowd, 2)
    assert (gone.versions, come.versions) == ({"m1": 2}, {"m1": 3})
    assert isinstance(outcome, Committed)
    assert outcome.versions == {"m1": 3}


def test_an_entry_says_why_its_vms_had_to_go(crowd: Store, recheck: Recheck) -> None:
    asked = Record(agent="a", by="somebody", at=500.0)
    both = place("k", "high", {"x": "m1"}, WHOLE, victims=[A, B, C, D], grace=30.0, record=asked)
    assert names(crowd.commit([both], recheck)) == ["committed"]
    gone, come = news(crowd, 2)
    assert gone.eviction == Eviction(tenant="high", priority="regular", grace=30.0)
    assert (gone.by, gone.at) == ("somebody", 500.0)
    assert come.eviction is None
    assert crowd.tenant("low") is None
    assert gone.after == 0


def test_the_reason_is_the_highest_band_that_came(crowd: Store, recheck: Recheck) -> None:
    crowd.commit([place("k1", "low", tuple(PlacedVM(vm, SCRAP, "m2") for vm in "efgh"))], recheck)
    low = [victim("low", vm, "m2", SCRAP) for vm in "ef"]
    mixed = (PlacedVM("x", BATCH, "m2"), PlacedVM("y", SPOT, "m2"))
    assert names(crowd.commit([place("k2", "high", mixed, victims=low)], recheck)) == ["committed"]
    assert news(crowd, 3)[0].eviction == Eviction(tenant="high", priority="spot")


def test_each_tenant_that_loses_vms_has_an_entry(crowd: Store, recheck: Recheck) -> None:
    crowd.commit([release("k1", "low", {"d": "m1"}, SPOT), place("k2", "lower", {"e": "m1"}, SCRAP)], recheck)
    since = head(crowd).revision
    victims = [A, victim("lower", "e", "m1", SCRAP), B, C]
    assert names(crowd.commit([place("k3", "high", {"x": "m1"}, WHOLE, victims=victims)], recheck)) == ["committed"]
    entries = news(crowd, since)
    assert [(entry.tenant, [vm.vm for vm in entry.released]) for entry in entries] == [
        ("low", ["a", "b", "c"]),
        ("lower", ["e"]),
        ("high", []),
    ]
    assert [entry.versions for entry in entries] == [{"m1": 4}, {"m1": 5}, {"m1": 6}]


def test_a_tenants_own_vms_may_give_way_and_one_entry_tells_all(crowd: Store, recheck: Recheck) -> None:
    before = crowd.tenant("low")
    assert before is not None
    (outcome,) = crowd.commit([place("k", "low", {"x": "m1"}, victims=[A], grace=5.0)], recheck)
    assert isinstance(outcome, Committed)
    (entry,) = news(crowd, 2)
    assert (entry.released, entry.placed) == ((PlacedVM("a", SPOT, "m1", 100.0),), (PlacedVM("x", SMALL, "m1"),))
    assert entry.eviction == Eviction(tenant="low", priority="regular", grace=5.0)
    assert (entry.before, entry.after, entry.versions) == (before.stamp, outcome.stamp, {"m1": 2})
    assert outcome.versions == {"m1": 2}
    after = crowd.tenant("low")
    assert after is not None
    assert (after.vms, after.stamp) == (4, outcome.stamp)


def test_all_of_a_tenants_own_vms_may_give_way(crowd: Store, recheck: Recheck) -> None:
    assert names(crowd.commit([place("k", "low", {"x": "m1"}, WHOLE, victims=[A, B, C, D])], recheck)) == ["committed"]
    low = crowd.tenant("low")
    assert low is not None
    assert low.vms == 1


def test_a_placement_that_makes_nobody_go_says_so(crowd: Store, recheck: Recheck) -> None:
    crowd.commit([place("k", "high", {"x": "m2"}, grace=30.0)], recheck)
    (entry,) = news(crowd, 2)
    assert entry.eviction is None


def test_a_vm_of_any_lower_band_gives_way_to_any_higher_one(store: Store, recheck: Recheck) -> None:
    bands = CATALOGUE.bands
    assert len(bands) == 4
    for i, high in enumerate(bands):
        for j, low in enumerate(bands):
            key, full = f"{high}-{low}", VM("whole", priority=low)
            store.commit([place(f"{key}-0", "low", {"a": "m1"}, full)], recheck)
            said = store.commit(
                [place(key, "high", {"x": "m1"}, VM("small", priority=high), victims=[victim("low", "a", "m1", full)])],
                recheck,
            )
            # To a band that is not above, the machine seems full.
            assert names(said) == (["committed"] if i < j else ["room"])
            ran = {"x": VM("small", priority=high)} if i < j else {"a": full}
            for name, spec in ran.items():
                store.commit(
                    [release(f"{key}-1", "high" if i < j else "low", {name: "m1"}, spec)],
                    recheck,
                )
            assert running(store) == set()


def test_since_survives_moves_holds_and_evictions(crowd: Store, recheck: Recheck) -> None:
    there = PlacedVM("a", SPOT, "m1")  # as nobody says when
    group = [
        move("k1", "low", there, "m2", hold=True),
        move("k2", "low", there, "m2", held=True),
        move("k3", "low", PlacedVM("a", SPOT, "m2"), "m3", hold=True),
        place("k4", "other", tuple(PlacedVM(vm, SMALL, "m2", 300.0) for vm in "efg")),
        place("k5", "high", {"x": "m2"}, victims=[victim("low", "a", "m2", SPOT), victim("low", "a~hold", "m3", SPOT)]),
    ]
    assert set(names(crowd.commit(group, recheck))) == {"committed"}
    (gone,) = (entry for entry in news(crowd, 2) if entry.eviction)
    assert gone.released == (PlacedVM("a", SPOT, "m2", 100.0), PlacedVM("a~hold", SPOT, "m3", 100.0))


@that_last
def test_since_and_evictions_are_kept(crowd: Store, reopen: Callable[[], Store], recheck: Recheck) -> None:
    crowd.commit([place("k", "high", {"x": "m1"}, victims=[A], grace=3.0)], recheck)
    entries, ledger = news(crowd, 0), head(crowd)
    again = reopen()
    assert news(again, 0) == entries
    same(ledger, again.load())
    assert {row.since for name, row in again.load().vms.items() if name != "x"} == {100.0}


# ------------------------------------------------------------------------------------------------ what is no longer so

FULL = place("k", "high", {"x": "m1"}, victims=[A])
LOST: dict[str, tuple[list[Proposal], Proposal, str]] = {
    "one that is gone": (
        [release("k1", "low", {"a": "m1"}, SPOT), place("k2", "low", {"e": "m1"}, SPOT)],
        FULL,
        "victims",
    ),
    "one that moved": (
        [move("k1", "low", A.vm, "m2"), place("k2", "low", {"e": "m1"}, SPOT)],
        FULL,
        "victims",
    ),
    "one of another tenant": ([], place("k", "high", {"x": "m1"}, victims=[victim("no", "a", "m1", SPOT)]), "victims"),
    "another VM by its name": (
        [release("k1", "low", {"a": "m1"}, SPOT), place("k2", "low", {"a": "m1"}, SCRAP)],
        FULL,
        "victims",
    ),
    "a VM by its name of another tenant": (
        [release("k1", "low", {"a": "m1"}, SPOT), place("k2", "other", {"a": "m1"}, SPOT)],
        FULL,
        "victims",
    ),
    "one that had to go already": (
        [place("k1", "higher", {"y": "m1"}, victims=[A])],
        FULL,
        "victims",
    ),
    "one for which room is held by now": ([move("k1", "low", A.vm, "m2", hold=True)], FULL, "victims"),
    "one that need not": ([release("k1", "low", {"b": "m1"}, SPOT)], FULL, "victims"),
    "one too many": ([], place("k", "high", {"x": "m1"}, victims=[A, B]), "victims"),
    "one elsewhere": (
        [place("k1", "low", {"e": "m2"}, SPOT)],
        place("k", "high", {"x": "m1"}, victims=[A, victim("low", "e", "m2", SPOT)]),
        "victims",
    ),
    "one on a machine with room": (
        [place("k1", "low", {"e": "m2"}, SPOT)],
        place("k", "high", {"x": "m2"}, victims=[victim("low", "e", "m2", SPOT)]),
        "victims",
    ),
    "a hold alone that need not": (
        [move("k1", "low", A.vm, "m2", hold=True)],
        place("k", "high", {"x": "m2"}, victims=[victim("low", "a~hold", "m2", SPOT)]),
        "victims",
    ),
    "too few": ([], place("k", "high", {"x": "m1", "y": "m1"}, victims=[A]), "room"),
    "none, though all is held": ([], place("k", "high", {"x": "m1"}), "room"),
    "those on the wrong machine": (
        [place("k1", "low", {"e": "m2", "f": "m2", "g": "m2", "h": "m2"}, SPOT)],
        place("k", "high", {"x": "m1"}, victims=[victim("low", "e", "m2", SPOT)]),
        "room",
    ),
    "what the VM itself cannot have": (
        [condition("k1", "m1", state=1)],
        FULL,
        "room",
    ),
    "a name that is taken": ([], place("k", "high", {"b": "m1"}, victims=[A]), "name"),
    "the name of the victim": ([], place("k", "high", {"a": "m1"}, victims=[A]), "name"),
}


@pytest.mark.parametrize(("before", "proposal", "reason"), LOST.values(), ids=LOST)
def test_an_eviction_that_no_longer_holds_is_a_conflict_and_leaves_no_trace(
    crowd: Store, recheck: Recheck, before: list[Proposal], proposal: Proposal, reason: str
) -> None:
    assert set(names(crowd.commit(before, recheck))) <= {"committed"}
    with unchanged(crowd):
        assert names(crowd.commit([proposal], recheck)) == [reason]


def test_a_conflict_shows_the_machines_of_the_victims(crowd: Store, recheck: Recheck) -> None:
    crowd.commit([move("k1", "low", A.vm, "m2")], recheck)
    (outcome,) = crowd.commit([place("k", "high", {"x": "m1"}, WHOLE, victims=[A, B, C, D])], recheck)
    assert isinstance(outcome, Conflict)
    assert [(row.spec.name, row.vms) for row in outcome.machines] == [("m1", 3)]


BAD: dict[str, tuple[list[Proposal], tuple[PlacedVM, ...], list[Victim]]] = {
    "of the same band": (
        [],
        (PlacedVM("x", SPOT, "m2"),),
        [A],
    ),
    "of a higher band": (
        [place("k1", "other", {"e": "m2"})],
        (PlacedVM("x", SPOT, "m2"),),
        [victim("other", "e", "m2", SMALL)],
    ),
    "of the same band, elsewhere": (
        [place("k1", "other", {"e": "m2"})],
        (PlacedVM("x", SMALL, "m1"),),
        [A, victim("other", "e", "m2", SMALL)],
    ),
    "twice": ([], (PlacedVM("x", SMALL, "m1"),), [A, A]),
}


@pytest.mark.parametrize(("before", "wanted", "victims"), BAD.values(), ids=BAD)
def test_victims_that_make_no_sense_are_rejected_and_nothing_changes(
    crowd: Store, recheck: Recheck, before: list[Proposal], wanted: tuple[PlacedVM, ...], victims: list[Victim]
) -> None:
    assert set(names(crowd.commit(before, recheck))) <= {"committed"}
    with unchanged(crowd):
        assert names(crowd.commit([place("k", "high", wanted, victims=victims)], recheck)) == ["rejected"]


def test_what_was_rejected_leaves_no_trace_on_its_neighbours(crowd: Store, recheck: Recheck) -> None:
    """Else the room that it tried would be missing for what follows."""
    crowd.commit([place("k1", "other", {"e": "m2"})], recheck)
    wrong = [A, victim("other", "e", "m2", SMALL)]
    group = [
        place("k2", "high", {"x": "m1"}, victims=wrong),
        place("k3", "high", {"x": "m1"}, WHOLE, victims=[A, B, C, D]),
    ]
    assert names(crowd.commit(group, recheck)) == ["rejected", "committed"]


def test_a_lost_eviction_leaves_no_trace_on_its_neighbours(crowd: Store, recheck: Recheck) -> None:
    group = [
        place("k1", "high", {"x": "m1", "y": "m1"}, victims=[A]),
        place("k2", "high", {"x": "m1"}, victims=[A, B]),
        place("k3", "high", {"x": "m1"}, WHOLE, victims=[A, B, C, D]),
    ]
    assert names(crowd.commit(group, recheck)) == ["room", "victims", "committed"]


def test_a_vm_is_not_evicted_for_one_of_its_own_band_that_comes_with_a_higher_one(
    crowd: Store, recheck: Recheck
) -> None:
    """What came of a band fits beside all that runs in that band and above, whatever order it is named in."""
    crowd.commit([release("k1", "low", {"c": "m1", "d": "m1"}, SPOT)], recheck)
    one, regular = PlacedVM("x", SPOT, "m1"), tuple(PlacedVM(vm, SMALL, "m1") for vm in "uvw")
    for wanted in ((one, *regular), (*regular, one)):
        with unchanged(crowd):
            assert names(crowd.commit([place("k", "high", wanted, victims=[A, B])], recheck)) == ["room"]
    assert names(crowd.commit([place("k2", "high", regular, victims=[A])], recheck)) == ["committed"]


def test_in_a_zone_of_one_band_nobody_gives_way() -> None:
    only = Catalogue(
        name="one band",
        resources=CATALOGUE.resources,
        bands=("all",),
        generations=CATALOGUE.generations,
        vm_types=CATALOGUE.vm_types,
    )
    recheck = EngineRecheck(zone_of(only, MACHINES), Policy.default().rules)
    store = MemoryStore(only)
    store.commit([add("k0", *MACHINES)], recheck)
    store.commit([place("k1", "low", {"a": "m1"})], recheck)
    for where in ("m1", "m2"):
        said = store.commit([place("k2", "high", {"x": where}, victims=[victim("low", "a", "m1", SMALL)])], recheck)
        assert names(said) == ["rejected"]
    assert set(store.load().vms) == {"a"}


# ------------------------------------------------------------------------------------------------------ holds and moves


def test_what_is_held_for_a_vm_goes_with_it(crowd: Store, recheck: Recheck) -> None:
    crowd.commit([move("k1", "low", A.vm, "m2", hold=True)], recheck)
    both = [A, victim("low", hold_of("a"), "m2", SPOT)]
    assert names(crowd.commit([place("k2", "high", {"x": "m1"}, victims=both)], recheck)) == ["committed"]
    assert running(crowd) == {"b", "c", "d", "x"}
    gone = news(crowd, 3)[0]
    assert [vm.vm for vm in gone.released] == ["a", "a~hold"]
    assert gone.versions == {"m1": 2, "m2": 2}


def test_room_that_is_held_gives_way_alone_and_its_vm_stays(crowd: Store, recheck: Recheck) -> None:
    big = PlacedVM("e", BIG_SPOT, "m3")
    crowd.commit([place("k1", "t", {"e": "m3"}, BIG_SPOT), move("k2", "t", big, "m2", hold=True)], recheck)
    hold = victim("t", hold_of("e"), "m2", BIG_SPOT)
    assert names(crowd.commit([place("k3", "high", {"x": "m2"}, WHOLE, victims=[hold])], recheck)) == ["committed"]
    assert running(crowd) == {"a", "b", "c", "d", "e", "x"}
    assert names(crowd.commit([move("k4", "t", big, "m2", held=True)], recheck)) == ["tenant"]


def test_a_vm_does_not_go_for_the_sake_of_what_is_held_for_it(crowd: Store, recheck: Recheck) -> None:
    big = PlacedVM("e", BIG_SPOT, "m3")
    crowd.commit([place("k1", "t", {"e": "m3"}, BIG_SPOT), move("k2", "t", big, "m2", hold=True)], recheck)
    both = [victim("t", "e", "m3", BIG_SPOT), victim("t", hold_of("e"), "m2", BIG_SPOT)]
    with unchanged(crowd):
        assert names(crowd.commit([place("k3", "high", {"x": "m2"}, WHOLE, victims=both)], recheck)) == ["victims"]


@pytest.mark.parametrize("hold", [False, True], ids=["move", "hold"])
def test_nobody_gives_way_to_a_move(crowd: Store, recheck: Recheck, hold: bool) -> None:
    crowd.commit([place("k1", "high", {"x": "m2"})], recheck)
    with unchanged(crowd):
        said = crowd.commit([move("k2", "high", PlacedVM("x", SMALL, "m2"), "m1", hold=hold)], recheck)
        assert names(said) == ["room"]


def test_what_is_left_of_a_victims_room_can_be_moved_to(crowd: Store, recheck: Recheck) -> None:
    crowd.commit([place("k1", "t", {"e": "m2"}, BIG_SPOT), place("k2", "t", {"f": "m2"}, SPOT)], recheck)
    group = [
        move("k3", "low", A.vm, "m2"),
        place("k4", "high", {"x": "m2"}, victims=[victim("t", "e", "m2", BIG_SPOT)]),
        move("k5", "low", A.vm, "m2"),
    ]
    assert names(crowd.commit(group, recheck)) == ["room", "committed", "committed"]
    assert evicted(crowd) == ["e"]


# ------------------------------------------------------------------------------------------------------------ together


def test_those_who_go_together_go_though_only_one_is_in_the_way(store: Store, recheck: Recheck) -> None:
    pair = (PlacedVM("a", WHOLE_SPOT, "m1"), PlacedVM("b", BATCH, "m2"))
    store.commit([place("k1", "low", pair, constraints=TOGETHER)], recheck)
    both = as_known(store, [victim("low", "a", "m1", WHOLE_SPOT), victim("low", "b", "m2", BATCH)])
    assert names(store.commit([place("k2", "high", {"x": "m1"}, victims=both)], recheck)) == ["committed"]
    assert running(store) == {"x"}
    gone = news(store, 2)[0]
    assert gone.versions == {"m1": 2, "m2": 2}
    assert gone.constraints == TOGETHER


def test_those_who_go_together_need_not_be_in_the_way_one_by_one(store: Store, recheck: Recheck) -> None:
    """Each of them could have stayed, if the others went; but they go together."""
    store.commit([place("k1", "low", dict.fromkeys("abcd", "m1"), SPOT, constraints=TOGETHER)], recheck)
    all_of_them = as_known(store, [A, B, C, D])
    assert names(store.commit([place("k2", "high", {"x": "m1"}, victims=all_of_them)], recheck)) == ["committed"]
    assert running(store) == {"x"}


def test_those_who_go_together_stay_if_there_are_others_by_now(store: Store, recheck: Recheck) -> None:
    """A tenant has grown meanwhile: who does not know would leave half of it behind."""
    store.commit([place("k1", "low", {"a": "m1"}, WHOLE_SPOT, constraints=TOGETHER)], recheck)
    alone = as_known(store, [victim("low", "a", "m1", WHOLE_SPOT)])
    store.commit([place("k2", "low", {"b": "m2"}, SPOT, constraints=TOGETHER)], recheck)
    with unchanged(store):
        assert names(store.commit([place("k3", "high", {"x": "m1"}, victims=alone)], recheck)) == ["victims"]
    both = as_known(store, [victim("low", "a", "m1", WHOLE_SPOT), victim("low", "b", "m2", SPOT)])
    assert names(store.commit([place("k4", "high", {"x": "m1"}, victims=both)], recheck)) == ["committed"]
    assert running(store) == {"x"}


def test_those_who_go_together_stay_if_none_is_in_the_way(store: Store, recheck: Recheck) -> None:
    store.commit([place("k1", "low", {"a": "m1", "b": "m2"}, SPOT, constraints=TOGETHER)], recheck)
    both = as_known(store, [victim("low", "a", "m1", SPOT), victim("low", "b", "m2", SPOT)])
    with unchanged(store):
        assert names(store.commit([place("k2", "high", {"x": "m1"}, victims=both)], recheck)) == ["victims"]


def test_those_who_go_together_are_of_lower_priority_all_of_them(store: Store, recheck: Recheck) -> None:
    pair = (PlacedVM("a", WHOLE_SPOT, "m1"), PlacedVM("b", SMALL, "m2"))
    store.commit([place("k1", "low", pair, constraints=TOGETHER)], recheck)
    both = as_known(store, [victim("low", "a", "m1", WHOLE_SPOT), victim("low", "b", "m2", SMALL)])
    with unchanged(store):
        assert names(store.commit([place("k2", "high", {"x": "m1"}, victims=both)], recheck)) == ["rejected"]
    assert names(store.commit([place("k3", "high", {"x": "m1"}, victims=both[:1])], recheck)) == ["committed"]


# ------------------------------------------------------------------------------------------------------------- waiting


def waiting(store: Store) -> dict[str, Waiting]:
    """Who waits for room, by name."""
    return {name: msgspec.json.decode(value, type=Waiting) for name, value in store.registry(WAITING).items()}


@pytest.fixture
def queue(store: Store, recheck: Recheck) -> Store:
    """A store where m1 was full of three small VMs, a to c, that want to be placed again, and one, d, that does not;
    at 500 s, a and d gave way.
    """
    vms = (*(PlacedVM(vm, AGAIN, "m1", 100.0) for vm in "abc"), PlacedVM("d", SPOT, "m1", 100.0))
    victims = [victim("low", "a", "m1", AGAIN), victim("low", "d", "m1", SPOT)]
    first = place("k2", "high", {"x": "m1", "y": "m1"}, victims=victims, record=Record(agent="a", at=500.0))
    assert names(store.commit([place("k1", "low", vms), first], recheck)) == ["committed", "committed"]
    return store


def test_a_vm_that_wants_to_be_placed_again_waits_where_everybody_sees_it(queue: Store) -> None:
    said = Waiting(tenant="low", spec=AGAIN, constraints=UNCONSTRAINED, since=500.0, cause="k2")
    assert waiting(queue) == {"a": said}
    gone = news(queue, 2)[0]
    ((kind, name, before, after),) = [msgspec.structs.astuple(each) for each in gone.registered]
    assert (kind, name, before) == (WAITING, "a", None)
    assert after == queue.registry(WAITING)["a"]


def test_who_is_placed_again_waits_no_longer(queue: Store, recheck: Recheck) -> None:
    since = head(queue).revision
    again = place("k3", "low", {"a": "m2"}, AGAIN, requeued=True)
    assert names(queue.commit([again], recheck)) == ["committed"]
    assert waiting(queue) == {}
    (entry,) = news(queue, since)
    assert entry.registered[0].name == "a"
    assert entry.registered[0].after is None
    assert entry.placed == (PlacedVM("a", AGAIN, "m2"),)


@pytest.mark.parametrize("name", ["a", "d", "e"])
def test_who_waits_no_longer_is_not_placed_again(queue: Store, recheck: Recheck, name: str) -> None:
    queue.commit([register("k3", "a", None, kind=WAITING)], recheck)
    with unchanged(queue):
        said = queue.commit([place("k4", "low", {name: "m2"}, AGAIN, requeued=True)], recheck)
        assert names(said) == ["gone"]


def test_of_two_who_place_it_again_one_does(queue: Store, recheck: Recheck) -> None:
    group = [
        place("k3", "low", {"a": "m2"}, AGAIN, requeued=True),
        release("k4", "low", {"a": "m2"}, AGAIN),
        place("k5", "low", {"a": "m2"}, AGAIN, requeued=True),
    ]
    assert names(queue.commit(group, recheck)) == ["committed", "committed", "gone"]


def test_who_finds_no_room_goes_on_waiting(queue: Store, recheck: Recheck) -> None:
    with unchanged(queue):
        assert names(queue.commit([place("k3", "low", {"a": "m1"}, AGAIN, requeued=True)], recheck)) == ["room"]


def test_who_is_placed_again_may_make_others_wait(queue: Store, recheck: Recheck) -> None:
    scraps = VM("whole", priority="scrap", requeue=True)
    queue.commit([place("k3", "low", {"s": "m2"}, scraps)], recheck)
    again = place("k4", "low", {"a": "m2"}, AGAIN, requeued=True, victims=[victim("low", "s", "m2", scraps)])
    assert names(queue.commit([again], recheck)) == ["committed"]
    assert set(waiting(queue)) == {"s"}
    assert waiting(queue)["s"].cause == "k4"
    assert {each.name for each in news(queue, 4)[-1].registered} == {"a", "s"}


def test_who_has_to_go_again_waits_again(queue: Store, recheck: Recheck) -> None:
    group = [
        place("k3", "low", {"a": "m2"}, AGAIN, requeued=True),
        place("k4", "high", {"u": "m2", "v": "m2", "w": "m2"}),
        place("k5", "high", {"z": "m2"}, victims=[victim("low", "a", "m2", AGAIN)], record=Record(agent="a", at=900.0)),
    ]
    assert names(queue.commit(group, recheck)) == ["committed"] * 3
    assert (waiting(queue)["a"].since, waiting(queue)["a"].cause) == (900.0, "k5")


def test_a_hold_does_not_wait_but_its_vm_does(queue: Store, recheck: Recheck) -> None:
    there = PlacedVM("b", AGAIN, "m1")
    group = [
        move("k3", "low", there, "m2", hold=True),
        place("k4", "high", {"u": "m2", "v": "m2", "w": "m2"}),
        place("k5", "high", {"z": "m2"}, victims=[victim("low", "b~hold", "m2", AGAIN)]),
        move("k6", "low", there, "m3", hold=True),
        place(
            "k7", "high", {"o": "m1"}, victims=[victim("low", "b", "m1", AGAIN), victim("low", "b~hold", "m3", AGAIN)]
        ),
    ]
    assert names(queue.commit(group[:3], recheck)) == ["committed"] * 3
    assert set(waiting(queue)) == {"a"}
    assert names(queue.commit(group[3:], recheck)) == ["committed"] * 2
    assert set(waiting(queue)) == {"a", "b"}


def test_a_waiting_vm_keeps_its_tenants_wishes(store: Store, recheck: Recheck) -> None:
    wish = Constraints(max_per_machine=2, evict_together=True)
    spec = VM("whole", priority="scrap", requeue=True)
    store.commit([place("k1", "low", {"a": "m1"}, spec, constraints=wish)], recheck)
    gone = as_known(store, [victim("low", "a", "m1", spec)])
    store.commit([place("k2", "high", {"x": "m1"}, victims=gone)], recheck)
    assert store.tenant("low") is None
    assert (waiting(store)["a"].constraints, waiting(store)["a"].spec) == (wish, spec)


# ---------------------------------------------------------------------------------------------------------- in a group


def test_of_two_in_a_group_that_want_the_same_victim_one_gets_it(crowd: Store, recheck: Recheck) -> None:
    group = [
        place("k1", "high", {"x": "m1"}, victims=[A]),
        place("k2", "higher", {"y": "m1"}, victims=[A]),
        place("k3", "highest", {"z": "m1"}, victims=[B]),
    ]
    assert names(crowd.commit(group, recheck)) == ["committed", "victims", "committed"]
    assert evicted(crowd) == ["a", "b"]


def test_what_gives_way_may_have_come_in_the_same_group(store: Store, recheck: Recheck) -> None:
    group = [
        place("k1", "low", {"a": "m1"}, WHOLE_SPOT),
        place("k2", "mid", {"b": "m1"}, SPOT),
        place("k3", "high", {"x": "m1"}, victims=[victim("low", "a", "m1", WHOLE_SPOT)]),
        place("k4", "low", {"a": "m2"}, WHOLE_SPOT),
        place("k5", "high", {"y": "m2"}, victims=[victim("low", "a", "m2", WHOLE_SPOT)]),
    ]
    assert names(store.commit(group, recheck)) == ["committed", "room", "committed", "committed", "committed"]
    assert evicted(store) == ["a", "a"]
    assert running(store) == {"x", "y"}


def test_what_one_leaves_is_there_for_the_next_without_another_victim(store: Store, recheck: Recheck) -> None:
    store.commit([place("k1", "low", {"a": "m1"}, WHOLE_SPOT)], recheck)
    group = [
        place("k2", "high", {"x": "m1"}, victims=[victim("low", "a", "m1", WHOLE_SPOT)]),
        place("k3", "mid", {"b": "m1", "c": "m1", "d": "m1"}, SPOT),
        place("k4", "high", {"y": "m1"}, victims=[victim("mid", "b", "m1", SPOT)]),
        release("k5", "mid", {"c": "m1"}, SPOT),
        place("k6", "high", {"z": "m1"}, victims=[victim("mid", "d", "m1", SPOT)]),
        place("k7", "high", {"z": "m1"}),
    ]
    assert names(store.commit(group, recheck)) == [*["committed"] * 4, "victims", "committed"]


# --------------------------------------------------------------------------------------- again, dry, backwards, strict


def test_a_key_evicts_once(crowd: Store, recheck: Recheck) -> None:
    first = place("k", "high", {"x": "m1"}, victims=[A])
    other = msgspec.structs.replace(first, placed=(PlacedVM("y", SMALL, "m1"),), victims=(B,))
    assert names(crowd.commit([first, first], recheck)) == ["committed", "replayed"]
    with unchanged(crowd):
        (outcome,) = crowd.commit([other], recheck)
        assert isinstance(outcome, Replayed)
        assert outcome.decided.placed == first.placed
    assert evicted(crowd) == ["a"]


def test_a_dry_commit_evicts_nobody(crowd: Store, recheck: Recheck) -> None:
    group = [
        place("k1", "high", {"x": "m1"}, victims=[A]),
        place("k2", "high", {"y": "m1"}, victims=[A]),
        place("k3", "high", {"z": "m1"}, victims=[B]),
    ]
    with unchanged(crowd):
        said = names(crowd.commit(group, recheck, dry=True))
        assert said == ["committed", "victims", "committed"]
        assert names(crowd.commit(group, recheck, dry=True)) == said
    assert names(crowd.commit(group, recheck)) == said


def test_the_zone_can_be_seen_as_it_was_before_each_eviction(queue: Store, recheck: Recheck) -> None:
    states = {head(queue).revision: head(queue)}
    scraps = VM("whole", priority="scrap", requeue=True)
    both = [victim("low", "b", "m1", AGAIN), victim("low", "b~hold", "m3", AGAIN)]
    for group in (
        [place("k3", "low", {"s": "m2"}, scraps)],
        [place("k4", "low", {"a": "m2"}, AGAIN, requeued=True, victims=[victim("low", "s", "m2", scraps)])],
        [move("k5", "low", PlacedVM("b", AGAIN, "m1"), "m3", hold=True)],
        [
            place("k6", "high", {"u": "m1"}, victims=both),
            place("k7", "low", {"b": "m3"}, AGAIN, requeued=True),
        ],
    ):
        assert set(names(queue.commit(group, recheck))) == {"committed"}
        states[head(queue).revision] = head(queue)
    for revision, then in states.items():
        same(then, ledger_at(queue, revision))
    assert ledger_at(queue, 0).vms == {}
    check_invariants(queue)


def test_a_strict_store_asks_for_the_machines_of_what_comes(crowd: Store, recheck: Recheck) -> None:
    crowd.commit([place("k1", "other", {"e": "m2"})], recheck)
    for seen, said in (({"m1": 0}, "stale"), ({}, "stale"), ({"m1": 1}, "committed")):
        proposal = place("k2", "high", {"x": "m1"}, victims=[A], seen=seen)
        assert names(crowd.commit([proposal], recheck, strict=True)) == [said]


def test_a_tenant_whose_vm_had_to_go_is_another_one(store: Store, recheck: Recheck) -> None:
    """Whoever counts on all of its VMs must look again."""
    pairs = Constraints(max_per_machine=2)
    (first,) = store.commit([place("k1", "low", {"a": "m1", "b": "m2"}, SPOT, constraints=pairs)], recheck)
    assert isinstance(first, Committed)
    store.commit([place("k2", "high", {"u": "m1", "v": "m1", "w": "m1"})], recheck)
    store.commit([place("k3", "high", {"x": "m1"}, victims=[victim("low", "a", "m1", SPOT)])], recheck)
    late = place("k4", "low", {"c": "m2"}, SPOT, constraints=pairs, stamp=first.stamp)
    assert names(store.commit([late], recheck)) == ["tenant"]
    everything = release("k5", "low", {"a": "m1", "b": "m2"}, SPOT, stamp=first.stamp)
    assert names(store.commit([everything], recheck)) == ["tenant"]


def test_a_released_vm_is_not_evicted_and_an_evicted_one_not_released(crowd: Store, recheck: Recheck) -> None:
    group = [
        place("k1", "high", {"x": "m1"}, victims=[A]),
        release("k2", "low", {"a": "m1"}, SPOT),
        release("k3", "low", {"b": "m1"}, SPOT),
        place("k4", "high", {"y": "m1", "z": "m1"}, victims=[B]),
        place("k5", "high", {"y": "m1", "z": "m1"}, victims=[C]),
    ]
    assert names(crowd.commit(group, recheck)) == ["committed", "gone", "committed", "victims", "committed"]


def test_isolation_ends_with_the_last_vm_that_had_it(store: Store, recheck: Recheck) -> None:
    alone, mine = VM("whole", priority="spot", isolated=True), VM("small", isolated=True)
    store.commit([place("k1", "t", {"a": "m1"}, alone)], recheck)
    gone = victim("t", "a", "m1", alone)
    assert names(store.commit([place("k2", "high", {"x": "m1"}, victims=[gone])], recheck)) == ["room"]
    assert names(store.commit([place("k3", "t", {"x": "m1"}, mine, victims=[gone])], recheck)) == ["committed"]
    assert head(store).machines["m1"].owner == "t"
    (rejected,) = store.commit([place("k4", "t", {"y": "m2"}, mine, victims=[victim("t", "x", "m1", mine)])], recheck)
    assert isinstance(rejected, Rejected)
    assert names(store.commit([release("k5", "t", {"x": "m1"}, mine)], recheck)) == ["committed"]
    assert head(store).machines["m1"].owner == ""
    assert names(store.commit([place("k6", "high", {"x": "m1"}, BIG)], recheck)) == ["committed"]


@pytest.fixture
def all_wait(store: Store, recheck: Recheck) -> Store:
    """A store where a and b, all VMs of tenant low, wait."""
    group = [
        place("k1", "low", {"a": "m1", "b": "m1"}, AGAIN),
        place("k2", "high", {"x": "m1"}, WHOLE, victims=[victim("low", vm, "m1", AGAIN) for vm in "ab"]),
    ]
    assert names(store.commit(group, recheck)) == ["committed"] * 2
    assert set(waiting(store)) == {"a", "b"}
    return store


def test_a_tenant_of_which_nothing_runs_is_deleted_with_all_that_waits(all_wait: Store, recheck: Recheck) -> None:
    assert names(all_wait.commit([release("k", "low", {}, waiting="ab")], recheck)) == ["committed"]
    assert waiting(all_wait) == {}
    assert running(all_wait) == {"x"}
    check_invariants(all_wait)


def test_a_tenant_is_not_deleted_by_who_does_not_know_that_some_of_it_runs_again(
    all_wait: Store, recheck: Recheck
) -> None:
    all_wait.commit([place("back", "low", {"a": "m2"}, AGAIN, requeued=True)], recheck)
    with unchanged(all_wait):
        assert names(all_wait.commit([release("k", "low", {}, waiting="ab")], recheck)) == ["tenant"]


def test_of_a_tenant_nothing_is_given_up_unless_all_of_it_is(all_wait: Store, recheck: Recheck) -> None:
    """In one group with what follows: a is still waiting, then."""
    group = [release("gone", "low", {}, waiting="abc"), place("back", "low", {"a": "m2"}, AGAIN, requeued=True)]
    assert names(all_wait.commit(group, recheck)) == ["tenant", "committed"]
    assert set(waiting(all_wait)) == {"b"}


def test_to_delete_nothing_is_refused(store: Store, recheck: Recheck) -> None:
    with unchanged(store):
        assert names(store.commit([release("k", "low", {})], recheck)) == ["rejected"]


def test_vms_that_are_evicted_for_nobody_wait_if_they_want_to_be_placed_again(queue: Store, recheck: Recheck) -> None:
    since, reason = head(queue).revision, Eviction(tenant="", priority="", grace=30.0)
    gone = (PlacedVM("b", AGAIN, "m1"), PlacedVM("c", AGAIN, "m1"))
    plain = release("k3", "low", gone)
    assert isinstance(plain, Release)
    asked = msgspec.structs.replace(plain, eviction=reason)
    assert names(queue.commit([asked], recheck)) == ["committed"]
    assert set(waiting(queue)) == {"a", "b", "c"}
    assert waiting(queue)["b"].cause == "k3"
    (entry,) = news(queue, since)
    assert (entry.eviction, {each.vm for each in entry.released}) == (reason, {"b", "c"})
    assert {each.name for each in entry.registered} == {"b", "c"}
    assert names(queue.commit([place("k4", "low", {"b": "m2"}, AGAIN, requeued=True)], recheck)) == ["committed"]
