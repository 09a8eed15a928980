"""Writing to an SQLite store: what came of a group, row by row, within a transaction that is open."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Mapping

from roost.store.codec import Codec, text_of
from roost.store.contract import Round
from roost.store.ledger import MachineRow, TenantRow
from roost.store.settle.rows import Settlement
from roost.store.sql_text import queries

SQL = queries("sqlite")


class SqliteWriting:
    """Writes rows by one connection."""

    def __init__(self, connection: sqlite3.Connection, codec: Codec) -> None:
        self._connection, self._codec = connection, codec

    def write(self, settled: Settlement, last: int, round_: Round | None, clock: Callable[[], float]) -> None:
        """Most groups place VMs or release them, and nothing else: only what there is costs anything.

        `last`: the revision before; `clock` tells when it is written.
        """
        codec, run, many = self._codec, self._connection.execute, self._connection.executemany
        if settled.added or settled.clusters or settled.registry:
            self._write_shape(settled)
        if settled.machines:
            self.set_machines(_changed(settled) if settled.added else filter(None, settled.machines.values()))
        if settled.freed:
            many(SQL["remove_vm"], [(name,) for name in settled.freed])
        if settled.vms:
            many(SQL["add_vm"], codec.vm_values(settled.vms))
        self.set_tenants(settled.tenants)
        if settled.entries:
            agent, number = (round_.agent, round_.number) if round_ else ("", 0)
            new_last = last + len(settled.entries)
            run(SQL["append"], (last + 1, new_last, agent, number, text_of(settled.entries).decode()))
            run(SQL["advance"], (new_last,))
        now = clock()
        many(SQL["decide"], [(*codec.decided_values(decided), now) for decided in settled.decided.values()])
        if round_:
            run(SQL["add_round"], (round_.agent, round_.number, round_.revision, text_of(round_).decode()))

    def _write_shape(self, settled: Settlement) -> None:
        """Machines that come or go, clusters, the registry."""
        codec, many = self._codec, self._connection.executemany
        new = [row for name, row in settled.machines.items() if row and name in settled.added]
        many(SQL["add_machine"], map(codec.new_machine_values, new))
        many(SQL["remove_machine"], _gone(settled.machines))
        clusters = [
            (name, c.datacenter, c.generation, c.machines, c.quarantined) for name, c in settled.clusters.items() if c
        ]
        many(SQL["set_cluster"], clusters)
        many(SQL["remove_cluster"], _gone(settled.clusters))
        many(SQL["set_registry"], [(*place, value) for place, value in settled.registry.items() if value is not None])
        many(SQL["remove_registry"], [place for place, value in settled.registry.items() if value is None])

    def set_machines(self, rows: Iterable[MachineRow]) -> None:
        """Machines hold something else, or are in another condition."""
        self._connection.executemany(SQL["set_machine"], map(self._codec.machine_values, rows))

    def set_tenants(self, tenants: Mapping[str, TenantRow | None]) -> None:
        """Tenants have other VMs, or none."""
        many, values = self._connection.executemany, self._codec.tenant_values
        there = [values(name, row) for name, row in tenants.items() if row]
        many(SQL["set_tenant"], there)
        if len(there) < len(tenants):
            many(SQL["remove_tenant"], _gone(tenants))

    def forget_until(self, revision: int) -> None:
        """The feed begins after a revision."""
        for name in ("trim_feed", "trim_rounds", "set_trimmed"):
            self._connection.execute(SQL[name], (revision,))


def _changed(settled: Settlement) -> list[MachineRow]:
    """Machines that were there before, and still are."""
    return [row for name, row in settled.machines.items() if row and name not in settled.added]


def _gone(rows: Mapping[str, object]) -> list[tuple[str]]:
    return [(name,) for name, row in rows.items() if row is None]
