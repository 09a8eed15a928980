"""The store that processes and machines share: PostgreSQL, or what speaks its protocol."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from hashlib import blake2b
from typing import Any, TypeVar

import psycopg
from psycopg import errors

from roost.model.change import ENTRIES
from roost.model.errors import InvalidInput, InvariantBroken, NoZone, StoreBroken, StoreUnavailable, Taken
from roost.model.inventory import Catalogue
from roost.store.codec import Codec, encode, feed_row
from roost.store.columns import ZoneColumns
from roost.store.contract import Commission, Decided, Mending, Note, Outcome, Proposal, Round
from roost.store.feed import Feed
from roost.store.ledger import Ledger
from roost.store.plainly import NoMachines, insist
from roost.store.postgres_line import RACES, Hearing, LockedConnection, said
from roost.store.postgres_trip import Trip
from roost.store.recheck import Recheck
from roost.store.scopes.check import Scope
from roost.store.scopes.table import CHECKS, limit_kinds
from roost.store.settle.group import needs_of, settle
from roost.store.settle.rows import Facts, Needs, Settlement
from roost.store.sql_text import for_psycopg, latest, migrations, queries
from roost.store.tables import SLICE, Read, Tables, slices

T = TypeVar("T")
DIALECT = "postgres"
SQL = queries(DIALECT)
LISTEN = "LISTEN roost_changes"
MIGRATING = 7_665_115  # the advisory lock of whoever changes the schema
PATIENCE_MS = 1_000  # with whoever is numbering changes, when a zone is loaded
ATTEMPTS = 10  # at a transaction that another one got in the way of
# What each connection is for, and the seconds that the server may say nothing while somebody waits for it there. The
# first is what tells whether it answers at all; who lists, sums up or loads may have asked for much.
LINES = {
    "head": 3.0, "commit": 15.0, "feed": 15.0, "hints": 15.0, "lookup": 10.0,
    "list": 60.0, "survey": 60.0, "load": 60.0,
}  # fmt: skip
AT_ONCE = 300  # blocks of a table that are loaded by one statement
NO_LIMIT = math.inf  # to whoever makes a store, changes its schema or repairs it
FOREIGN = "use a database of Roost's own, whose user owns it; nothing was changed"


class PostgresStore(Tables):
    """A zone in a database. Any number of processes may use it; each store object holds up to eight connections."""

    def __init__(self, url: str, *, create: Catalogue | None = None, stock: Iterable[Commission] = ()) -> None:
        """Open a database, bringing its schema up to date.

        `create` begins a new zone in it, with all of `stock`, in one transaction.
        """
        self.url = url
        self._over = threading.Event()
        self._lines = {name: LockedConnection(url, seconds, self._over) for name, seconds in LINES.items()}
        proposals = list(stock)
        try:
            self._use("commit", lambda connection: self._begin(connection, create, proposals), NO_LIMIT)
        except BaseException:
            self.close()
            raise

    def _begin(self, connection: Hearing, create: Catalogue | None, stock: Sequence[Commission]) -> None:
        with connection.transaction():
            _migrate(connection, create)
            self._know(_only(connection.execute(SQL["catalogue"]))[0])
            for proposal in stock:
                insist(self._settle(connection, [proposal], NoMachines()))

    def _use(self, line: str, work: Callable[[Hearing], T], seconds: float | None = None) -> T:
        return self._lines[line].use(work, seconds)

    def columns(self) -> ZoneColumns:
        """Everything, as of one revision."""

        def number(connection: Hearing) -> None:
            # Better all of it; but if whoever is numbering takes too long, what has no revision yet is left out.
            with suppress(errors.LockNotAvailable), connection.transaction():
                connection.execute(f"SET LOCAL lock_timeout = {PATIENCE_MS}")
                connection.execute(SQL["number_changes"], (True,))

        # By a connection of its own: it takes long, and whoever follows the feed must not wait for it.
        self._use("load", number)
        return self._use("load", _snapshot(self._numbered))

    def _read(self, name: str, *values: Any) -> list[Any]:
        return self._rows("head" if name == "head" else "lookup", name, values)

    def _page(self, name: str, *values: Any) -> list[Any]:
        return self._rows("list", name, values)

    def _survey(self, name: str, *values: Any) -> list[Any]:
        return self._rows("survey", name, values)

    def _rows(self, line: str, name: str, values: Sequence[Any]) -> list[Any]:
        try:
            # Not prepared: how a list is best read depends on what is asked for.
            return self._use(line, lambda connection: connection.execute(SQL[name], values, prepare=False).fetchall())
        except psycopg.DataError as error:  # a NUL in a text, most likely
            raise InvalidInput("name", f"cannot be looked up: {said(error)}", "use another one") from None

    def exchange(self, kind: str, name: str, value: bytes, keep: float) -> dict[str, Note]:
        """Tell something, and hear what others told."""
        given = {"kind": kind, "name": name, "value": value, "keep": keep}
        found = self._use("lookup", lambda connection: connection.execute(SQL["exchange"], given).fetchall())
        return {other: Note(max(0.0, age), bytes(told)) for other, told, age in found}

    def _listed(self, names: Sequence[str]) -> list[str]:
        return list(names)

    def _slices(self, read: Read, table: str) -> Iterator[tuple[str, ...]]:
        ((blocks,),) = read("blocks", table)
        for first in range(0, blocks, AT_ONCE):
            (columns,) = read(f"slice_of_{table}", f"({first},0)", f"({first + AT_ONCE},0)")
            if columns[0] is not None:  # else nothing is left in these blocks
                yield columns

    def _numbered(self, connection: Hearing) -> ZoneColumns:
        """What the tables hold, without what the feed has no revisions for yet."""

        def read(name: str, *values: object) -> list[Any]:
            return connection.execute(SQL[name], values).fetchall()

        found = self._columns(read)
        early = [entry for (text,) in read("inbox") for entry in ENTRIES.decode(text)]
        return replace(found, revision=found.revision + len(early)).before(early)

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

            def look(connection: Hearing) -> list[Outcome]:
                facts, stamp = self._facts(connection, needs_of(group), dry=True)
                count = partial(_count, connection, dry=True)
                return settle(group, facts, self._accounts, recheck, count, stamp, strict).outcomes

            return self._use("lookup", _snapshot(look))
        return self._use("commit", lambda connection: self._commit(connection, group, recheck, strict, round_))

    def _commit(
        self,
        connection: Hearing,
        group: Sequence[Proposal],
        recheck: Recheck,
        strict: bool,
        round_: Round | None,
    ) -> list[Outcome]:
        """Again and again, while others get in the way."""
        for attempt in range(1, ATTEMPTS + 1):
            try:
                with _checked():
                    return self._settle(connection, group, recheck, strict, round_, alone=True)
            except RACES as error:
                if attempt == ATTEMPTS:
                    raise StoreUnavailable(f"others keep getting in the way: {error}") from error
            finally:
                _leave_transaction(connection)
        raise AssertionError("unreachable")

    def _settle(
        self,
        connection: Hearing,
        group: Sequence[Proposal],
        recheck: Recheck,
        strict: bool = False,
        round_: Round | None = None,
        *,
        alone: bool = False,
    ) -> list[Outcome]:
        """Two trips to the server: lock and read, then write; one between, if sums over many rows matter.

        `alone`: in a transaction of its own, committed.
        """
        facts, first_stamp = self._facts(connection, needs_of(group), begin=alone)
        there: set[str | tuple[str, str]] = {*facts.tenants, *facts.registry}
        count, standing = partial(_count, connection), connection.rechecks.of(recheck)
        settled = settle(group, facts, self._accounts, standing, count, first_stamp, strict)
        trip = Trip(connection)
        self._write(trip, settled, there, facts.known, round_)
        if alone:
            trip.add("COMMIT")
        trip.go()
        if alone:
            standing.written(filter(None, settled.machines.values()))
        return settled.outcomes

    def _facts(self, connection: Hearing, needs: Needs, *, begin: bool = False, dry: bool = False) -> tuple[Facts, int]:
        """The freshest rows, locked unless dry, and the first stamp; `begin`: in a transaction that begins here."""
        codec, lock = self._codec, "" if dry else " FOR UPDATE"
        trip = Trip(connection)
        if begin:
            trip.add("BEGIN ISOLATION LEVEL READ COMMITTED")  # each statement sees what was committed meanwhile
        machines = trip.add(SQL["machines"] + lock, needs.machines)
        if needs.clusters and not dry:
            trip.add(SQL["lock_clusters"])
        clusters = trip.add(SQL["all_clusters"]) if needs.clusters else None
        tenants = trip.add(SQL["tenants"] + lock, needs.tenants)
        kinds, names = [kind for kind, _ in needs.registry], [name for _, name in needs.registry]
        registry = trip.add(SQL["registry"] + lock, kinds, names) if needs.registry else None
        vms = trip.add(SQL["vms"], needs.vms)
        known = trip.add(SQL["decisions"], needs.keys)
        stamps = trip.add(SQL["coming_stamps" if dry else "next_stamps"], list(limit_kinds()))
        found = trip.go()
        ((first_stamp, limits),) = found[stamps]
        facts = Facts(
            known={d.key: d for d in map(codec.decided, found[known])},
            machines={row.spec.name: row for row in map(codec.machine, found[machines])},
            tenants=dict(map(codec.tenant, found[tenants])),
            vms=dict(map(codec.vm, found[vms])),
            clusters={} if clusters is None else dict(map(codec.cluster, found[clusters])),
            registry={} if registry is None else {(kind, name): value for kind, name, value in found[registry]},
            limits=codec.limits(limits),
        )
        return facts, first_stamp

    def _write(
        self,
        trip: Trip,
        settled: Settlement,
        there: set[str | tuple[str, str]],  # tenants and entries of the registry that are not new
        known: Mapping[str, Decided],
        round_: Round | None,
    ) -> None:
        """Have a settlement written by a trip."""
        codec = self._codec

        def many(name: str, values: Sequence[tuple[Any, ...]]) -> None:
            if values:
                trip.add(SQL[name], *map(list, zip(*values, strict=True)))

        def remove(name: str, rows: Mapping[str, object]) -> None:
            if gone := [each for each, row in rows.items() if row is None]:
                trip.add(SQL[name], gone)

        rows = sorted(settled.machines.items())
        many("add_machines", [codec.new_machine_values(row) for name, row in rows if row and name in settled.added])
        many("set_machines", [codec.machine_values(row) for name, row in rows if row and name not in settled.added])
        remove("remove_machines", settled.machines)
        many(
            "set_clusters",
            [
                (name, c.datacenter, c.generation, c.machines, c.quarantined)
                for name, c in sorted(settled.clusters.items())
                if c
            ],
        )
        remove("remove_clusters", settled.clusters)
        tenants = [(name, codec.tenant_values(name, row)) for name, row in sorted(settled.tenants.items()) if row]
        many("set_tenants", [values for name, values in tenants if name in there])
        many("add_tenants", [values for name, values in tenants if name not in there])
        remove("remove_tenants", {name: row for name, row in settled.tenants.items() if name in there})
        registry = sorted((*place, value) for place, value in settled.registry.items() if value is not None)
        many("set_registry", [values for values in registry if values[:2] in there])
        many("add_registry", [values for values in registry if values[:2] not in there])
        many("remove_registry", sorted(place for place, value in settled.registry.items() if value is None))
        if settled.freed:
            trip.add(SQL["remove_vms"], sorted(settled.freed))
        many("add_vms", codec.vm_values(dict(sorted(settled.vms.items()))))
        if again := [key for key in settled.decided if key in known]:
            trip.add(SQL["reconsider"], again)
        many("decide", [codec.decided_values(d) for _, d in sorted(settled.decided.items())])
        if settled.entries:  # last of all that could wait for somebody
            agent, number = (round_.agent, round_.number) if round_ else ("", 0)
            trip.add(SQL["append"], agent, number, len(settled.entries), encode(settled.entries))
        if round_:
            trip.add(SQL["add_round"], round_.agent, round_.number, round_.revision, encode(round_))

    # ---------------------------------------------------------------------------------------------- the feed

    def changes(self, since: int, limit: int = 1_000, *, patient: bool = False) -> Feed:
        """What was committed after a revision, as far as the feed is numbered."""

        def follow(connection: Hearing) -> Feed:
            trip = Trip(connection)
            trip.add(SQL["number_changes"], patient)
            trip.add(SQL["changes"], since, limit)
            trip.add(SQL["head"])  # after the rows: what was trimmed meanwhile shows here
            _, rows, ((_, trimmed),) = trip.go()
            if since < trimmed:
                return Feed((), reload=True)
            return Feed(list(map(feed_row, rows)))

        return self._use("feed", follow)

    def wait(self, since: int, seconds: float) -> bool:
        """Sleep until somebody numbers changes, or the time is up."""

        def listen(connection: Hearing) -> bool:
            if LISTEN not in connection.prepared:  # by a trip of its own: what is committed from now on is heard of
                _alone(connection, LISTEN)
            trip = Trip(connection)
            trip.add(SQL["number_changes"], False)
            trip.add(SQL["head"])
            _, ((last, _),) = trip.go()
            heard = False
            while connection.pgconn.notifies():  # those that came together with these answers, or while nobody listened
                heard = True
            if heard or last > since:
                return True
            return any(True for _ in connection.notifies(timeout=seconds, stop_after=1))

        return self._use("hints", listen)

    def try_writing(self) -> None:
        """Raise what keeps the database from being written, if anything does."""
        self._use("head", lambda connection: connection.execute(SQL["try_writing"]))

    def trim(self, keep: int, decisions_seconds: float = math.inf) -> int:
        """Forget all but the last `keep` revisions, and decisions that were committed so long ago."""

        def shorten(connection: Hearing) -> int:
            with connection.transaction():
                run = connection.execute
                last, trimmed = _only(run(SQL["lock_zone"]))
                (point,) = _only(run(SQL["trim_point"], (last - keep,)))
                if point is not None:
                    run(SQL["set_trimmed"], (trimmed := point,))
                return int(trimmed)

        trimmed = self._use("commit", shorten)
        for name, until in slices(trimmed, decisions_seconds):
            gone = SLICE
            while gone == SLICE:  # a little at a time: commits must not wait for all of it
                gone = self._use("commit", lambda each, of=name, to=until: each.execute(SQL[of], (to, SLICE)).rowcount)  # type: ignore[misc]
        return trimmed

    # ----------------------------------------------------------------------------------------------- the rest

    def repair(self, mend: Callable[[Ledger], Mending]) -> Mending:
        """Overwrite what rows say they add up to, while nobody else writes, and make every follower reload."""

        def rewrite(connection: Hearing) -> Mending:
            with _checked(), connection.transaction():
                connection.execute(SQL["lock_tables"])
                connection.execute(SQL["number_changes"], (True,))
                ledger = self._numbered(connection).ledger()
                mending = mend(ledger)
                rows = {row.spec.name: row for row in mending.machines}
                settled = Settlement(machines=dict(rows), tenants=dict(mending.tenants))
                trip = Trip(connection)
                self._write(trip, settled, {*ledger.tenants}, {}, None)
                trip.go()
                last, _ = _only(connection.execute(SQL["head"]))
                connection.execute(SQL["advance"], (last + 1,))
                _forget_until(connection, last + 1)
            return mending

        return self._use("commit", rewrite, NO_LIMIT)

    def close(self) -> None:
        """Let go of the connections; who still waits for the server gives up."""
        self._over.set()
        for line in self._lines.values():
            line.close()


def _count(connection: Hearing, scopes: Mapping[Scope, int], *, dry: bool = False) -> dict[Scope, int]:
    """The sums of scopes, as far as they matter, under their locks unless dry.

    They are taken after those of all rows, by everybody, so nobody can wait for one another in a circle. The sums are
    statements of their own: they see what whoever held the lock before has committed.
    """
    with connection.pipeline():
        if not dry:
            connection.execute(SQL["lock_scopes"], (sorted(map(_lock_number, scopes)),))
        sums = {
            scope: connection.execute(for_psycopg(CHECKS[scope.check].statement), {"scope": scope.name, "most": most})
            for scope, most in scopes.items()
        }
    return {scope: _only(found)[0] for scope, found in sums.items()}


def _lock_number(scope: Scope) -> int:
    """The advisory lock of a scope, alike in every process. Two that share one only wait for each other at times."""
    digest = blake2b(f"{scope.check}\0{scope.name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, signed=True)


def _snapshot(look: Callable[[Hearing], T]) -> Callable[[Hearing], T]:
    """Reads that all see the same state, and lock nothing."""

    def read(connection: Hearing) -> T:
        with connection.transaction():
            connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            return look(connection)

    return read


@contextmanager
def _checked() -> Iterator[None]:
    """The last line of defence: what the tables themselves refuse is a bug."""
    try:
        yield
    except errors.CheckViolation as error:
        raise InvariantBroken(f"the database refuses what was to be written: {error}") from error


def _alone(connection: Hearing, statement: str) -> None:
    """A trip for one statement."""
    trip = Trip(connection)
    trip.add(statement)
    trip.go()


def _only(cursor: psycopg.Cursor[Any]) -> tuple[Any, ...]:
    row: tuple[Any, ...] | None = cursor.fetchone()
    assert row is not None
    return row


def _forget_until(connection: Hearing, revision: int) -> None:
    for name in ("trim_feed", "trim_rounds", "set_trimmed"):
        connection.execute(SQL[name], (revision,))


def _leave_transaction(connection: Hearing) -> None:
    """Whatever went wrong, the connection is good for another transaction, or closed."""
    if connection.closed:
        return
    if connection.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
        try:
            _alone(connection, "ROLLBACK")
        except psycopg.Error:
            connection.close()


def _migrate(connection: Hearing, create: Catalogue | None) -> None:
    """Bring the schema up to date, within the transaction that is open, one process at a time."""
    connection.execute("SELECT pg_advisory_xact_lock(%s)", (MIGRATING,))
    version = 0
    try:
        if _only(connection.execute("SELECT to_regclass('zone')"))[0] is not None:
            version = _only(connection.execute("SELECT max(version) FROM schema_version"))[0] or 0
        elif create:
            connection.execute("CREATE TABLE schema_version (version INTEGER NOT NULL)")
    except errors.SyntaxErrorOrAccessRuleViolation as error:
        raise InvalidInput(
            "store", f"another program uses the database ({said(error)})", "choose an empty one"
        ) from None
    if version and create:
        raise Taken("store", "the database holds a zone already", "use it as it is, or choose another database")
    if not version and create is None:
        raise NoZone("the database holds no zone")
    if version > latest(DIALECT):
        raise InvalidInput("store", f"has schema version {version}", f"this Roost works with {latest(DIALECT)}")
    if create:
        Codec(create)  # refuses what the tables cannot keep
    for number, script in migrations(DIALECT):
        if number > version:
            try:
                connection.execute(script, prepare=False)
            except errors.DuplicateTable as error:
                if create is None:
                    raise _stuck(version, error) from error
                raise InvalidInput("store", f"another program uses the database: {error}", "choose another") from None
            except psycopg.ProgrammingError as error:  # not for want of rights, either, will it pass by itself
                raise _stuck(version, error) from error
            connection.execute("INSERT INTO schema_version VALUES (%s)", (number,))
    if create:
        connection.execute(SQL["make_zone"], (encode(create),))


def _stuck(version: int, error: psycopg.Error) -> StoreBroken:
    goal = latest(DIALECT)
    return StoreBroken(f"the schema, of version {version}, cannot be brought to {goal}: {said(error)}", FOREIGN)
