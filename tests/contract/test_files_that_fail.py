"""Files that are damaged, full, forbidden or somebody else's: what is wrong is told apart from what will pass."""

from __future__ import annotations

import os
import pwd
import sqlite3
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from roost.model.errors import InvalidInput, StoreBroken, StoreUnavailable
from roost.model.zone import Zone
from roost.store.sqlite import SqliteStore
from roost.wiring import open_store
from tests.contract.tiny import BIG, CATALOGUE, MACHINES, add, names, place, recheck_of

RECHECK = recheck_of(MACHINES)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A store with the tiny zone."""
    path = tmp_path / "zone.db"
    with closing(SqliteStore(path, create=CATALOGUE)) as store:
        store.commit([add("first", *MACHINES)], RECHECK)
    return path


# ------------------------------------------------------------------------------------------------------- whose it is


@pytest.mark.parametrize("link", [os.symlink, os.link], ids=["symbolic", "hard"])
@pytest.mark.parametrize("first", ["zone.db", "link.db"])
def test_a_link_to_a_file_leads_to_the_same_lock(file: Path, link: Callable[[Path, Path], None], first: str) -> None:
    link(file, file.with_name("link.db"))
    second = {"zone.db": "link.db", "link.db": "zone.db"}[first]
    with closing(SqliteStore(file.with_name(first))) as store:
        store.commit([place("k0", "s", {"b": "m1"})], RECHECK)
        with pytest.raises(InvalidInput, match=f"another process has .*{second} open; stop it"):
            SqliteStore(file.with_name(second))
        assert names(store.commit([place("k", "t", {"a": "m1"})], RECHECK)) == ["committed"]
    with closing(SqliteStore(file.with_name(second))) as store:
        assert store.vm("a")


def test_what_is_written_is_for_its_owner_only(file: Path) -> None:
    before = os.umask(0)
    try:
        path = file.with_name("other.db")
        with closing(SqliteStore(path, create=CATALOGUE)) as store:
            store.commit([add("first", *MACHINES)], RECHECK)
            modes = {each.name: stat.S_IMODE(each.stat().st_mode) for each in path.parent.glob("other*")}
    finally:
        os.umask(before)
    assert modes == dict.fromkeys(("other.db", "other.db-wal", "other.db-shm"), 0o600)


@contextmanager
def without_rights() -> Iterator[Path]:
    """A folder that whoever runs this block may look at, and not change."""
    with tempfile.TemporaryDirectory() as name:
        folder, user = Path(name), os.geteuid()
        (folder / "zone").mkdir()
        folder.chmod(0o755)
        try:
            yield folder / "zone"
        finally:
            os.seteuid(user)
            (folder / "zone").chmod(0o755)


def test_a_file_that_may_not_be_written_says_what_to_do() -> None:
    with without_rights() as folder:
        path = folder / "zone.db"
        SqliteStore(path, create=CATALOGUE).close()
        path.chmod(0o444)
        folder.chmod(0o555)
        if os.geteuid() == 0:
            os.seteuid(pwd.getpwnam("nobody").pw_uid)
        for read_only in (False, True):
            with pytest.raises((InvalidInput, StoreBroken), match="let this user write the file and its folder"):
                SqliteStore(path, read_only=read_only)


# ----------------------------------------------------------------------------------------------------------- damaged


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    """A store whose middle was overwritten."""
    path = tmp_path / "zone.db"
    open_store(str(path), create=Zone.synthetic(2_000)).close()
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(size // 2)
        file.write(os.urandom(size // 4))
    return path


def test_a_damaged_file_is_told_apart_from_one_that_is_away(damaged: Path) -> None:
    with pytest.raises(StoreBroken) as caught, closing(SqliteStore(damaged)) as store:
        store.load()
    assert str(damaged) in caught.value.problem
    assert "restore a backup and check it with `roost audit`" in caught.value.remedy


def test_a_file_that_turns_out_to_be_damaged_is_not_written_any_more(file: Path) -> None:
    """What can be read of it still is."""
    with closing(SqliteStore(file)) as store:
        with closing(sqlite3.connect(file)) as other, other:
            other.execute("UPDATE machines SET spec = 'zzz' WHERE name = 'm3'")
        with pytest.raises(StoreBroken, match="a row cannot be read; stop Roost"):
            store.load()
        with pytest.raises(StoreBroken, match="a row cannot be read; stop Roost"):
            store.commit([place("k", "t", {"a": "m1"})], RECHECK)
        with pytest.raises(StoreBroken, match="a row cannot be read; stop Roost"):
            store.try_writing()
        assert store.machine("m1")
        assert store.tenants() == []


# -------------------------------------------------------------------------------------------------------------- full


def test_a_full_disk_keeps_nobody_from_reading_and_passes(file: Path) -> None:
    with closing(SqliteStore(file)) as store:
        assert names(store.commit([place("k1", "t", {"a": "m1"})], RECHECK)) == ["committed"]
        store._writer.execute("PRAGMA max_page_count = 1")  # no more than there are
        big = [place(f"k{i}", f"tenant {i} {'x' * 5_000}", {f"v{i}": "m2"}) for i in range(2, 4)]
        with pytest.raises(StoreUnavailable, match=r"zone\.db: database or disk is full") as caught:
            store.commit(big, RECHECK)
        assert not isinstance(caught.value, StoreBroken)
        assert store.vm("a")
        assert store.load().vms.keys() == {"a"}
        assert len(store.decisions()) == 2
        store._writer.execute("PRAGMA max_page_count = 1000000")
        store.try_writing()
        assert names(store.commit(big, RECHECK)) == ["committed", "committed"]


class FailsOnce:
    """A connection whose next commit fails: nothing is written."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection, self._fails = connection, True

    def execute(self, statement: str, *values: Any) -> sqlite3.Cursor:
        if statement == "COMMIT" and self._fails:
            self._fails = False
            raise sqlite3.OperationalError("disk I/O error")
        return self._connection.execute(statement, *values)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


def test_what_was_not_written_is_not_remembered(file: Path) -> None:
    """Two agents use the file. The first's commit fails; then a version means what the second one wrote."""
    first, second = recheck_of(MACHINES), recheck_of(MACHINES)
    with closing(SqliteStore(file)) as store:
        store._writer = FailsOnce(store._writer)  # type: ignore[assignment]
        with pytest.raises(StoreUnavailable, match="disk I/O error"):
            store.commit([place("k1", "t", {"a": "m1"}, BIG)], first)
        assert names(store.commit([place("k2", "t", {"b": "m1"})], second)) == ["committed"]
        assert names(store.commit([place("k3", "u", {"c": "m1"}, BIG)], first)) == ["committed"]
        assert store.load().machines["m1"].vms == 2


@pytest.mark.parametrize("revision", [1, 2])
def test_trying_to_write_changes_nothing(file: Path, revision: int) -> None:
    with closing(SqliteStore(file)) as store:
        for i in range(1, revision):
            store.commit([place(f"k{i}", f"t{i}", {f"v{i}": "m1"})], RECHECK)
        before = store.load()
        store.try_writing()
        assert store.load().revision == before.revision == revision
        assert store.changes(revision).rows == ()
        assert store.round("", -1) is None
