"""Commits that overlap, on a real PostgreSQL: some are held up in the middle while others go on.

A commit can be held up at two points, without any help from the product:
- `Database.held_up`: at its very end. It has its number, holds its locks and has written all but what its agent saw.
- `Gate`: in its very middle. It holds its locks, has written nothing, and has no number yet.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from typing import TypeVar

import psycopg

from roost.engine.recheck import CompiledRecheck
from roost.model.change import Entry, PlacedVM
from roost.model.inventory import catalogue_of, machine_specs
from roost.model.request import UNCONSTRAINED, VM, Constraints
from roost.store import contract
from roost.store.contract import Commission, Committed, Outcome, Place, Proposal, Record, Release, Round
from roost.store.ledger import Ledger, MachineRow
from roost.store.postgres import PostgresStore
from roost.store.recheck import CommitRows, StandingRecheck
from tests.property.zones import STANDARD, ClusterPlan, build, policy

PATIENCE = 30.0  # seconds to wait for what should happen at once
# What would wait for ever fails, and so does a deadlock: nobody finds it in time and tries again.
IMPATIENCE = """
DO $$ BEGIN
    EXECUTE format('ALTER DATABASE %I SET lock_timeout = 20000', current_database());
    EXECUTE format('ALTER DATABASE %I SET deadlock_timeout = 60000', current_database());
END $$
"""
ZONE = build(STANDARD, (ClusterPlan(0, 0, (6,)),))  # six machines of ten cores each
MACHINES = ZONE.machine_names
CATALOGUE = catalogue_of(ZONE)
SPECS = tuple(machine_specs(ZONE))
RECORD = Record(agent="test")
SMALL, WHOLE = VM("A1"), VM("Full-gen3")  # one core, all of a machine

Result = TypeVar("Result")


def recheck() -> CompiledRecheck:
    """The shipped validators, for one thread."""
    return CompiledRecheck(ZONE, policy("fast").rules)


# ---------------------------------------------------------------------------------------------------------- proposals


def place(
    key: str,
    *machines: str,
    tenant: str = "",
    vm: VM = SMALL,
    constraints: Constraints = UNCONSTRAINED,
    name: str = "",
    asked: str = "",
) -> Place:
    """A VM on each of these machines, for a tenant of its own unless one is named."""
    placed = tuple(PlacedVM(name or f"{key}/{i}", vm, machine) for i, machine in enumerate(machines))
    return Place(
        key=key,
        request=(asked or key).encode(),
        record=RECORD,
        tenant=tenant or f"tenant of {key}",
        constraints=constraints,
        placed=placed,
    )


def release(key: str, *earlier: Place) -> Release:
    """All that was placed, of one tenant."""
    placed = tuple(each for proposal in earlier for each in proposal.placed)
    return Release(key=key, request=key.encode(), record=RECORD, tenant=earlier[0].tenant, released=placed)


def kinds(outcomes: Sequence[Outcome]) -> list[type]:
    """What came of each proposal, in a word."""
    return [type(outcome) for outcome in outcomes]


# ----------------------------------------------------------------------------------------------------------- overlaps


class Gate:
    """A re-check that waits to be opened."""

    def __init__(self) -> None:
        self._reached, self._opened, self._recheck = threading.Event(), threading.Event(), recheck()

    def on(self, rows: Sequence[MachineRow]) -> CommitRows:
        """The usual rows, once the gate is open."""
        self._reached.set()
        if not self._opened.wait(PATIENCE):
            raise TimeoutError("nobody opened the gate")
        return self._recheck.on(rows)

    def standing(self) -> StandingRecheck:
        """Remembers nothing."""
        return self

    def written(self, rows: Iterable[MachineRow]) -> None:
        """Remembers nothing."""

    def wait(self) -> None:
        """Until a commit stands before it."""
        assert self._reached.wait(PATIENCE), "no commit came to the gate"

    def open(self) -> None:
        """Let the commit go on, however often it tries."""
        self._opened.set()


class Database:
    """A zone in a database of its own, used by stores and threads that end with it."""

    def __init__(self, url: str) -> None:
        self.url, self.recheck = url, recheck()
        self._stores: list[PostgresStore] = []
        self._threads = ThreadPoolExecutor(16)
        self._watch = psycopg.connect(url, autocommit=True)
        self._watch.execute(IMPATIENCE)
        first = PostgresStore(url, create=CATALOGUE)
        self._stores.append(first)
        added = Commission(key="machines", request=b"{}", record=RECORD, machines=SPECS)
        assert kinds(first.commit([added], self.recheck)) == [Committed]
        self.store = first

    def __enter__(self) -> Database:
        return self

    def __exit__(self, *_: object) -> None:
        self._threads.shutdown()
        for store in self._stores:
            store.close()
        self._watch.close()

    def new_store(self) -> PostgresStore:
        """Another store object, as another process would have."""
        self._stores.append(PostgresStore(self.url))
        return self._stores[-1]

    def commit(self, *group: Proposal, strict: bool = False) -> list[Outcome]:
        """Commit here and now."""
        return self.store.commit(group, self.recheck, strict=strict)

    def run(self, work: Callable[[], Result]) -> Future[Result]:
        """Do something in a thread."""
        return self._threads.submit(work)

    def start(self, *group: Proposal, gate: Gate | None = None, strict: bool = False) -> Future[list[Outcome]]:
        """Commit in a thread, with a store of its own."""

        def commit() -> list[Outcome]:
            with closing(PostgresStore(self.url)) as store:
                seen = Round(agent=group[0].key, number=1, revision=0)
                return store.commit(group, gate or recheck(), strict=strict, round_=seen)

        return self.run(commit)

    def start_at(self, gate: Gate, *group: Proposal) -> Future[list[Outcome]]:
        """Commit in a thread, up to a gate."""
        future = self.start(*group, gate=gate)
        gate.wait()
        return future

    @contextmanager
    def held_up(self, *keys: str) -> Iterator[None]:
        """Hold up whoever begins with these keys until the block ends: somebody seems to be the same agent."""
        with psycopg.connect(self.url) as other:
            for key in keys:
                other.execute("INSERT INTO rounds VALUES (%s, 1, 0, '{}')", (key,))
            try:
                yield
            finally:
                other.rollback()

    @contextmanager
    def numbering(self) -> Iterator[None]:
        """As if somebody were giving revisions to changes until the block ends, and then had found none."""
        with psycopg.connect(self.url) as other:
            other.execute("SELECT last FROM zone FOR UPDATE")
            try:
                yield
            finally:
                other.rollback()

    def wait_for_waiting(self, count: int) -> None:
        """Until so many transactions wait for others."""
        deadline = time.monotonic() + PATIENCE
        while self.waiting() != count:
            assert time.monotonic() < deadline, f"{self.waiting()} transactions wait, not {count}"
            time.sleep(0.002)

    def waiting(self) -> int:
        """How many transactions wait for others."""
        return self.number(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        )

    def last_number(self) -> int:
        """The number that was handed out last."""
        return self.number("SELECT last_value FROM inbox_number_seq")

    def number(self, query: str) -> int:
        """What a query says, in one number."""
        row = self._watch.execute(query.encode()).fetchone()
        assert row is not None
        return int(row[0])

    def inbox(self) -> list[tuple[int, str]]:
        """What waits for its revision: numbers and entries, as they stand there."""
        return [(n, text) for n, text in self._watch.execute("SELECT number, entries FROM inbox ORDER BY number")]


# ---------------------------------------------------------------------------------------------------------- followers


class Follower:
    """Follows the feed from a ledger on, and insists on consecutive revisions."""

    def __init__(self, store: contract.Store, ledger: Ledger | None = None, limit: int = 1_000) -> None:
        self.store, self.limit = store, limit
        self.ledger = ledger or Ledger(store.catalogue)
        self.seen: list[tuple[int, Entry]] = []

    def read(self) -> int:
        """Take in what is new; returns how much that was."""
        feed = self.store.changes(self.ledger.revision, self.limit)
        assert not feed.reload
        before = len(self.seen)
        for revision, entry in feed.after(self.ledger.revision):
            assert revision == self.ledger.revision + 1, f"after {self.ledger.revision} came {revision}"
            self.ledger.apply(entry)
            self.seen.append((revision, entry))
        return len(self.seen) - before

    def catch_up(self) -> Follower:
        """Read until nothing is new."""
        while self.read():
            pass
        return self

    @property
    def keys(self) -> list[str]:
        """What it saw, in order."""
        return [entry.key for _, entry in self.seen]


def differences(ledger: Ledger, tables: Ledger) -> list[str]:
    """Where tables differ from what a feed adds up to, or contradict themselves."""
    found = [] if ledger.revision == tables.revision else [f"revision {tables.revision}, not {ledger.revision}"]
    return [*found, *ledger.differences(tables), *map(str, tables.check_invariants())]


def stale_versions(entries: Sequence[Entry]) -> list[str]:
    """Entries that do not follow, machine by machine, what they rest on."""
    versions: dict[str, int] = {}
    found = []
    for entry in entries:
        for machine, version in entry.versions.items():
            if version != versions.get(machine, 0) + 1:
                found.append(f"{entry.key}: {machine} has version {version} after {versions.get(machine, 0)}")
            versions[machine] = version
    return found
