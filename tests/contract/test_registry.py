"""What those around a store agree on: entries of its registry, and who wrote what when."""

from __future__ import annotations

import threading
from collections.abc import Callable

import msgspec
import pytest

from roost.model.change import Registered
from roost.store.audit import audit
from roost.store.contract import Committed, Conflict, Proposal, Record, Store
from roost.store.history import ledger_at
from roost.store.ledger import Ledger
from roost.store.recheck import Recheck
from tests.contract.conftest import Home, that_last
from tests.contract.tiny import (
    CATALOGUE,
    EVERY_KIND,
    MACHINES,
    followed,
    head,
    names,
    place,
    recheck_of,
    register,
    same,
    unchanged,
)


def test_what_is_registered_is_there(store: Store, recheck: Recheck) -> None:
    group = [register("k1", "b", "1"), register("k2", "a", ""), register("k3", "b", "2", kind="note")]
    assert store.commit(group, recheck) == [Committed()] * 3
    assert head(store).registry == {("quota", "b"): "1", ("quota", "a"): "", ("note", "b"): "2"}
    assert list(store.registry("quota").items()) == [("a", ""), ("b", "1")]
    assert store.registry("note") == {"b": "2"}
    assert store.registry("nothing") == {}


def test_an_entry_has_one_value_or_none(store: Store, recheck: Recheck) -> None:
    store.commit([register("k1", "a", "1"), register("k2", "b", "1")], recheck)
    group = [register("k3", "a", "2"), register("k4", "a", "3"), register("k5", "b", None), register("k6", "c", None)]
    outcomes = store.commit(group, recheck)
    assert [outcome.changed for outcome in outcomes if isinstance(outcome, Committed)] == [True, True, True, False]
    assert store.registry("quota") == {"a": "3"}
    group = [register("k7", "a", None), register("k8", "a", "4"), register("k9", "b", "5"), register("k10", "b", None)]
    assert store.commit(group, recheck) == [Committed()] * 4
    assert store.registry("quota") == {"a": "4"}


def test_an_entry_that_is_so_already_is_nothing_new(store: Store, recheck: Recheck) -> None:
    """It is done, but no follower hears of it."""
    store.commit([register("k1", "a", "1")], recheck)
    nothing, revision = Committed(changed=False), head(store).revision
    assert store.commit([register("k2", "a", "1"), register("k3", "b", None)], recheck) == [nothing, nothing]
    assert head(store).revision == revision
    assert names(store.commit([register("k2", "a", "1")], recheck)) == ["replayed"]


def test_a_guarded_entry_is_refused_unless_it_is_as_expected(store: Store, recheck: Recheck) -> None:
    """Also if it has the wanted value already; and nothing of it is done, nor told what the value is."""
    store.commit([register("k1", "a", "1")], recheck)
    with unchanged(store):
        for bad in (
            register("k", "a", "2", expected="0"),
            register("k", "a", "1", expected="0"),
            register("k", "a", "2", expected=None),
            register("k", "a", None, expected=""),
            register("k", "b", "2", expected=""),
        ):
            (outcome,) = store.commit([bad], recheck)
            assert isinstance(outcome, Conflict)
            assert outcome.reason == "registry"
            assert outcome.detail in ("quota a has another value by now", "quota b has another value by now")
    group = [
        register("k2", "a", "2", expected="1"),
        register("k3", "a", "3", expected="1"),
        register("k4", "a", None, expected="2"),
        register("k5", "a", "4", expected=None),
        register("k6", "b", None, expected=None),
    ]
    assert names(store.commit(group, recheck)) == ["committed", "registry", "committed", "committed", "committed"]
    assert store.registry("quota") == {"a": "4"}


def test_the_feed_tells_an_entry_before_and_after(store: Store, recheck: Recheck) -> None:
    group = [register("k1", "a", "1"), register("k2", "a", "2"), register("k3", "a", None)]
    store.commit(group, recheck)
    assert [entry.registered for _, entry in store.changes(1).after(1)] == [
        (Registered("quota", "a", None, "1"),),
        (Registered("quota", "a", "1", "2"),),
        (Registered("quota", "a", "2", None),),
    ]


def test_the_registry_can_be_followed_and_taken_back(store: Store, recheck: Recheck) -> None:
    values = ["1", "2", None, "3"]
    for i, value in enumerate(values):
        store.commit([register(f"k{i}", "a", value), register(f"n{i}", "a", f"n{i}", kind="note")], recheck)
    same(followed(store, Ledger(CATALOGUE)), head(store))
    then = [ledger_at(store, 1 + 2 * i).registry.get(("quota", "a")) for i in range(5)]
    assert then == [None, *values]


def test_an_audit_tells_where_the_registry_differs(store: Store, recheck: Recheck) -> None:
    store.commit([register("k1", "a", "1"), register("k2", "b", "2")], recheck)
    assert audit(store).clean
    ledger, doubted = head(store), head(store)
    doubted.registry = {("quota", "a"): "0", ("quota", "c"): "3"}
    assert sorted(ledger.differences(doubted)) == [
        "registry entry ('quota', 'a') is '0' instead of '1'",
        "registry entry ('quota', 'b') is missing",
        "registry entry ('quota', 'c') should not be there",
    ]


@that_last
def test_the_registry_lasts(store: Store, reopen: Callable[[], Store], recheck: Recheck) -> None:
    store.commit([register("k1", "ä%", "1"), register("k2", "b", "2"), register("k3", "b", None)], recheck)
    assert reopen().registry("quota") == {"ä%": "1"}


@pytest.mark.parametrize("proposal", EVERY_KIND.values(), ids=EVERY_KIND)
def test_the_feed_says_who_asked_and_when(store: Store, recheck: Recheck, proposal: Proposal) -> None:
    store.commit([place("k1", "t", {"a": "m1"})], recheck)
    record = Record(agent="a", by="ann", at=12.5)
    revision = head(store).revision
    assert isinstance(proposal, msgspec.Struct)
    assert names(store.commit([msgspec.structs.replace(proposal, record=record)], recheck)) == ["committed"]
    ((_, entry),) = store.changes(revision).after(revision)
    assert (entry.key, entry.by, entry.at) == ("k", "ann", 12.5)
    decided = store.decided("k")
    assert decided is not None
    assert decided.record.by == "ann"


def test_counting_up_together_misses_nothing(home: Home, store: Store) -> None:
    """Each reads a number and writes the next one, guarded; who loses tries again."""

    def count(number: int, mine: Store) -> None:
        recheck, tries = recheck_of(MACHINES), 0
        for _ in range(8):
            outcome: object = None
            while not isinstance(outcome, Committed):
                tries += 1
                now = mine.registry("quota").get("count")
                later = str(int(now or 0) + 1)
                (outcome,) = mine.commit([register(f"{number}-{tries}", "count", later, expected=now)], recheck)

    threads = [threading.Thread(target=count, args=(number, home.another())) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert store.registry("quota") == {"count": "24"}
    told = [entry.registered[0].after for _, entry in store.changes(1, patient=True).after(1)]
    assert told == [str(i) for i in range(1, 25)]
