"""Two real workers on one PostgreSQL, and somebody who holds them to what they told their clients.

It speaks HTTP and SQL and nothing else: no part of the product judges itself here.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psycopg

from roost.bench.postgres import ThrowawayPostgres
from tests.e2e.serving import PATIENCE, serving
from tests.e2e.talking import Json, eventually, make_store

Call = Callable[[], httpx.Response]
READY = 0  # a machine's state, as the tables have it
# What gave way is tried again at once, and a machine may fail as often as it likes.
SETTINGS = ("--policy", "fast", "--set", "agent.requeue_seconds=0.1", "--set", "healing.flaps=0")


class Promises:
    """What was promised, and how often it was broken."""

    def __init__(self) -> None:
        self.rounds = 0
        self._broken: dict[str, list[str]] = {}

    def each(self, rounds: int) -> Iterator[int]:
        """Round after round."""
        for self.rounds in range(1, rounds + 1):
            yield self.rounds

    def hold(self, promise: str, held: bool, *evidence: object) -> None:
        """This round, a promise is kept, or else this shows that it is not."""
        if not held:
            said = [
                f"{each.status_code} {each.text}" if isinstance(each, httpx.Response) else each for each in evidence
            ]
            self._broken.setdefault(promise, []).append(f"round {self.rounds}: {said}")

    def check(self) -> None:
        """All of them were kept, in every round."""
        lines = [
            f"{promise}: broken {len(shown)} times in {self.rounds} rounds, first in {shown[0]}"
            for promise, shown in self._broken.items()
        ]
        assert not lines, "\n".join(lines)


@dataclass
class Telling:
    """The feed from its beginning, told with plain dictionaries."""

    deleting: Mapping[str, str]  # by key: the tenant that somebody was told is deleted
    vms: dict[str, tuple[str, str]] = field(default_factory=dict)  # tenant and machine
    states: dict[str, int] = field(default_factory=dict)  # of machines that are not as they began
    deleted: set[str] = field(default_factory=set)  # tenants
    wrong: list[str] = field(default_factory=list)

    def tell(self, entry: Json) -> None:
        """What happened next."""
        key, tenant = entry["key"], entry.get("tenant", "")
        released = {vm: machine for vm, _, machine, *_ in entry.get("released", ())}
        for vm, machine in released.items():
            if self.vms.pop(vm, None) != (tenant, machine):
                self.wrong.append(f"{key} takes {vm} off {machine}, where it does not run")
            if key.startswith("heal ") and self.states.get(machine, READY) == READY:
                self.wrong.append(f"{key} heals {vm}, whose machine {machine} is ready")
        for vm, _, machine, *_ in entry.get("placed", ()):
            if vm in self.vms:
                self.wrong.append(f"{key} places {vm}, which runs on {self.vms[vm][1]}")
            if self.states.get(machine, READY) != READY:
                self.wrong.append(f"{key} places {vm} on {machine}, which is not ready")
            if tenant in self.deleted:
                self.wrong.append(f"{key} places {vm}, of a tenant that was deleted")
            self.vms[vm] = (tenant, machine)
        for machine, name, _, after in entry.get("conditions", ()):
            if name == "state":
                self.states[machine] = after
        if gone := self.deleting.get(key):
            self.deleted.add(gone)
            if left := [vm for vm, (owner, _) in self.vms.items() if owner == gone]:
                self.wrong.append(f"{key} deletes tenant {gone} and leaves {left}")


class Rivals:
    """Two workers, each with a client of its own, and a look at their tables."""

    def __init__(self, url: str, first: httpx.Client, second: httpx.Client, sql: psycopg.Connection[Any]) -> None:
        self.url, self.workers, self._sql = url, (first, second), sql
        self._threads = ThreadPoolExecutor(2)
        self._deleting: dict[str, str] = {}

    @contextmanager
    def promising(self) -> Iterator[Promises]:
        """What is promised in a race, in a zone without tenants; in the end, all of it was kept."""
        left = self._read(
            "SELECT name FROM tenants UNION SELECT value::json->>'tenant' FROM registry WHERE kind = 'waiting'"
        )
        for (tenant,) in left:
            self.workers[0].delete(f"/v1/tenants/{tenant}")
        promises, before = Promises(), len(self.tell().wrong)
        yield promises
        wrong = self.tell().wrong[before:]
        promises.hold("what the feed tells makes sense", not wrong, wrong[:3])
        promises.check()

    def pair(self, number: int) -> tuple[httpx.Client, httpx.Client]:
        """One worker and the other; whichever is the first in turn."""
        return self.workers if number % 2 else self.workers[::-1]

    def at_once(self, *calls: Call) -> list[httpx.Response]:
        """What comes of calls that are sent together."""
        gate = threading.Barrier(len(calls))

        def go(call: Call) -> httpx.Response:
            gate.wait()
            return call()

        return list(self._threads.map(go, calls))

    def delete(self, worker: httpx.Client, tenant: str) -> httpx.Response:
        """Delete a tenant for good: once that is acknowledged, it never has VMs again."""
        key = f"delete-{tenant}"
        answer = worker.delete(f"/v1/tenants/{tenant}", headers={"Idempotency-Key": key})
        if answer.status_code == 200:
            self._deleting[key] = tenant
        return answer

    # ------------------------------------------------------------------------------------------- what the tables say

    def _read(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        return self._sql.execute(query, values).fetchall()

    def vms(self, tenant: str) -> dict[str, str]:
        """The VMs of a tenant that run, and where."""
        return dict(self._read("SELECT name, machine FROM vms WHERE tenant = %s ORDER BY name", tenant))

    def stamp(self, tenant: str) -> int:
        """The generation of a tenant; 0: there is none."""
        rows = self._read("SELECT stamp FROM tenants WHERE name = %s", tenant)
        return int(rows[0][0]) if rows else 0

    def waiting(self, tenant: str) -> list[str]:
        """The VMs of a tenant that wait to be placed again."""
        rows = self._read("SELECT name, value FROM registry WHERE kind = 'waiting'")
        return [name for name, value in rows if json.loads(value)["tenant"] == tenant]

    def states(self) -> dict[str, int]:
        """How each machine is."""
        return dict(self._read("SELECT name, state FROM machines"))

    def entries(self) -> list[Json]:
        """The feed from its beginning, with what has no revision yet; to be read while nobody writes."""
        rows = self._read("SELECT entries FROM feed ORDER BY last") + self._read(
            "SELECT entries FROM inbox ORDER BY number"
        )
        return [entry for (entries,) in rows for entry in json.loads(entries)]

    def tell(self) -> Telling:
        """All that happened, and what is wrong with it; it must lead to what the tables hold."""
        with self._sql.transaction():
            self._sql.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            entries = self.entries()
            there = {
                vm: (tenant, machine) for vm, tenant, machine in self._read("SELECT name, tenant, machine FROM vms")
            }
        told = Telling(self._deleting)
        for entry in entries:
            told.tell(entry)
        if told.vms != there:
            told.wrong.append(f"the feed tells of {told.vms}, the tables hold {there}")
        return told

    def close(self) -> None:
        """No more."""
        self._threads.shutdown()


@contextmanager
def rivals(folder: Path) -> Iterator[Rivals]:
    """Two `roost serve`, each at a port of its own, on one database with the tiny zone."""
    with ExitStack() as stack:
        server = stack.enter_context(ThrowawayPostgres())
        sql = stack.enter_context(psycopg.connect(server.url, autocommit=True))
        sql.execute("ALTER SYSTEM SET fsync = off")  # nobody pulls the plug here
        sql.execute("SELECT pg_reload_conf()")
        make_store(server.url, folder)
        services = [stack.enter_context(serving(server.url, *SETTINGS, ready=False)) for _ in range(2)]
        for service in services:
            eventually(service.is_ready, PATIENCE)
        clients = [stack.enter_context(httpx.Client(base_url=each.url, timeout=30)) for each in services]
        found = Rivals(server.url, clients[0], clients[1], sql)
        try:
            yield found
        finally:
            found.close()
        for service in services:
            assert "Traceback" not in service.stderr, service.stderr
            assert '"a bug"' not in service.stderr, service.stderr
