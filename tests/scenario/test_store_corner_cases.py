"""Cases that are rare, each told as the claim that must hold in it, for every kind of store."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from roost.store.contract import Commission, Committed, Decommission, Mending, Rejected, Store
from roost.store.ledger import Ledger, MachineRow
from roost.store.memory import MemoryStore
from roost.store.sqlite import SqliteStore
from tests.scenario.overlapping import (
    CATALOGUE,
    MACHINES,
    RECORD,
    SPECS,
    Database,
    Follower,
    differences,
    kinds,
    place,
    recheck,
    release,
)

M0, M1, *_ = MACHINES


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """A zone of a few machines, empty so far."""
    if request.param == "postgres":
        database: Database = request.getfixturevalue("database")
        yield database.store
        return
    made = MemoryStore(CATALOGUE) if request.param == "memory" else SqliteStore(tmp_path / "zone", create=CATALOGUE)
    with closing(made) as store:
        added = Commission(key="machines", request=b"{}", record=RECORD, machines=SPECS)
        assert kinds(store.commit([added], recheck())) == [Committed]
        yield store


def test_a_name_that_a_group_gives_back_can_be_given_again_in_it(store: Store) -> None:
    first, again = place("first", M0, tenant="t", name="vm"), place("again", M1, tenant="t", name="vm")
    assert kinds(store.commit([first], recheck())) == [Committed]
    assert kinds(store.commit([release("gone", first), again], recheck())) == [Committed, Committed]
    follower = Follower(store).catch_up()
    assert follower.ledger.vms["vm"].machine == M1
    assert differences(follower.ledger, store.load()) == []


def test_a_machine_that_a_group_removes_is_added_again_in_it_or_that_is_rejected(store: Store) -> None:
    remove = Decommission(key="remove", request=b"{}", record=RECORD, machines=(M0,))
    again = Commission(key="again", request=b"{}", record=RECORD, machines=SPECS[:1])
    removed, added = kinds(store.commit([remove, again], recheck()))
    assert removed is Committed
    assert added in (Committed, Rejected)
    follower = Follower(store).catch_up()
    assert (M0 in follower.ledger.machines) == (added is Committed)
    assert differences(follower.ledger, store.load()) == []


def test_a_tenant_never_has_the_same_stamp_again(store: Store) -> None:
    """Whatever else is in a group and comes to nothing: whoever decided by a stamp relies on it."""
    stamps = []
    for failing in range(4, 0, -1):
        group = [place(f"{failing}-{i}", "nowhere") for i in range(failing)]
        *_, outcome = store.commit([*group, place(f"{failing}", M0, tenant="t")], recheck())
        assert isinstance(outcome, Committed)
        assert outcome.stamp == store.load().tenants["t"].stamp
        stamps.append(outcome.stamp)
    assert len(set(stamps)) == 4, stamps
    entries = [entry for _, entry in Follower(store).catch_up().seen]
    assert [entry.after for entry in entries if entry.tenant == "t"] == stamps


def test_a_repair_counts_what_was_committed_and_not_yet_followed(store: Store) -> None:
    """Whoever repairs sees all that is in the tables; nobody has asked for changes since the last commit."""
    Follower(store).catch_up()
    assert kinds(store.commit([place("new", M0)], recheck())) == [Committed]

    def mend(ledger: Ledger) -> Mending:
        rows: dict[str, MachineRow] = {name: ledger.accounts.new_row(row.spec) for name, row in ledger.machines.items()}
        for vm in ledger.vms.values():
            ledger.accounts.put(rows[vm.machine], vm.spec, vm.tenant, 1)
        for name, row in rows.items():
            row.version = ledger.machines[name].version
        return Mending(machines=list(rows.values()))

    store.repair(mend)
    assert store.changes(1).reload
    follower = Follower(store, store.load()).catch_up()
    assert list(follower.ledger.vms) == ["new/0"]
    assert differences(follower.ledger, store.load()) == []
    assert kinds(store.commit([place("next", M0)], recheck())) == [Committed]
    assert follower.catch_up().keys[-1] == "next"
    assert differences(follower.ledger, store.load()) == []
