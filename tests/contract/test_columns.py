"""What every store says in columns is what its feed adds up to, however a table is sliced and whatever is in it."""

from __future__ import annotations

import math
import random

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from roost.agent.agreement import check_against
from roost.agent.replica import Replica
from roost.model.availability import AvailabilitySet
from roost.model.change import PlacedVM
from roost.model.request import VM, Constraints
from roost.rules.policy import Policy
from roost.store import postgres, sqlite
from roost.store.columns import ZoneColumns
from roost.store.contract import Store
from roost.store.ledger import Ledger, replayed
from roost.store.recheck import Recheck
from tests.contract.conftest import Home
from tests.contract.tiny import (
    CATALOGUE,
    MACHINES,
    SMALL,
    Agreeable,
    add,
    condition,
    head,
    history,
    machine,
    names,
    place,
    quarantine,
    recheck_of,
    register,
    release,
    same,
)
from tests.property.effort import examples

POLICY = Policy.named("fast")
BANDS, CLASSES = ("", *CATALOGUE.bands), ("", "", *CATALOGUE.classes)
WISHES = (
    Constraints(),
    Constraints(max_per_machine=2, evict_together=True),
    Constraints(min_fault_domains=2, sets={"front": AvailabilitySet(fault_domains=2)}, cluster="c1"),
)
# What a name may look like; a store has no opinion on that.
ODD = (
    *('a"b', "a\\b", "a,b", "[a]", "a'b", " ", "t\tb", "n\nl", "\x1f\x01", "%s", "{}"),
    *("ä", "漢字", "\U0001f600", "\U0010fffe"),
)
# Times that need all digits of a number, and some that need few.
TIMES = st.one_of(
    st.floats(0.001, 4e9), st.floats(1.7e9, 1.8e9), st.sampled_from([0.0, 0.1, 1.5, 1 / 3, 2.0**31, 1e15 / 7])
)


def filled(store: Store, seed: int) -> None:
    """A zone of 60 machines in which there is some of everything: what is committed of random wishes."""
    draw = random.Random(seed)
    more = [machine(f"m{i}", f"c{3 + i % 3}", ("old", "new")[i % 3 // 2]) for i in range(11, 63)]
    assert names(store.commit([add("more", *more)], Agreeable())) == ["committed"]
    everywhere = [spec.name for spec in (*MACHINES, *more)]
    recheck = recheck_of([*MACHINES, *more])
    for number in range(40):
        spec = VM(
            "small",
            priority=draw.choice(BANDS),
            isolated=draw.random() < 0.2,
            colocation=draw.choice(CLASSES),
            requeue=draw.random() < 0.2,
        )
        on = draw.sample(everywhere, draw.randint(1, 5))
        placed = tuple(PlacedVM(f"v{number}/{i}", spec, m, draw.random() * 2e9) for i, m in enumerate(on))
        store.commit([place(f"p{number}", f"t{number}", placed, constraints=draw.choice(WISHES))], recheck)
    ledger = head(store)
    for number, name in enumerate(draw.sample(sorted(ledger.vms), len(ledger.vms) // 4)):
        vm = ledger.vms[name]
        store.commit([release(f"r{number}", vm.tenant, (vm.placed,))], recheck)
    conditions = [condition(f"c{i}", draw.choice(everywhere), state=draw.randrange(4), health=i) for i in range(15)]
    entries = [register("q", "t1", "5"), register("w", "t2", '"w"', kind="note"), quarantine("shut", "c4")]
    assert set(names(store.commit([*conditions, *entries], recheck))) == {"committed"}


def of_the_feed(store: Store) -> Ledger:
    """What the feed of a store adds up to, from nothing."""
    store.changes(2**40)
    return replayed(CATALOGUE, (entry for _, entry in store.changes(0, 10_000).after(0)))


@pytest.mark.parametrize("at_once", [1, 2, 7, 20_000])
@pytest.mark.parametrize("seed", [1, 2])
def test_columns_say_what_the_feed_adds_up_to(
    store: Store, at_once: int, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows made of them are the feed's, and so is a copy; that is so wherever a slice of a table ends."""
    filled(store, seed)
    monkeypatch.setattr(sqlite, "AT_ONCE", at_once)
    monkeypatch.setattr(postgres, "AT_ONCE", at_once)
    columns, ledger = store.columns(), of_the_feed(store)
    assert {row.state for row in ledger.machines.values()} == {0, 1, 2, 3}
    assert sum(bool(row.owner) for row in ledger.machines.values()) > 2
    assert sum(any(row.classes) for row in ledger.machines.values()) > 2
    assert len({vm.spec.priority for vm in ledger.vms.values()}) == len(BANDS)
    same(ledger, columns.ledger())
    assert columns.registry == ledger.registry
    check_against(Replica(columns, POLICY), ledger)


def test_columns_of_a_zone_without_anything_are_empty(blank: Store) -> None:
    columns = blank.columns()
    assert columns.revision == 0
    assert not any([*columns.machines.lists, *columns.tenants.lists, *columns.vms.lists])
    same(Ledger(CATALOGUE), columns.ledger())


def test_columns_and_rows_are_made_of_one_another(store: Store, recheck: Recheck) -> None:
    """And share nothing that changes."""
    history(store, recheck)
    columns = store.columns()
    ledger = columns.ledger()
    same(ledger, ZoneColumns.of(ledger).ledger())
    for row in ledger.machines.values():
        row.used[0] += 1
    ledger.registry.clear()
    same(store.load(), columns.ledger())


def test_a_store_that_goes_on_leaves_columns_as_they_were(store: Store, recheck: Recheck) -> None:
    columns, ledger = store.columns(), head(store)
    history(store, recheck)
    same(ledger, columns.ledger())


def test_the_last_entries_are_taken_out_of_columns(store: Store, recheck: Recheck) -> None:
    """As out of rows, however many they are."""
    history(store, recheck)
    columns, ledger = store.columns(), head(store)
    entries = [entry for _, entry in store.changes(0).after(0)]
    for i in range(len(entries), -1, -1):
        same(ledger, columns.before(entries[i:]).ledger())
        if i:
            ledger.undo(entries[i - 1])


@pytest.mark.parametrize("kind", ["machines", "tenants and VMs"])
def test_names_are_read_as_they_were_written(store: Store, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "AT_ONCE", 3)
    for i, name in enumerate(ODD):
        if kind == "machines":
            spec = machine(f"m{i + 10}", cluster=f"c {name}", rack=f"r {name}")
            group = [add(f"k{i}", msgspec.structs.replace(spec, name=name))]
        else:
            group = [place(f"k{i}", f"t {name}", {name: MACHINES[i % 4].name}), register(f"q{i}", name, name)]
        assert set(names(store.commit(group, Agreeable()))) == {"committed"}
    ledger = of_the_feed(store)
    assert set(ODD) <= (ledger.machines.keys() if kind == "machines" else ledger.vms.keys())
    same(ledger, store.columns().ledger())


@settings(max_examples=examples(40), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(times=st.lists(TIMES, min_size=1, max_size=8))
def test_times_are_read_as_they_were_written(home: Home, times: list[float]) -> None:
    """To the last digit: who is older may decide who gives way."""
    store = home.store
    if not store.load().machines:
        assert names(store.commit([add("first", *MACHINES)], Agreeable())) == ["committed"]
    number = store.head()[0]
    placed = tuple(PlacedVM(f"v{i}", SMALL, MACHINES[i].name, time) for i, time in enumerate(times))
    group = [place(f"p{number}", "t", placed), release(f"r{number}", "t", placed)]
    assert names(store.commit(group[:1], Agreeable())) == ["committed"]
    vms = store.columns().vms
    assert dict(zip(vms.name, vms.since, strict=True)) == {vm.vm: vm.since for vm in placed}
    assert all(math.copysign(1, since) == 1 for since in vms.since)
    assert names(store.commit(group[1:], Agreeable())) == ["committed"]
