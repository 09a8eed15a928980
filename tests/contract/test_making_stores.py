"""A store is made whole, or not at all."""

from __future__ import annotations

import shutil
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from roost import wiring
from roost.model.errors import InvalidInput, NoZone, RoostError, StoreBroken
from roost.model.inventory import catalogue_of
from roost.model.zone import Zone
from roost.store.contract import Commission, Store
from roost.store.plainly import NoMachines
from roost.wiring import ensure_store, find_zone, open_store

MACHINES = 120
ZONE = f"synthetic:{MACHINES}"
LAB = """
name: lab
generations:
  v1: {cores: 16, memory: 64}
vm_types:
  D2: {family: general, demand: {cores: 2, memory: 4}, on: [v1]}
clusters:
  - {name: c1, datacenter: dc1, generation: v1, racks: 2, machines_per_rack: 2}
"""


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where there is no store yet."""
    found: str = request.getfixturevalue("new_database") if request.param == "postgres" else str(tmp_path / "zone.db")
    return found


@pytest.fixture(autouse=True)
def few_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that even a small zone has several additions."""
    monkeypatch.setattr(wiring, "CHUNK", 50)


def is_whole(url: str) -> None:
    """The store has every machine, and its feed tells of each."""
    with closing(open_store(url)) as store:
        assert len(store.load().machines) == MACHINES
        added = [spec for _, entry in store.changes(0, patient=True).after(0) for spec in entry.added]
        assert len(added) == MACHINES


def test_a_store_is_made_with_all_its_machines(url: str) -> None:
    with pytest.raises(NoZone):
        open_store(url)
    ensure_store(url, ZONE)
    is_whole(url)
    ensure_store(url, ZONE)
    is_whole(url)


def test_a_store_that_cannot_be_made_whole_is_not_made_at_all(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever keeps it from being made after the first machines: it can be made later, in the same place."""
    additions = wiring._additions

    def stumbling(zone: Zone) -> Iterator[Commission]:
        yield next(additions(zone))
        raise OSError("no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(wiring, "_additions", stumbling)
        with pytest.raises((OSError, RoostError), match="no space"):
            ensure_store(url, ZONE)
    with pytest.raises(NoZone):
        open_store(url)
    ensure_store(url, ZONE)
    is_whole(url)


def test_of_several_that_make_a_store_at_once_one_does_and_all_have_it(new_database: str) -> None:
    failed: list[BaseException] = []

    def make() -> None:
        try:
            ensure_store(new_database, ZONE)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=make) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    is_whole(new_database)


def half_made(url: str, chunks: int) -> Store:
    """As an earlier version left it that was killed."""
    zone = wiring.find_zone(ZONE)
    if url.startswith("postgresql"):
        from roost.store.postgres import PostgresStore

        store: Store = PostgresStore(url, create=catalogue_of(zone))
    else:
        from roost.store.sqlite import SqliteStore

        store = SqliteStore(url, create=catalogue_of(zone))
    for proposal, _ in zip(wiring._additions(zone), range(chunks), strict=False):
        store.commit([proposal], NoMachines())
    return store


@pytest.mark.parametrize(("chunks", "machines"), [(0, 0), (2, 100)])
def test_what_an_earlier_version_left_half_made_is_refused(url: str, chunks: int, machines: int) -> None:
    half_made(url, chunks).close()
    with pytest.raises(
        InvalidInput, match=f"it holds {machines} of the 120 machines of zone .*: begin with an empty file"
    ):
        ensure_store(url, ZONE)


def test_a_store_that_was_used_since_may_have_fewer_machines_than_the_file_says(url: str) -> None:
    with closing(half_made(url, 2)) as store:
        wiring.register(store, "kind", "name", "value", "me")
    ensure_store(url, ZONE)


def test_a_store_of_another_zone_is_refused_with_the_names_of_both(url: str) -> None:
    half_made(url, 2).close()
    with pytest.raises(InvalidInput) as caught:
        ensure_store(url, "synthetic:1000")
    told = str(caught.value)
    assert told.startswith("store.zone: synthetic:1000 is zone synthetic-1000-1, but ")
    assert "holds zone synthetic-120-1; leave the zone out" in told


def test_whoever_names_no_zone_has_the_one_that_is_there(url: str) -> None:
    ensure_store(url, ZONE)
    assert ensure_store(url) == ensure_store(url, ZONE) == ""
    is_whole(url)


def test_a_file_that_describes_the_zone_otherwise_by_now_or_is_gone_is_told_of(url: str, tmp_path: Path) -> None:
    file = tmp_path / "lab.yaml"
    file.write_text(LAB)
    assert ensure_store(url, str(file)) == ensure_store(url, str(file)) == ""
    file.write_text(LAB.replace("cores: 2", "cores: 4"))
    assert "holds zone lab, which " in ensure_store(url, str(file))
    assert "lab.yaml describes otherwise by now; what the store holds is served" in ensure_store(url, str(file))
    file.unlink()
    assert "lab.yaml was not compared with it" in ensure_store(url, str(file))
    file.write_text(LAB.replace("name: lab", "name: other"))
    with pytest.raises(InvalidInput, match=r"lab.yaml is zone other, but .* holds zone lab"):
        ensure_store(url, str(file))


def test_what_was_half_written_by_whoever_was_killed_first_of_all_is_undone(tmp_path: Path) -> None:
    """SQLite writes a new file's first page before anything of Roost's: the journal beside it is all that is whole."""
    made, path = tmp_path / "made.db", tmp_path / "zone.db"
    with closing(sqlite3.connect(made, isolation_level=None)) as file:
        file.execute("PRAGMA cache_size = 1")  # so that pages are written before the end
        file.execute("BEGIN IMMEDIATE")
        file.execute("CREATE TABLE halfway (text TEXT)")
        file.executemany("INSERT INTO halfway VALUES (?)", [("x" * 4_000,)] * 100)
        for suffix in ("", "-journal"):  # as they are at this moment
            shutil.copy(f"{made}{suffix}", f"{path}{suffix}")
        file.execute("ROLLBACK")
    with pytest.raises(StoreBroken, match="readonly"):
        open_store(str(path), read_only=True)
    with pytest.raises(NoZone):
        open_store(str(path))
    with closing(open_store(str(path), create=find_zone(ZONE))) as store:
        assert len(store.load().machines) == MACHINES
