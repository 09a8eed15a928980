"""The store that processes and machines share: PostgreSQL, or what speaks its protocol."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import psycopg
from psycopg import errors

from roost.model.change import ENTRIES
from roost.model.errors import InvalidInput, InvariantBroken, NoZone, StoreUnavailable
from roost.model.inventory import Catalogue
from roost.store.codec import Codec, encode, feed_row
from roost.store.contract import Decided, Feed, Mending, Note, Outcome, Proposal, Recheck, Round
from roost.store.ledger import Ledger
from roost.store.settle import Facts, Needs, Settlement, needs_of, settle
from roost.store.sql_text import latest, migrations, queries
from roost.store.tables import SLICE, Tables, slices

DIALECT = "postgres"
SQL = queries(DIALECT)
CHANNEL = "roost_changes"
MIGRATING = 7_665_115  # the advisory lock of whoever changes the schema
PATIENCE_MS = 1_000  # with whoever is numbering changes, when a zone is loaded
ATTEMPTS = 10  # at a transaction that another one got in the way of
SESSION = {
    "application_name": "roost",
    # Durable before acknowledged, whatever the server's default; and a frozen worker must not hold locks for long.
    "options": "-c synchronous_commit=on -c idle_in_transaction_session_timeout=10000 -c jit=off",
    "connect_timeout": "10",
    # A host that vanished without a word is noticed.
    "tcp_user_timeout": "10000",
    "keepalives_idle": "5",
    "keepalives_interval": "2",
    "keepalives_count": "3",
}
# Another transaction was faster: with what it wrote, the same proposals come out differently.
RACES = (errors.UniqueViolation, errors.DeadlockDetected, errors.SerializationFailure)


class PostgresStore(Tables):
    """A zone in a database. Any number of processes may use it; each store object holds up to five connections."""

    def __init__(self, url: str, *, create: Catalogue | None = None) -> None:
        """Open a database, bringing its schema up to date; `create` begins a new zone in it."""
        self.url = url
        self._writing, self._reading, self._loading = threading.Lock(), threading.Lock(), threading.Lock()
        self._looking, self._listening = threading.Lock(), threading.Lock()
        self._writer: psycopg.Connection | None = None
        self._reader: psycopg.Connection | None = None
        self._loader: psycopg.Connection | None = None
        self._lookup: psycopg.Connection | None = None
        self._listener: psycopg.Connection | None = None
        try:
            with self._using("_writer", self._writing) as connection, connection.transaction():
                _migrate(connection, create)
                (catalogue,) = _only(connection.execute(SQL["catalogue"]))
        except BaseException:
            self.close()
            raise
        self._know(catalogue)

    @contextmanager
    def _using(self, name: str, lock: threading.Lock) -> Iterator[psycopg.Connection]:
        """One of the connections, made anew if it broke."""
        with lock:
            connection: psycopg.Connection | None = getattr(self, name)
            try:
                if connection is None or connection.closed:
                    connection = psycopg.connect(self.url, autocommit=True, prepare_threshold=0, **SESSION)  # type: ignore[arg-type]
                    setattr(self, name, connection)
                yield connection
            except psycopg.Error as error:  # whatever it is: gone, read-only after a failover, without rights
                if isinstance(error, (*RACES, psycopg.IntegrityError, psycopg.DataError, errors.LockNotAvailable)):
                    raise
                if connection is not None:
                    connection.close()
                raise StoreUnavailable(f"PostgreSQL cannot be used: {_said(error)}") from error

    def load(self) -> Ledger:
        """Everything, as of one revision."""
        # Better all of it; but if whoever is numbering takes too long, what has no revision yet is left out.
        late = suppress(errors.LockNotAvailable)
        # By a connection of its own: it takes long, and whoever follows the feed must not wait for it.
        with self._using("_loader", self._loading) as connection, late, connection.transaction():
            connection.execute(f"SET LOCAL lock_timeout = {PATIENCE_MS}")
            connection.execute(SQL["number_changes"], (True,))
        with self._snapshot("_loader", self._loading) as connection:
            return self._numbered(connection)

    @contextmanager
    def _snapshot(self, name: str, lock: threading.Lock) -> Iterator[psycopg.Connection]:
        """Reads that all see the same state, and lock nothing."""
        with self._using(name, lock) as connection, connection.transaction():
            connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            yield connection

    def _read(self, name: str, *values: Any) -> list[Any]:
        with self._using("_lookup", self._looking) as connection:
            try:
                # Not prepared: how a list is best read depends on what is asked for.
                return connection.execute(SQL[name], values, prepare=False).fetchall()
            except psycopg.DataError as error:  # a NUL in a text, most likely
                raise InvalidInput("name", f"cannot be looked up: {_said(error)}", "use another one") from None

    def exchange(self, kind: str, name: str, value: bytes, keep: float) -> dict[str, Note]:
        """Tell something, and hear what others told."""
        given = {"kind": kind, "name": name, "value": value, "keep": keep}
        with self._using("_lookup", self._looking) as connection:
            found = connection.execute(SQL["exchange"], given).fetchall()
        return {other: Note(max(0.0, age), bytes(told)) for other, told, age in found}

    def _listed(self, names: Sequence[str]) -> list[str]:
        return list(names)

    def _numbered(self, connection: psycopg.Connection) -> Ledger:
        """What the tables hold, without what the feed has no revisions for yet."""
        run = connection.execute
        ledger = self._ledger(lambda name: run(SQL[name]).fetchall())
        early = [entry for (text,) in run(SQL["inbox"]).fetchall() for entry in ENTRIES.decode(text)]
        ledger.revision += len(early)
        for entry in reversed(early):
            ledger.undo(entry)
        return ledger

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
            with self._snapshot("_lookup", self._looking) as connection:
                facts, stamp = self._facts(connection, needs_of(group), dry=True)
                return settle(group, facts, self._accounts, recheck, stamp, strict).outcomes
        for attempt in range(1, ATTEMPTS + 1):
            with self._using("_writer", self._writing) as connection, _checked():
                try:
                    return self._commit(connection, group, recheck, strict, round_)
                except RACES as error:
                    if attempt == ATTEMPTS:
                        raise StoreUnavailable(f"others keep getting in the way: {error}") from error
                finally:
                    _leave_transaction(connection)
        raise AssertionError("unreachable")

    def _commit(
        self,
        connection: psycopg.Connection,
        group: Sequence[Proposal],
        recheck: Recheck,
        strict: bool,
        round_: Round | None,
    ) -> list[Outcome]:
        """Two trips to the server: lock and read, then write and commit."""
        facts, first_stamp = self._facts(connection, needs_of(group))
        there: set[str | tuple[str, str]] = {*facts.tenants, *facts.registry}
        settled = settle(group, facts, self._accounts, recheck, first_stamp, strict)
        with connection.pipeline():
            self._write(connection, settled, there, facts.known, round_)
            connection.execute("COMMIT")
        return settled.outcomes

    def _facts(self, connection: psycopg.Connection, needs: Needs, *, dry: bool = False) -> tuple[Facts, int]:
        """The freshest rows and the first stamp, in a transaction that begins here and locks them; dry, in any."""
        codec, lock = self._codec, "" if dry else " FOR UPDATE"
        with connection.pipeline():
            run = connection.execute
            if not dry:
                run("BEGIN")
            machines = run(SQL["machines"] + lock, (needs.machines,))
            if needs.clusters and not dry:
                run(SQL["lock_clusters"])
            clusters = run(SQL["all_clusters"]) if needs.clusters else None
            tenants = run(SQL["tenants"] + lock, (needs.tenants,))
            kinds, names = [kind for kind, _ in needs.registry], [name for _, name in needs.registry]
            registry = run(SQL["registry"] + lock, (kinds, names)) if needs.registry else None
            vms = run(SQL["vms"], (needs.vms,))
            known = run(SQL["decisions"], (needs.keys,))
            stamps = run(SQL["coming_stamps" if dry else "next_stamps"])
        rows = map(codec.machine, machines.fetchall())
        facts = Facts(
            known={d.key: d for d in map(codec.decided, known.fetchall())},
            machines={row.spec.name: row for row in rows},
            tenants=dict(map(codec.tenant, tenants.fetchall())),
            vms=dict(map(codec.vm, vms.fetchall())),
            clusters=dict(map(codec.cluster, clusters.fetchall())) if clusters else {},
            registry={(kind, name): value for kind, name, value in registry.fetchall()} if registry else {},
        )
        (first_stamp,) = _only(stamps)
        return facts, first_stamp

    def _write(
        self,
        connection: psycopg.Connection,
        settled: Settlement,
        there: set[str | tuple[str, str]],  # tenants and entries of the registry that are not new
        known: Mapping[str, Decided],
        round_: Round | None,
    ) -> None:
        codec, run = self._codec, connection.execute

        def many(name: str, values: Sequence[tuple[Any, ...]]) -> None:
            if values:
                run(SQL[name], [list(column) for column in zip(*values, strict=True)])

        def remove(name: str, rows: Mapping[str, object]) -> None:
            if gone := [each for each, row in rows.items() if row is None]:
                run(SQL[name], (gone,))

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
            run(SQL["remove_vms"], (sorted(settled.freed),))
        many("add_vms", codec.vm_values((name, row) for name, row in sorted(settled.vms.items()) if row))
        if again := [key for key in settled.decided if key in known]:
            run(SQL["reconsider"], (again,))
        many("decide", [codec.decided_values(d) for _, d in sorted(settled.decided.items())])
        if settled.entries:  # last of all that could wait for somebody
            agent, number = (round_.agent, round_.number) if round_ else ("", 0)
            run(SQL["append"], (agent, number, len(settled.entries), encode(settled.entries)))
        if round_:
            run(SQL["add_round"], (round_.agent, round_.number, round_.revision, encode(round_)))

    # ---------------------------------------------------------------------------------------------- the feed

    def changes(self, since: int, limit: int = 1_000, *, patient: bool = False) -> Feed:
        """What was committed after a revision, as far as the feed is numbered."""
        with self._using("_reader", self._reading) as connection:
            with connection.pipeline():
                connection.execute(SQL["number_changes"], (patient,))
                rows = connection.execute(SQL["changes"], (since, limit))
                head = connection.execute(SQL["head"])  # after the rows: what was trimmed meanwhile shows here
            _, trimmed = _only(head)
            if since < trimmed:
                return Feed((), reload=True)
            return Feed(list(map(feed_row, rows.fetchall())))

    def wait(self, since: int, seconds: float) -> bool:
        """Sleep until somebody numbers changes, or the time is up."""
        with self._using("_listener", self._listening) as connection:
            connection.execute(f"LISTEN {CHANNEL}")
            connection.execute(SQL["number_changes"], (False,))
            last, _ = _only(connection.execute(SQL["head"]))
            if last > since:
                return True
            return any(True for _ in connection.notifies(timeout=seconds, stop_after=1))

    def trim(self, keep: int, decisions_before: float = 0.0) -> int:
        """Forget all but the last `keep` revisions, and decisions made earlier."""
        with self._using("_writer", self._writing) as connection, connection.transaction():
            run = connection.execute
            last, trimmed = _only(run(SQL["lock_zone"]))
            (point,) = _only(run(SQL["trim_point"], (last - keep,)))
            if point is not None:
                run(SQL["set_trimmed"], (trimmed := point,))
        for name, until in slices(trimmed, decisions_before):
            gone = SLICE
            while gone == SLICE:  # a little at a time: commits must not wait for all of it
                with self._using("_writer", self._writing) as connection:
                    gone = connection.execute(SQL[name], (until, SLICE)).rowcount
        return int(trimmed)

    # ----------------------------------------------------------------------------------------------- the rest

    def repair(self, mend: Callable[[Ledger], Mending]) -> Mending:
        """Overwrite what rows say they add up to, while nobody else writes, and make every follower reload."""
        with self._using("_writer", self._writing) as connection, _checked(), connection.transaction():
            connection.execute(SQL["lock_tables"])
            connection.execute(SQL["number_changes"], (True,))
            ledger = self._numbered(connection)
            mending = mend(ledger)
            rows = {row.spec.name: row for row in mending.machines}
            settled = Settlement(machines=dict(rows), tenants=dict(mending.tenants))
            self._write(connection, settled, {*ledger.tenants}, {}, None)
            last, _ = _only(connection.execute(SQL["head"]))
            connection.execute(SQL["advance"], (last + 1,))
            _forget_until(connection, last + 1)
        return mending

    def close(self) -> None:
        """Let go of the connections."""
        for name in ("_writer", "_reader", "_loader", "_lookup", "_listener"):
            connection = getattr(self, name)
            if connection is not None:
                connection.close()


@contextmanager
def _checked() -> Iterator[None]:
    """The last line of defence: what the tables themselves refuse is a bug."""
    try:
        yield
    except errors.CheckViolation as error:
        raise InvariantBroken(f"the database refuses what was to be written: {error}") from error


def _said(error: psycopg.Error) -> str:
    """What is wrong, in a line."""
    return str(error).strip().partition("\n")[0]


def _only(cursor: psycopg.Cursor[Any]) -> tuple[Any, ...]:
    row: tuple[Any, ...] | None = cursor.fetchone()
    assert row is not None
    return row


def _forget_until(connection: psycopg.Connection, revision: int) -> None:
    for name in ("trim_feed", "trim_rounds", "set_trimmed"):
        connection.execute(SQL[name], (revision,))


def _leave_transaction(connection: psycopg.Connection) -> None:
    """Whatever went wrong, the connection is good for another transaction, or closed."""
    if connection.closed:
        return
    if connection.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
        try:
            connection.execute("ROLLBACK")
        except psycopg.Error:
            connection.close()


def _migrate(connection: psycopg.Connection, create: Catalogue | None) -> None:
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
            "store", f"another program uses the database ({_said(error)})", "choose an empty one"
        ) from None
    if version and create:
        raise InvalidInput("store", "the database holds a zone already", "use it as it is, or choose another database")
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
                    raise
                raise InvalidInput("store", f"another program uses the database: {error}", "choose another") from None
            connection.execute("INSERT INTO schema_version VALUES (%s)", (number,))
    if create:
        connection.execute(SQL["make_zone"], (encode(create),))
