"""Stores to try the contract on: in memory, in a file, and in a real PostgreSQL that is thrown away afterwards."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from roost.bench.postgres import ThrowawayPostgres
from roost.store.contract import Store
from roost.store.memory import MemoryStore
from roost.store.postgres import PostgresStore
from roost.store.recheck import Recheck
from roost.store.sqlite import SqliteStore
from tests.contract.tiny import CATALOGUE, MACHINES, add, is_sound, names, recheck_of

that_last = pytest.mark.parametrize("homes", ["sqlite", "postgres"], indirect=True)
in_postgres = pytest.mark.parametrize("homes", ["postgres"], indirect=True)
in_sqlite = pytest.mark.parametrize("homes", ["sqlite"], indirect=True)
KINDS = ("memory", "sqlite", "postgres")
TABLES = ("machines", "clusters", "tenants", "vms", "registry", "feed", "inbox", "decisions", "rounds", "notes")
CLEAN = "; ".join([f"DELETE FROM {table}" for table in TABLES] + ["UPDATE zone SET last = 0, trimmed = 0"])


@pytest.fixture(scope="session")
def postgres() -> Iterator[ThrowawayPostgres]:
    """A server, one for each worker. It need not survive a power cut, which makes databases cheap."""
    with ThrowawayPostgres() as server:
        with psycopg.connect(server.url, autocommit=True) as connection:
            connection.execute("ALTER SYSTEM SET fsync = off")
            connection.execute("SELECT pg_reload_conf()")
        yield server


@pytest.fixture(scope="session")
def shared_database(postgres: ThrowawayPostgres) -> str:
    """A database with the tiny zone. Making one takes longer than most tests: they share it and clean it first."""
    url = postgres.create_database("shared")
    PostgresStore(url, create=CATALOGUE).close()
    return url


@pytest.fixture
def new_database(postgres: ThrowawayPostgres) -> Iterator[str]:
    """A database with nothing in it."""
    yield postgres.create_database("alone")
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        connection.execute("DROP DATABASE alone WITH (FORCE)")


class Home:
    """Where a store lives: it can be opened there again."""

    def __init__(self, kind: str, first: Callable[[], Store], again: Callable[[], Store] | None) -> None:
        self.kind, self.store, self._again = kind, first(), again
        self._opened = [self.store]

    def reopen(self) -> Store:
        """Close every store here and open a new one, as after a restart."""
        self.close()
        self.store = self._open()
        return self.store

    def another(self) -> Store:
        """A store on the same zone, for another agent. Only PostgreSQL has several at once."""
        return self._open() if self.kind == "postgres" else self.store

    def let_pass(self, seconds: float) -> None:
        """Make all that was decided older, as far as the store's own clock tells."""
        if isinstance(self.store, MemoryStore):
            self.store._written = {key: at - seconds for key, at in self.store._written.items()}
        elif isinstance(self.store, SqliteStore):
            with closing(sqlite3.connect(self.store.path)) as file, file:
                file.execute("UPDATE decisions SET written = written - ?", (seconds,))
        else:
            assert isinstance(self.store, PostgresStore)
            with psycopg.connect(self.store.url, autocommit=True) as database:
                database.execute("UPDATE decisions SET written = written - %s", (seconds,))

    def _open(self) -> Store:
        assert self._again is not None, "nothing of a store in memory survives it"
        self._opened.append(self._again())
        return self._opened[-1]

    def close(self) -> None:
        """Close every store here."""
        for store in self._opened:
            store.close()
        self._opened.clear()


class Homes:
    """Makes empty stores of one kind."""

    def __init__(self, kind: str, folder: Path, database: Callable[[], str]) -> None:
        self.kind, self.folder = kind, folder
        self.database = database() if kind == "postgres" else ""
        self._made = 0

    def make(self) -> Home:
        """A home with a zone that has no machines yet."""
        self._made += 1
        if self.kind == "memory":
            return Home(self.kind, lambda: MemoryStore(CATALOGUE), None)
        if self.kind == "sqlite":
            path = self.folder / f"zone-{self._made}.db"
            return Home(self.kind, lambda: SqliteStore(path, create=CATALOGUE), lambda: SqliteStore(path))
        with psycopg.connect(self.database, autocommit=True) as connection:
            connection.execute(CLEAN)
        return Home(self.kind, lambda: PostgresStore(self.database), lambda: PostgresStore(self.database))


@pytest.fixture(params=KINDS)
def homes(request: pytest.FixtureRequest, tmp_path: Path) -> Homes:
    """Empty stores of each kind."""
    return Homes(request.param, tmp_path, lambda: request.getfixturevalue("shared_database"))


@pytest.fixture
def home(homes: Homes) -> Iterator[Home]:
    """An empty store and its home. Whatever a test does to it: in the end, its tables and its feed agree."""
    home = homes.make()
    try:
        yield home
        is_sound(home.store)
    finally:
        home.close()


@pytest.fixture(scope="session")
def recheck() -> Recheck:
    """The re-checked validators, for all machines of the tiny zone."""
    return recheck_of(MACHINES)


@pytest.fixture
def blank(home: Home) -> Store:
    """A store without machines."""
    return home.store


@pytest.fixture
def store(home: Home, recheck: Recheck) -> Store:
    """A store with the tiny zone, at revision 1."""
    assert names(home.store.commit([add("first", *MACHINES)], recheck)) == ["committed"]
    return home.store


@pytest.fixture
def reopen(home: Home) -> Callable[[], Store]:
    """Closes the store and opens it anew; for stores that last."""
    return home.reopen
