"""What can be looked up in a store: single rows, lists in pages, and how policies fared."""

from __future__ import annotations

import math
import random
import sqlite3
import threading
from collections.abc import Callable, Iterator
from typing import TypeVar

import psycopg
import pytest

from roost.model.change import PlacedVM
from roost.model.errors import InvalidInput
from roost.store.contract import PolicyResult, Proposal, Record, Store
from roost.store.ledger import VMRow
from roost.store.recheck import Recheck
from roost.store.sqlite import SqliteStore
from tests.contract.conftest import Home, Homes, in_postgres, in_sqlite
from tests.contract.tiny import (
    MACHINES,
    PAIRS,
    SMALL,
    condition,
    decline,
    head,
    place,
    quarantine,
    recheck_of,
    release,
)

T = TypeVar("T")
# Wildcards of SQL, of the shell and of expressions; capitals, spaces, accents composed and not; what lies at the
# borders of UTF-8 and UTF-16. Databases that compare by language have most of these in another order.
ODD = ("%", "_", "A", "B", "Z", "[a]", "a", "a b", "a%", "a%c", "a*", "a-b", "a.b", "a/b", "a?", "a\\", "a\\b", "a_",
       "a_c", "aa", "abc", "a'", "a\u0301", "a\ud7ff", "a\ue000", "a\uffff", "a\U00010000", "a\U0010ffff",
       "a\U0010ffffb", "b", "z", "\u00c4", "\u00e1", "\u00e4", "\u00df", "\u4e2d\u6587", "\uff41", "\U0001f600",
       "\U0010ffff")  # fmt: skip


def pages(read: Callable[[str], list[tuple[str, T]]]) -> Iterator[tuple[str, T]]:
    """All of a list, page by page."""
    after = ""
    while page := read(after):
        yield from page
        after = page[-1][0]


# --------------------------------------------------------------------------------------------------------- single rows


def test_single_rows_are_those_that_are_loaded(store: Store, recheck: Recheck) -> None:
    group = [place("k1", "t", {"a": "m1", "b": "m5"}, constraints=PAIRS), condition("k2", "m1", health=50)]
    store.commit([*group, place("k3", "%", {"_": "m2"})], recheck)
    ledger = head(store)
    assert {name: store.tenant(name) for name in ledger.tenants} == ledger.tenants
    assert {name: store.vm(name) for name in ledger.vms} == ledger.vms
    assert {name: store.machine(name) for name in ledger.machines} == ledger.machines
    for strange in ("", "T", "t ", "x", "_%", "\U0001f600"):
        assert (store.tenant(strange), store.vm(strange), store.machine(strange)) == (None, None, None)
    store.commit([release("k4", "%", {"_": "m2"})], recheck)
    assert (store.tenant("%"), store.vm("_")) == (None, None)


def test_a_machine_that_was_looked_up_is_ones_own(store: Store) -> None:
    row = store.machine("m1")
    assert row is not None
    row.used[0] = 99
    assert store.machine("m1") == head(store).machines["m1"] != row


# --------------------------------------------------------------------------------------------------------------- lists


@pytest.fixture
def crowd(store: Store) -> Store:
    """A store with oddly named tenants and VMs; the names of VMs say nothing of their tenants."""
    recheck, chance = recheck_of(MACHINES), random.Random(4)
    vms = list(ODD)
    chance.shuffle(vms)
    rooms = [spec.name for spec in MACHINES for _ in range(min(spec.capacity))]
    group: list[Proposal] = []
    for i, (vm, on) in enumerate(zip(vms, rooms, strict=False)):
        tenant = ODD[i] if i % 3 else "a"
        group.append(place(f"k{i}", tenant, {vm: on}))
    assert {type(outcome).__name__ for outcome in store.commit(group, recheck)} == {"Committed"}
    return store


@pytest.mark.parametrize("limit", [1, 7, 1_000])
def test_lists_are_in_the_order_of_code_points_in_pages_of_any_size(crowd: Store, limit: int) -> None:
    ledger = head(crowd)
    assert list(pages(lambda after: crowd.tenants(after, limit))) == sorted(ledger.tenants.items())
    assert list(pages(lambda after: crowd.vms(after, limit))) == [(n, ledger.vms[n]) for n in sorted(ledger.vms)]
    assert (crowd.tenants(limit=0), crowd.vms(limit=0)) == ([], [])


@pytest.mark.parametrize("limit", [2, 1_000])
def test_a_prefix_is_what_names_begin_with_and_no_pattern(crowd: Store, limit: int) -> None:
    ledger = head(crowd)
    for prefix in ("", *ODD, "a\U0010ffff\U0010ffff", "nobody", "ab%", "a\\%"):
        fitting = sorted(name for name in ledger.tenants if name.startswith(prefix))
        found = list(pages(lambda after, p=prefix: crowd.tenants(after, limit, p)))  # type: ignore[misc]
        assert [name for name, _ in found] == fitting
        theirs = sorted(name for name, row in ledger.vms.items() if row.tenant.startswith(prefix))
        listed = list(pages(lambda after, p=prefix: crowd.vms(after, limit, prefix=p)))  # type: ignore[misc]
        assert [name for name, _ in listed] == theirs


def test_vms_are_listed_by_tenant_machine_and_prefix_together(crowd: Store) -> None:
    ledger = head(crowd)
    for tenant in (None, "a", "a%", "\u00c4", "nobody"):
        for machine in (None, "m1", "m5", "nowhere"):
            for prefix in ("", "a", "a%", "b"):
                fitting = [
                    (name, row)
                    for name, row in sorted(ledger.vms.items(), key=lambda item: item[0])
                    if tenant in (None, row.tenant) and machine in (None, row.machine) and row.tenant.startswith(prefix)
                ]
                assert crowd.vms("", 1_000, tenant=tenant, machine=machine, prefix=prefix) == fitting
                if fitting:
                    last = fitting[len(fitting) // 2][0]
                    rest = [(name, row) for name, row in fitting if name > last][:3]
                    assert crowd.vms(last, 3, tenant=tenant, machine=machine, prefix=prefix) == rest


def test_a_cursor_need_not_be_there_any_more(store: Store, recheck: Recheck) -> None:
    store.commit([place(f"k{name}", name, {name: "m1"}) for name in "abc"], recheck)
    store.commit([release("gone", "b", {"b": "m1"})], recheck)
    assert [name for name, _ in store.tenants("b")] == [name for name, _ in store.vms("b")] == ["c"]
    assert [name for name, _ in store.tenants("0", prefix="c")] == ["c"], "a cursor before the prefix"
    assert store.tenants("d", prefix="c") == [], "and one beyond it"


# ----------------------------------------------------------------------------------------------------------- decisions


@pytest.mark.parametrize("limit", [1, 4, 1_000])
def test_decisions_are_listed_backwards_in_pages(store: Store, recheck: Recheck, limit: int) -> None:
    """Those of the same moment by key, so that no page ends between two that cannot be told apart."""
    when = {key: 10.0 + i // 5 for i, key in enumerate(ODD)}
    store.commit([decline(key, Record(at=at)) for key, at in when.items()], recheck)
    for prefix in ("", "a", "a%", "_", "nobody", "\U0010ffff"):
        fitting = sorted((at, key) for key, at in (when | {"first": 0.0}).items() if key.startswith(prefix))
        listed: list[tuple[float, str]] = []
        before = None
        while page := store.decisions(limit, before=before, prefix=prefix):
            listed += [(decided.record.at, decided.key) for decided in page]
            before = listed[-1]
        assert listed == fitting[::-1]


# ------------------------------------------------------------------------------------------------------------ policies


def test_it_is_told_how_policies_fared(store: Store, recheck: Recheck) -> None:
    def made(at: float, policy: str, us: int, retries: int = 0) -> Record:
        return Record(at=at, policy=policy, decided_us=us, retries=retries)

    group = [
        place("k1", "t", {"a": "m1", "b": "m2"}, record=made(10.0, "new 1", 40, 3)),
        place("k2", "t", {"c": "m1"}, record=made(11.0, "new 1", 0)),
        decline("k3", made(12.0, "new 1", 5, 1)),
        decline("k4", made(12.0, "\u00e4lter 0", 7)),
        place("k5", "t", {"d": "m1"}, record=made(9.9, "new 1", 1_000_000, 20)),
        place("k6", "t", {"e": "m1"}, record=Record(at=12.0, decided_us=5)),
        condition("k7", "m1", health=50),
        quarantine("k8", "c1"),
        decline("k9", made(13.0, "Zeta 2", 1)),
        place("k9", "u", {"f": "m5"}, record=made(14.0, "new 1", 41, 1)),
    ]
    for proposal in group:
        store.commit([proposal], recheck)
    new = PolicyResult(
        policy="new 1",
        requests=4,
        committed=3,
        declined=1,
        vms=4,
        retries=5,
        mean_decided_us=21.5,
        p99_decided_us=41,
    )
    older = PolicyResult(
        policy="\u00e4lter 0",
        requests=1,
        committed=0,
        declined=1,
        vms=0,
        retries=0,
        mean_decided_us=7.0,
        p99_decided_us=7,
    )
    assert store.policy_results(10.0) == [new, older]
    assert store.policy_results(15.0) == []


@pytest.mark.parametrize("count", [1, 2, 50, 99, 100, 101, 199, 200, 201, 700])
def test_the_99th_percentile_is_the_nearest_rank(store: Store, recheck: Recheck, count: int) -> None:
    """And the mean is what division makes of it, to the last bit."""
    times = [(i * i * 7_919) % 10_007 for i in range(count)]
    store.commit([decline(f"k{i}", Record(at=1.0, policy="p", decided_us=us)) for i, us in enumerate(times)], recheck)
    (result,) = store.policy_results(1.0)
    assert result.p99_decided_us == sorted(times)[math.ceil(0.99 * count) - 1]
    assert result.mean_decided_us == sum(times) / count


# ---------------------------------------------------------------------------------------------- others at the same time


def test_whoever_looks_things_up_sees_whole_commits_while_others_write(home: Home, store: Store) -> None:
    """Each commit moves a pair of VMs: they are seen together, on one machine, or not at all."""
    stop, failed = threading.Event(), list[BaseException]()

    def look() -> None:
        while not stop.is_set():
            rows = store.vms(tenant="t", limit=10)
            assert not rows or rows == [
                (name, VMRow("t", PlacedVM(name, SMALL, rows[0][1].machine))) for name in ("a", "b")
            ]
            store.tenant("t"), store.machine("m1"), store.registry("quota"), store.policy_results(0.0)
            assert len(store.decisions(5)) >= 1
            assert store.tenants(prefix="u") == []

    def guarded() -> None:
        try:
            look()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=guarded) for _ in range(2)]
    for thread in threads:
        thread.start()
    recheck = recheck_of(MACHINES)
    for i in range(30):
        on = f"m{i % 8 + 1}"
        store.commit([place(f"p{i}", "t", {"a": on, "b": on})], recheck)
        store.commit([release(f"r{i}", "t", {"a": on, "b": on})], recheck)
    stop.set()
    for thread in threads:
        thread.join()
    assert failed == []


@in_postgres
def test_a_list_that_takes_long_holds_nobody_up(homes: Homes, store: Store, recheck: Recheck) -> None:
    with psycopg.connect(homes.database) as other:
        other.execute("LOCK TABLE rounds IN ACCESS EXCLUSIVE MODE")
        thread = threading.Thread(target=lambda: store.round("a", 1))
        thread.start()
        waiting = "SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        with psycopg.connect(homes.database, autocommit=True) as watch:
            while watch.execute(waiting).fetchone() is None:
                assert thread.is_alive()
        store.commit([place("k", "t", {"a": "m1"})], recheck)
        assert [entry.key for _, entry in store.changes(1).after(1)] == ["k"]
        assert store.load().vms.keys() == {"a"}
        assert thread.is_alive()
        other.rollback()
    thread.join()


def answers_meanwhile(store: Store, thread: threading.Thread) -> None:
    """Single things are looked up though somebody reads much."""
    assert store.tenant("t") is None
    assert store.machine("m1")
    assert store.head() == (1, 0)
    assert store.vms() == []
    assert thread.is_alive()


@in_postgres
def test_who_looks_up_one_thing_does_not_wait_for_who_reads_much(homes: Homes, store: Store) -> None:
    store.changes(0, patient=True)
    with psycopg.connect(homes.database) as other:
        other.execute("LOCK TABLE decisions IN ACCESS EXCLUSIVE MODE")
        thread = threading.Thread(target=lambda: store.policy_results(0.0))
        thread.start()
        waiting = "SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        with psycopg.connect(homes.database, autocommit=True) as watch:
            while watch.execute(waiting).fetchone() is None:
                assert thread.is_alive()
        answers_meanwhile(store, thread)
        other.rollback()
    thread.join()


@in_sqlite
def test_who_looks_up_one_thing_in_a_file_does_not_wait_for_who_reads_much(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert isinstance(store, SqliteStore)
    begun, go_on = threading.Event(), threading.Event()
    connect = store._connect

    def slowly() -> int:
        begun.set()
        go_on.wait(10)
        return 0

    def connected(read_only: bool) -> sqlite3.Connection:
        made = connect(read_only)
        made.set_progress_handler(slowly, 1)
        return made

    monkeypatch.setattr(store, "_connect", connected)
    thread = threading.Thread(target=lambda: store.policy_results(0.0))
    thread.start()
    assert begun.wait(10)
    answers_meanwhile(store, thread)
    go_on.set()
    thread.join()


@in_postgres
def test_a_name_that_postgresql_cannot_even_be_asked_about_is_refused(store: Store) -> None:
    with pytest.raises(InvalidInput, match="0x00; use another one"):
        store.tenant("a\0")
    assert store.tenant("a") is None
