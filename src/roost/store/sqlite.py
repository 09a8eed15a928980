"""The store of one process in one SQLite file: the embedded default."""

from __future__ import annotations

import math
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from roost.model.errors import InvalidInput, InvariantBroken, NoZone, StoreUnavailable, Taken
from roost.model.inventory import Catalogue
from roost.store.checkpointer import TOO_LONG, Checkpointer
from roost.store.codec import Codec, encode, feed_row, text_of
from roost.store.columns import ZoneColumns
from roost.store.contract import Commission, Mending, Outcome, Proposal, Round
from roost.store.feed import Feed
from roost.store.file_lock import FileLock
from roost.store.ledger import Ledger
from roost.store.notes import Notes
from roost.store.plainly import NoMachines, insist
from roost.store.recheck import Recheck, StandingRecheck
from roost.store.remembered_rechecks import RememberedRechecks
from roost.store.scopes.check import Scope
from roost.store.scopes.table import CHECKS, limit_kinds
from roost.store.settle.group import first_stamp, needs_of, settle
from roost.store.settle.rows import Facts, Settlement
from roost.store.sql_text import latest, migrations, queries
from roost.store.sqlite_failure import failure, is_damage
from roost.store.sqlite_writing import SqliteWriting
from roost.store.tables import BEYOND, SLICE, Read, Tables, slices

DIALECT = "sqlite"
SQL = queries(DIALECT)
BUSY_SECONDS = 10.0  # to wait for another connection, such as a reader's
ROOM = 262_144  # bytes that a file is to have room for before it is said to be writable again
AT_ONCE = 20_000  # rows that are loaded by one statement: what they say fits into a processor's caches
FAILURES = (sqlite3.Error, msgspec.DecodeError)  # of the file, and of what is written in it


class SqliteStore(Tables):
    """A zone in a file. One process at a time may write it; others may look (`read_only`)."""

    def __init__(
        self,
        path: str | Path,
        *,
        create: Catalogue | None = None,
        stock: Iterable[Commission] = (),
        read_only: bool = False,
    ) -> None:
        """Open a file, bringing its schema up to date.

        `create` begins a new one, with all of `stock`, in one transaction: a process that is killed meanwhile leaves a
        file that holds no zone, and that can be begun again.
        """
        self.path = Path(path)
        if create:
            Codec(create)  # refuses what the tables cannot keep
        elif not self.path.exists():
            raise NoZone(f"there is no file {path}")
        self._lock = None if read_only else FileLock(self.path, new=create is not None)
        self._damage: StoreUnavailable | None = None  # what was found wrong with the file, if anything
        self._writing, self._reading = threading.Lock(), threading.Lock()
        self._looking, self._listing = threading.Lock(), threading.Lock()
        self._changed = threading.Condition()
        self.exchange = Notes().exchange
        self._rechecks = RememberedRechecks()  # nobody else writes the file
        self._last = 0  # revision, as far as this process knows
        self._checkpointer = Checkpointer(lambda: self._connect(read_only=False))
        try:
            _check_file(self.path, create, read_only=read_only)
            self._writer, self._reader, self._lookup, self._lister = (self._connect(read_only) for _ in range(4))
            if not read_only:
                with self._transaction():
                    _migrate(self.path, self._writer, create)
                    (last,) = self._writer.execute(SQL["last_written"]).fetchone()
                    self._opened, self._opened_at = last or time.time(), time.monotonic()
                    self._stock(stock)
            elif (version := _version(self._reader)) != latest(DIALECT):
                raise _of_another_version(self.path, version)
            (catalogue,) = self._reader.execute(SQL["catalogue"]).fetchone()
            (self._last, _) = self._reader.execute(SQL["head"]).fetchone()
            self._know(catalogue)
        except FAILURES as error:
            self.close()
            raise failure(self.path, error) from error
        except BaseException:
            self.close()
            raise

    def _clock(self) -> float:
        """The store's own time, in seconds: it goes on while the file is open, and nobody can set it.

        It goes on from the last decision that was committed. So a host's clock that jumps makes nothing old.
        """
        return self._opened + time.monotonic() - self._opened_at

    def _stock(self, stock: Iterable[Commission]) -> None:
        """Add the first machines, within the transaction that is open."""
        (catalogue,) = self._writer.execute(SQL["catalogue"]).fetchone()
        self._know(catalogue)
        for proposal in stock:
            settled, last = self._settle(self._writer, [proposal], NoMachines(), strict=False)
            insist(settled.outcomes)
            self._rows.write(settled, last, None, self._clock)

    def _connect(self, read_only: bool) -> sqlite3.Connection:
        how = "ro" if read_only else "rwc"
        connection = sqlite3.connect(
            f"{self.path.resolve().as_uri()}?mode={how}", uri=True, isolation_level=None, check_same_thread=False,
            timeout=BUSY_SECONDS, cached_statements=64,
        )  # fmt: skip
        if not read_only:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute(f"PRAGMA wal_autocheckpoint = {TOO_LONG}")
        connection.execute("PRAGMA synchronous = FULL")  # durable before acknowledged
        connection.execute("PRAGMA cache_size = -65536")  # 64 MiB
        return connection

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """Everything inside, durably, or nothing."""
        with self._writing:
            if self._damage:
                raise self._damage
            connection = self._writer
            try:
                connection.execute("BEGIN IMMEDIATE")
                try:
                    yield
                    connection.execute("COMMIT")
                except BaseException:
                    self._rechecks = RememberedRechecks()  # they may remember rows that were never written
                    if connection.in_transaction:
                        connection.execute("ROLLBACK")
                    raise
            except sqlite3.IntegrityError as error:
                raise InvariantBroken(f"the database refuses what was to be written: {error}") from error
            except FAILURES as error:
                raise self._failed(error) from error
            with suppress(sqlite3.Error, RuntimeError):  # it is committed, whatever becomes of the log
                self._checkpointer.committed(connection)

    @contextmanager
    def _snapshot(self, connection: sqlite3.Connection, lock: threading.Lock) -> Iterator[None]:
        """Reads that all see the same state."""
        with lock:
            try:
                connection.execute("BEGIN")
                try:
                    yield
                finally:
                    connection.execute("COMMIT")
            except FAILURES as error:
                raise self._failed(error) from error

    def _failed(self, error: Exception) -> StoreUnavailable:
        """What it means. A file that is damaged is not written any more; what can be read of it still is."""
        failed = failure(self.path, error)
        if is_damage(failed):
            self._damage = failed
        return failed

    def columns(self) -> ZoneColumns:
        """Everything, as of one revision."""
        with self._apart() as connection:
            return self._columns(partial(_fetched, connection))

    def _slices(self, read: Read, table: str) -> Iterator[tuple[str, ...]]:
        first, after = "", ""
        while after != BEYOND:
            ((after,),) = read(f"slice_after_{table}", first, AT_ONCE) or [(BEYOND,)]
            yield read(f"slice_of_{table}", first, after)[0]
            first = after

    def _read(self, name: str, *values: Any) -> list[Any]:
        with self._snapshot(self._lookup, self._looking):
            return self._lookup.execute(SQL[name], values).fetchall()

    def _page(self, name: str, *values: Any) -> list[Any]:
        with self._snapshot(self._lister, self._listing):
            return self._lister.execute(SQL[name], values).fetchall()

    def _survey(self, name: str, *values: Any) -> list[Any]:
        with self._apart() as connection:
            return connection.execute(SQL[name], values).fetchall()

    @contextmanager
    def _apart(self) -> Iterator[sqlite3.Connection]:
        """A connection of its own, for what takes long: nobody else waits for it."""
        try:
            with closing(self._connect(read_only=True)) as connection, self._snapshot(connection, threading.Lock()):
                yield connection
        except sqlite3.Error as error:
            raise self._failed(error) from error

    def _listed(self, names: Sequence[str]) -> str:
        return encode(names)

    # -------------------------------------------------------------------------------------------- committing

    def commit(
        self,
        group: Sequence[Proposal],
        recheck: Recheck,
        *,
        strict: bool = False,
        round_: Round | None = None,
        dry: bool = False,
    ) -> list[Outcome]:
        """Do what can be done, in order."""
        if dry:
            with self._snapshot(self._lookup, self._looking):
                return self._settle(self._lookup, group, recheck, strict)[0].outcomes
        return self.prepare(group, recheck, strict=strict, round_=round_)()

    def prepare(
        self, group: Sequence[Proposal], recheck: Recheck, *, strict: bool = False, round_: Round | None = None
    ) -> Callable[[], list[Outcome]]:
        """Settle a group, all but for the disk; what is returned makes it durable, and may run in another thread.

        Nothing else can be written until that has run.
        """
        with ExitStack() as transaction:
            transaction.enter_context(self._transaction())
            standing = self._rechecks.of(recheck)
            settled, last = self._settle(self._writer, group, standing, strict)
            self._rows.write(settled, last, round_, self._clock)
            if settled.machines:
                standing.written(filter(None, settled.machines.values()))
            written = transaction.pop_all()

        def finish() -> list[Outcome]:
            written.close()
            if settled.entries:
                with self._changed:
                    self._last = last + len(settled.entries)
                    self._changed.notify_all()
            return settled.outcomes

        return finish

    @property
    def _rows(self) -> SqliteWriting:
        """Writes rows, within the transaction that is open."""
        return SqliteWriting(self._writer, self._codec)

    @property
    def writing(self) -> bool:
        """Whether whoever prepares something has to wait, as far as one can tell."""
        return self._writing.locked()

    def _settle(
        self,
        connection: sqlite3.Connection,
        group: Sequence[Proposal],
        recheck: Recheck | StandingRecheck,
        strict: bool,
    ) -> tuple[Settlement, int]:
        """What comes of a group, within the transaction that is open; and the last revision."""
        needs, codec, run = needs_of(group), self._codec, connection.execute
        rows = map(codec.machine, run(SQL["machines"], (text_of(needs.machines).decode(),)))
        known = run(SQL["decisions"], (text_of(needs.keys).decode(),)).fetchall()
        last, limits = run(SQL["last_and_limits"], (text_of(limit_kinds()).decode(),)).fetchone()
        facts = Facts(
            known={d.key: d for d in map(codec.decided, known)} if known else {},
            machines={row.spec.name: row for row in rows},
            tenants=dict(map(codec.tenant, run(SQL["tenants"], (text_of(needs.tenants).decode(),)))),
            vms=dict(map(codec.vm, run(SQL["vms"], (text_of(needs.vms).decode(),)))),
            clusters=dict(map(codec.cluster, run(SQL["all_clusters"]))) if needs.clusters else {},
            registry=_entries(connection, needs.registry) if needs.registry else {},
            limits=codec.limits(limits),
        )
        count = partial(_count, connection)
        return settle(group, facts, self._accounts, recheck, count, first_stamp(last), strict), last

    # ---------------------------------------------------------------------------------------------- the feed

    def changes(self, since: int, limit: int = 1_000, *, patient: bool = False) -> Feed:
        """What was committed after a revision: here, all of it."""
        del patient
        if self._lock and since >= self._last:  # nobody else writes
            return Feed(())
        with self._snapshot(self._reader, self._reading):
            _, trimmed = self._reader.execute(SQL["head"]).fetchone()
            if since < trimmed:
                return Feed((), reload=True)
            rows = self._reader.execute(SQL["changes"], (since, limit)).fetchall()
        return Feed(list(map(feed_row, rows)))

    def wait(self, since: int, seconds: float) -> bool:
        """Sleep until there are changes after a revision, or the time is up."""
        with self._changed:
            return self._changed.wait_for(lambda: self._last > since, seconds)

    def try_writing(self) -> None:
        """Raise what keeps the file from being written, if anything does."""
        for statement, values in (("try_writing", (ROOM,)), ("tried_writing", ())):
            with self._transaction():
                self._writer.execute(SQL[statement], values)

    def trim(self, keep: int, decisions_seconds: float = math.inf) -> int:
        """Forget all but the last `keep` revisions, and decisions that were committed so long ago."""
        with self._transaction():
            run = self._writer.execute
            last, trimmed = run(SQL["head"]).fetchone()
            (point,) = run(SQL["trim_point"], (last - keep,)).fetchone()
            if point is not None:
                run(SQL["set_trimmed"], (trimmed := point,))
        for name, until in slices(trimmed, self._clock() - decisions_seconds):
            gone = SLICE
            while gone == SLICE:  # a little at a time: commits must not wait for all of it
                with self._transaction():
                    gone = self._writer.execute(SQL[name], (until, SLICE)).rowcount
        return int(trimmed)

    # ----------------------------------------------------------------------------------------------- the rest

    def repair(self, mend: Callable[[Ledger], Mending]) -> Mending:
        """Overwrite what rows say they add up to, while nobody else writes, and make every follower reload."""
        with self._transaction():
            ledger = self._columns(partial(_fetched, self._writer)).ledger()
            mending = mend(ledger)
            self._rows.set_machines(mending.machines)
            self._rows.set_tenants(mending.tenants)
            self._writer.execute(SQL["advance"], (ledger.revision + 1,))
            self._rows.forget_until(ledger.revision + 1)
            self._rechecks = RememberedRechecks()  # rows have other versions than commits gave them
        with self._changed:
            self._last = ledger.revision + 1
            self._changed.notify_all()
        return mending

    def close(self) -> None:
        """Let go of the file."""
        self._checkpointer.close()
        for name, lock in (
            ("_lister", self._listing),
            ("_lookup", self._looking),
            ("_reader", self._reading),
            ("_writer", self._writing),
        ):
            with lock:  # not under somebody's hands
                if hasattr(self, name):
                    getattr(self, name).close()
        if self._lock is not None:
            self._lock.release()
            self._lock = None


def _fetched(connection: sqlite3.Connection, name: str, *values: Any) -> list[Any]:
    return connection.execute(SQL[name], values).fetchall()


def _entries(connection: sqlite3.Connection, places: Iterable[tuple[str, str]]) -> dict[tuple[str, str], str]:
    """Entries of the registry, those that exist."""
    found = (connection.execute(SQL["registry"], place).fetchone() for place in places)
    return {(row[0], row[1]): row[2] for row in found if row}


def _count(connection: sqlite3.Connection, scopes: Mapping[Scope, int]) -> dict[Scope, int]:
    """The sums of scopes, as far as they matter. Nobody else writes the file: that is lock enough."""
    found = {}
    for scope, most in scopes.items():
        statement = CHECKS[scope.check].statement
        (found[scope],) = connection.execute(statement, {"scope": scope.name, "most": most}).fetchone()
    return found


def _check_file(path: Path, create: Catalogue | None, *, read_only: bool) -> None:
    """Refuse a file that is not what it should be, before anything is written to it or beside it.

    But what somebody has half written who was killed while the file was new is undone, as SQLite does for whoever may
    write.
    """
    try:
        try:
            tables = _tables(path, "ro")
        except sqlite3.Error as error:
            if read_only or error.sqlite_errorcode != sqlite3.SQLITE_READONLY_ROLLBACK:
                raise
            tables = _tables(path, "rw")
    except sqlite3.Error as error:
        if error.sqlite_errorcode == sqlite3.SQLITE_NOTADB:
            raise InvalidInput("store", f"{path} is no store: {error}", "choose another file") from None
        raise failure(path, error) from error
    if create and "zone" in tables:
        raise _holds_a_zone()
    if tables and "zone" not in tables:
        raise InvalidInput("store", f"{path} is another program's", "choose another file")
    if not tables and create is None:
        raise NoZone("the file holds no zone")


def _tables(path: Path, mode: str) -> set[str]:
    with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode={mode}", uri=True, timeout=BUSY_SECONDS)) as file:
        return {name for (name,) in file.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}


def _holds_a_zone() -> Taken:
    return Taken("store", "the file holds a zone already", "use it as it is, or choose another file")


def _version(connection: sqlite3.Connection) -> int:
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    return int(version)


def _of_another_version(path: Path, version: int) -> InvalidInput:
    return InvalidInput("store", f"{path} has schema version {version}", f"this Roost works with {latest(DIALECT)}")


def _migrate(path: Path, connection: sqlite3.Connection, create: Catalogue | None) -> None:
    """Bring the schema up to date, within the transaction that is open."""
    version = _version(connection)
    if create and version:  # by somebody who was faster
        raise _holds_a_zone()
    if version > latest(DIALECT):
        raise _of_another_version(path, version)
    try:
        for number, script in migrations(DIALECT):
            if number > version:
                for statement in _statements(script):
                    connection.execute(statement)
                connection.execute(f"PRAGMA user_version = {number}")
    except sqlite3.Error as error:
        raise failure(
            path, error, f"its schema, of version {version}, cannot be brought to {latest(DIALECT)}: "
        ) from error
    if create:
        connection.execute(SQL["make_zone"], (encode(create),))


def _statements(script: str) -> Iterator[str]:
    """The statements of a script, one by one: `executescript` would end the transaction."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""
