"""Stores that are opened: older ones are brought up to date, and what is no store of ours is refused and left alone."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import msgspec
import psycopg
import pytest

from roost.model.change import PlacedVM
from roost.model.errors import InvalidInput, RoostError, StoreUnavailable
from roost.model.inventory import Catalogue
from roost.model.registry import THRESHOLD
from roost.model.request import VM
from roost.model.zone import Resource
from roost.store import postgres, sqlite
from roost.store.contract import Round, Store
from roost.store.ledger import VMRow
from roost.store.postgres import PostgresStore
from roost.store.recheck import Recheck
from roost.store.sql_text import latest, migrations
from roost.store.sqlite import SqliteStore
from tests.contract.tiny import (
    CATALOGUE,
    MACHINES,
    PAIRS,
    SMALL,
    add,
    condition,
    head,
    is_sound,
    machine,
    names,
    place,
    recheck_of,
    register,
    release,
    same,
)

OLD_CATALOGUE = msgspec.structs.replace(CATALOGUE, bands=("regular", "spot"))  # as the old stores have it
ROWS = (Path(__file__).parent / "version_1.sql").read_text()
MORE_ROWS = (Path(__file__).parent / "version_2.sql").read_text()
# The last transaction has no revision yet.
UNNUMBERED = """
INSERT INTO inbox (agent, round, count, entries) SELECT agent, round, 1, entries FROM feed WHERE last = 5;
DELETE FROM feed WHERE last = 5;
UPDATE zone SET last = 4;
SELECT setval('stamps', 5120);
"""


def script_of(dialect: str, version: int) -> str:
    """What made a version."""
    number, script = migrations(dialect)[version - 1]
    assert number == version
    return script


@pytest.fixture
def old_file(tmp_path: Path) -> Path:
    """A file of version 1, with a zone in it."""
    path = tmp_path / "old.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(script_of("sqlite", 1))
        connection.executescript(ROWS)
        connection.execute("PRAGMA user_version = 1")
    return path


@pytest.fixture
def old_database(new_database: str) -> str:
    """A database of version 1, with a zone in it."""
    with psycopg.connect(new_database, autocommit=True) as connection:
        connection.execute(script_of("postgres", 1))
        connection.execute(ROWS)
        connection.execute(UNNUMBERED)
        connection.execute("CREATE TABLE schema_version (version INTEGER NOT NULL)")
        connection.execute("INSERT INTO schema_version VALUES (1)")
    return new_database


@pytest.fixture(params=["sqlite", "postgres"])
def old(request: pytest.FixtureRequest) -> str | Path:
    """A zone that version 1 of the schema keeps."""
    place: str | Path = request.getfixturevalue("old_file" if request.param == "sqlite" else "old_database")
    return place


@pytest.fixture
def later(old: str | Path) -> str | Path:
    """The same zone later, when version 2 kept it."""
    if isinstance(old, Path):
        with closing(sqlite3.connect(old)) as file:
            file.executescript(script_of("sqlite", 2) + MORE_ROWS)
    else:
        with psycopg.connect(old) as database:
            database.execute(script_of("postgres", 2))
            database.execute(MORE_ROWS)
    set_version(old, 2)
    return old


def open_store(where: str | Path, create: Catalogue | None = None) -> SqliteStore | PostgresStore:
    """The store that is kept there."""
    return SqliteStore(where, create=create) if isinstance(where, Path) else PostgresStore(where, create=create)


def version_of(where: str | Path) -> int:
    """The schema's version."""
    if isinstance(where, Path):
        with closing(sqlite3.connect(where)) as file:
            return int(file.execute("PRAGMA user_version").fetchone()[0])
    with psycopg.connect(where) as database:
        row = database.execute("SELECT max(version) FROM schema_version").fetchone()
        return int(row[0]) if row else 0


def set_version(where: str | Path, version: int) -> None:
    """Claim to be of another version."""
    if isinstance(where, Path):
        with closing(sqlite3.connect(where)) as file:
            file.execute(f"PRAGMA user_version = {version}")
    else:
        with psycopg.connect(where) as database:
            database.execute("INSERT INTO schema_version VALUES (%s)", (version,))


def has_the_old_zone(store: Store) -> None:
    """All that version 1 kept is there."""
    assert store.catalogue == OLD_CATALOGUE
    ledger = head(store)
    assert ledger.revision == 5
    assert ledger.vms == {
        "a": VMRow("t", PlacedVM("a", VM("small", priority="spot"), "m1")),
        "c": VMRow("u", PlacedVM("c", VM("small", isolated=True), "m5")),
    }
    assert {name: row.spec for name, row in ledger.machines.items()} == {
        "m1": machine("m1"),
        "m5": machine("m5", "c2", "new"),
    }
    assert (ledger.machines["m5"].health, ledger.machines["m5"].owner, ledger.machines["m1"].version) == (70, "u", 2)
    assert (ledger.tenants["t"].constraints, ledger.tenants["t"].stamp) == (PAIRS, 5)
    assert [name for name, row in ledger.clusters.items() if row.quarantined] == ["c2"]
    assert [(row.first, row.last, row.agent, row.round) for row in store.changes(0).rows] == [
        (1, 1, "", 0),
        (2, 3, "a", 7),
        (4, 4, "", 0),
        (5, 5, "b", 1),
    ]
    is_sound(store)


# --------------------------------------------------------------------------------------------------------- older stores


def test_an_old_store_is_brought_up_to_date_and_goes_on(old: str | Path) -> None:
    recheck = recheck_of((machine("m1"), machine("m5", "c2", "new")), OLD_CATALOGUE)
    with closing(open_store(old)) as store:
        has_the_old_zone(store)
        assert store.decisions() == []
        assert store.registry("quota") == {}
        group = [
            place("k5", "t", {"d": "m1"}, constraints=PAIRS, stamp=5),
            release("k6", "u", {"c": "m5"}, VM("small", isolated=True)),
            add("k7", machine("m6", "c2", "new")),
            place("k8", "v", {"a": "m5"}),
            register("k9", "t", "5"),
        ]
        seen = Round(agent="a", number=8, revision=5)
        assert names(store.commit(group, recheck, round_=seen)) == [*["committed"] * 3, "name", "committed"]
        assert store.round("a", 8) == seen
        is_sound(store)
        ledger = head(store)
    assert version_of(old) == latest("sqlite" if isinstance(old, Path) else "postgres")
    with closing(open_store(old)) as store:
        same(ledger, store.load())
        assert store.registry("quota") == {"t": "5"}
        assert names(store.commit(group[:1], recheck)) == ["replayed"]


def test_an_old_store_knows_which_machines_are_empty(old: str | Path) -> None:
    """On m1 runs what gives way, on m5 something in isolation."""
    recheck = recheck_of((machine("m1"), machine("m5", "c2", "new")), OLD_CATALOGUE)
    isolated = VM("small", isolated=True)
    group = [register(f"keep {name}", name, '{"new":1}', kind=THRESHOLD) for name in ("c1", "c2")]
    with closing(open_store(old)) as store:
        store.commit([*group, place("k5", "new", {"d": "m1"}), place("k6", "other", {"e": "m5"})], recheck)
        assert names(store.commit([place("k7", "new", {"d": "m1"})], recheck)) == ["threshold"], "it is the last one"
        store.commit([register("keep none", "c1", None, kind=THRESHOLD)], recheck)
        assert names(store.commit([place("k8", "new", {"d": "m1"})], recheck)) == ["committed"]
        again = [release("k9", "u", {"c": "m5"}, isolated), place("k10", "u", {"c": "m5"}, isolated)]
        assert names(store.commit(again, recheck)) == ["committed", "threshold"], "it was empty in between"


def test_what_was_decided_by_an_older_version_is_still_known(later: str | Path) -> None:
    recheck = recheck_of((machine("m1"), machine("m5", "c2", "new")), OLD_CATALOGUE)
    spot = VM("small", priority="spot")
    with closing(open_store(later)) as store:
        has_the_old_zone(store)
        assert [(decided.key, decided.record.by) for decided in store.decisions()] == [("k9", ""), ("k1", "")]
        assert store.round("a", 7) == Round(agent="a", number=7, revision=1, seed=3)
        (result,) = store.policy_results(0.0)
        assert (result.policy, result.requests, result.vms, result.p99_decided_us) == ("default 1f", 2, 2, 50)
        assert [name for name, _ in store.vms(tenant="t")] == [name for name, _ in store.vms(machine="m1")] == ["a"]
        assert store.registry("quota") == {}
        group = [
            place("k1", "t", {"a": "m1", "b": "m1"}, spot, constraints=PAIRS),
            place("k9", "v", {"e": "m1"}),
            register("k10", "t", "5"),
        ]
        assert names(store.commit(group, recheck)) == ["replayed", "committed", "committed"]
        is_sound(store)
    assert version_of(later) == latest("sqlite" if isinstance(later, Path) else "postgres")


def test_names_are_compared_byte_by_byte_whatever_the_language_of_the_database(old_database: str) -> None:
    PostgresStore(old_database).close()
    by_language = """
        SELECT table_name, column_name FROM information_schema.columns
        WHERE table_schema = 'public' AND data_type = 'text' AND collation_name IS DISTINCT FROM 'C'
        AND column_name IN ('name', 'kind', 'key', 'tenant', 'machine')
    """
    with psycopg.connect(old_database) as connection:
        assert connection.execute(by_language).fetchall() == []


def test_a_step_that_fails_leaves_the_store_as_it_was(old: str | Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All steps are one transaction: the good ones before it are taken back, too."""

    def with_a_bad_step(dialect: str) -> list[tuple[int, str]]:
        return [*migrations(dialect), (99, "CREATE TABLE later (x INTEGER);\nCREATE TABLE later (x INTEGER);\n")]

    with monkeypatch.context() as patch:
        for module in (sqlite, postgres):
            patch.setattr(module, "migrations", with_a_bad_step)
        with pytest.raises((RoostError, psycopg.Error), match="later"):
            open_store(old)
    assert version_of(old) == 1
    with closing(open_store(old)) as store:
        has_the_old_zone(store)


def test_a_store_for_reading_does_not_change_the_schema(old_file: Path) -> None:
    with pytest.raises(InvalidInput, match="schema version 1") as caught:
        SqliteStore(old_file, read_only=True)
    assert caught.value.remedy
    assert version_of(old_file) == 1


def test_processes_that_migrate_at_once_all_succeed(old_database: str) -> None:
    """They stand in line; who comes later finds it done."""
    opened: list[PostgresStore] = []
    threads = [threading.Thread(target=lambda: opened.append(PostgresStore(old_database))) for _ in range(3)]
    waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
    with psycopg.connect(old_database, autocommit=True) as connection:
        connection.execute("SELECT pg_advisory_lock(%s)", (postgres.MIGRATING,))
        for thread in threads:
            thread.start()
        while connection.execute(waiting).fetchone() != (3,):
            assert all(thread.is_alive() for thread in threads)
            time.sleep(0.001)
    for thread in threads:
        thread.join()
    assert len(opened) == 3
    for store in opened:
        has_the_old_zone(store)
        store.close()


# ------------------------------------------------------------------------------------------------------ what is refused


def test_a_newer_store_is_refused(old: str | Path) -> None:
    newer = latest("sqlite" if isinstance(old, Path) else "postgres") + 1
    set_version(old, newer)
    with pytest.raises(InvalidInput, match=f"schema version {newer}") as caught:
        open_store(old)
    assert caught.value.remedy
    assert version_of(old) == newer


def test_a_store_is_not_made_over_another(old: str | Path) -> None:
    with pytest.raises(InvalidInput, match="holds a zone already; use it as it is"):
        open_store(old, create=CATALOGUE)
    with closing(open_store(old)) as store:
        has_the_old_zone(store)


def test_a_zone_that_the_tables_cannot_keep_is_refused(tmp_path: Path, new_database: str) -> None:
    """And the place is still free for another one."""
    many = tuple(Resource(f"r{i}", "", 1) for i in range(9))
    huge = Catalogue(name="huge", resources=many, bands=("one",), generations=(), vm_types=())
    for where in (tmp_path / "zone.db", new_database):
        with pytest.raises(InvalidInput, match="there are 9; a store keeps at most 8"):
            open_store(where, create=huge)
        open_store(where, create=CATALOGUE).close()


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    for read_only in (False, True):
        with pytest.raises(InvalidInput, match=r"there is no file .*; make one with `roost store create`"):
            SqliteStore(tmp_path / "zone.db", read_only=read_only)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("read_only", [False, True], ids=["to write", "to read"])
def test_an_empty_file_is_refused(tmp_path: Path, read_only: bool) -> None:
    path = tmp_path / "zone.db"
    path.touch()
    with pytest.raises(InvalidInput, match="holds no zone; make one with `roost store create`"):
        SqliteStore(path, read_only=read_only)
    assert path.read_bytes() == b""


@pytest.mark.parametrize("read_only", [False, True], ids=["to write", "to read"])
def test_a_file_that_is_no_database_is_refused(tmp_path: Path, read_only: bool) -> None:
    path = tmp_path / "letter.txt"
    path.write_text("Dear Sir or Madam,\n" * 100)
    with pytest.raises(InvalidInput, match=r"letter\.txt") as caught:
        SqliteStore(path, read_only=read_only)
    assert caught.value.remedy
    assert path.read_text() == "Dear Sir or Madam,\n" * 100


@pytest.mark.parametrize("version", [0, 1, latest("sqlite")])
def test_a_file_of_another_program_is_refused_and_left_as_it_was(tmp_path: Path, version: int) -> None:
    path = tmp_path / "bookmarks.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE bookmarks (url TEXT)")
        connection.execute(f"PRAGMA user_version = {version}")
    before = path.read_bytes()
    with pytest.raises(InvalidInput) as caught:
        SqliteStore(path)
    assert caught.value.remedy
    assert path.read_bytes() == before


def tables(url: str) -> set[str]:
    """What there is in a database."""
    with psycopg.connect(url) as connection:
        rows = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'").fetchall()
        return {str(name) for (name,) in rows}


@pytest.mark.parametrize(
    "made",
    [
        "",
        "CREATE TABLE bookmarks (url TEXT)",
        "CREATE TABLE schema_version (script TEXT)",
        "CREATE TABLE schema_version (version INTEGER NOT NULL); INSERT INTO schema_version VALUES (1)",
    ],
    ids=["nothing", "tables", "another schema_version", "the same schema_version"],
)
def test_a_database_of_another_program_is_refused_and_left_as_it_was(new_database: str, made: str) -> None:
    with psycopg.connect(new_database, autocommit=True) as connection:
        connection.execute(made or "SELECT 1")
    before = tables(new_database)
    with pytest.raises(InvalidInput) as caught:
        PostgresStore(new_database)
    assert caught.value.remedy
    assert tables(new_database) == before


def test_an_empty_database_says_what_to_do(new_database: str) -> None:
    with pytest.raises(InvalidInput, match="holds no zone; make one with `roost store create`"):
        PostgresStore(new_database)


def test_a_database_that_cannot_be_reached_is_unavailable(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match="PostgreSQL cannot be used: "):
        PostgresStore(f"postgresql://postgres@/zone?host={tmp_path}")


# ------------------------------------------------------------------------------------------------- one writer, readers


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[SqliteStore]:
    """A store that is open for writing."""
    with closing(SqliteStore(tmp_path / "zone.db", create=CATALOGUE)) as store:
        store.commit([add("first", *MACHINES)], recheck_of(MACHINES))
        yield store


KEEP_OPEN = (
    "import sys; from roost.store.sqlite import SqliteStore; s = SqliteStore(sys.argv[1]); print('open'); input()"
)


def test_a_second_process_may_read_a_file_but_not_write_it(writer: SqliteStore) -> None:
    """Until the first one ends, however it does."""
    writer.close()
    other = subprocess.Popen(
        [sys.executable, "-u", "-c", KEEP_OPEN, str(writer.path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"open\n"
        with pytest.raises(InvalidInput, match=r"another process has .*zone\.db open; stop it, or use PostgreSQL"):
            SqliteStore(writer.path)
        with closing(SqliteStore(writer.path, read_only=True)) as reader:
            assert reader.load().revision == 1
        other.kill()
    with closing(SqliteStore(writer.path)) as store:
        assert names(store.commit([place("k", "t", {"a": "m1"})], recheck_of(MACHINES))) == ["committed"]


def test_a_file_is_opened_once_in_a_process_too(writer: SqliteStore) -> None:
    with pytest.raises(InvalidInput, match="another process has"):
        SqliteStore(writer.path)


def test_a_reader_follows_a_writer(writer: SqliteStore) -> None:
    recheck: Recheck = recheck_of(MACHINES)
    with closing(SqliteStore(writer.path, read_only=True)) as reader:
        ledger = reader.load()
        writer.commit([place("k1", "t", {"a": "m1"}), condition("k2", "m1", health=50)], recheck)
        assert [entry.key for _, entry in reader.changes(ledger.revision).after(ledger.revision)] == ["k1", "k2"]
        same(writer.load(), reader.load())
        assert reader.decided("k1") == writer.decided("k1")
        assert writer.trim(0) == 3
        assert reader.changes(1).reload
        with pytest.raises(StoreUnavailable, match="readonly"):
            reader.commit([place("k3", "t", {"b": "m1"}, SMALL)], recheck)
        assert names(writer.commit([place("k3", "t", {"b": "m1"}, SMALL)], recheck)) == ["committed"]
        assert reader.load().vms.keys() == {"a", "b"}
