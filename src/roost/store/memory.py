"""The store of one process, in memory: for simulations and tests. Same promises, but nothing survives the process."""

from __future__ import annotations

import heapq
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from roost.model.inventory import Catalogue
from roost.store.columns import ZoneColumns
from roost.store.contract import Decided, Mending, Outcome, PolicyResult, Proposal, Round
from roost.store.feed import Feed, FeedRow
from roost.store.ledger import Ledger, MachineRow, TenantRow, VMRow
from roost.store.notes import Notes
from roost.store.recheck import Recheck
from roost.store.remembered_rechecks import RememberedRechecks
from roost.store.scopes.ledger_sums import LedgerSums
from roost.store.scopes.table import limit_kinds
from roost.store.settle.group import first_stamp, needs_of, settle
from roost.store.settle.rows import Facts, Settlement

Name = TypeVar("Name")
Row = TypeVar("Row")


class MemoryStore:
    """A ledger, its feed and its decisions. Nothing is ever written anywhere."""

    def __init__(
        self, catalogue: Catalogue, ledger: Ledger | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`ledger`: what to begin with, instead of nothing; the store makes it its own."""
        self.catalogue = catalogue
        self._ledger = ledger or Ledger(catalogue)
        self._feed: deque[FeedRow] = deque()
        self._trimmed = self._ledger.revision
        self._decided: dict[str, Decided] = {}
        self._clock, self._written = clock, dict[str, float]()  # when each was committed
        self._rounds: dict[tuple[str, int], Round] = {}
        self._changed = threading.Condition()
        self._rechecks = RememberedRechecks()
        self._sums = LedgerSums(self._ledger)
        self._limits: dict[tuple[str, str], str] = {}
        self._limit(self._ledger.registry)
        self.exchange = Notes().exchange

    def load(self) -> Ledger:
        """Everything, as of one revision."""
        with self._changed:
            return self._ledger.copy()

    def columns(self) -> ZoneColumns:
        """The same in columns."""
        return ZoneColumns.of(self.load())

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
        needs = needs_of(group)
        with self._changed:
            ledger = self._ledger
            facts = Facts(
                known=self._decided,
                machines={name: row.copy() for name, row in _found(ledger.machines, needs.machines).items()},
                tenants=_found(ledger.tenants, needs.tenants),
                vms=_found(ledger.vms, needs.vms),
                clusters=ledger.clusters.copy() if needs.clusters else {},
                registry=_found(ledger.registry, needs.registry) if needs.registry else {},
                limits=self._limits,
            )
            standing = self._rechecks.of(recheck)
            stamp = first_stamp(ledger.revision)
            settled = settle(group, facts, ledger.accounts, standing, self._sums.count, stamp, strict)
            if not dry:
                self._write(settled, round_)
                standing.written(row for row in settled.machines.values() if row)
        return settled.outcomes

    def _write(self, settled: Settlement, round_: Round | None) -> None:
        ledger, known, written = self._ledger, self._decided, self._written
        self._sums.change(settled)
        _update(ledger.machines, settled.machines)
        _update(ledger.tenants, settled.tenants)
        _update(ledger.vms, settled.vms)
        if settled.clusters:
            _update(ledger.clusters, settled.clusters)
        if settled.registry:
            self._limit(settled.registry)
            _update(ledger.registry, settled.registry)
        now = self._clock()
        for key, decided in settled.decided.items():
            known.pop(key, None)  # what was declined before is the latest now
            known[key] = decided
            written[key] = now
        if round_:
            self._rounds[round_.agent, round_.number] = round_
        if settled.entries:
            first, entries = ledger.revision + 1, settled.entries
            ledger.revision += len(entries)
            agent, number = (round_.agent, round_.number) if round_ else ("", 0)
            self._feed.append(FeedRow(first, ledger.revision, agent, number, entries))
            self._changed.notify_all()

    def _limit(self, entries: Mapping[tuple[str, str], str | None]) -> None:
        """Those of these entries of the registry that say what sums may be passed are so from now on."""
        kinds = limit_kinds() if entries else ()
        _update(self._limits, {place: value for place, value in entries.items() if place[0] in kinds})

    def changes(self, since: int, limit: int = 1_000, *, patient: bool = False) -> Feed:
        """What was committed after a revision: here, all of it."""
        del patient
        with self._changed:
            if since < self._trimmed:
                return Feed((), reload=True)
            rows: list[FeedRow] = []
            for row in reversed(self._feed):
                if row.last <= since:
                    break
                rows.append(row)
            rows.reverse()
            return Feed(rows[:limit] if len(rows) > limit else rows)

    def head(self) -> tuple[int, int]:
        """The revision of the last entry of the feed, and of the last that was trimmed away."""
        return self._ledger.revision, self._trimmed

    def wait(self, since: int, seconds: float) -> bool:
        """Sleep until there are changes after a revision, or the time is up."""
        with self._changed:
            return self._changed.wait_for(lambda: self._ledger.revision > since, seconds)

    def try_writing(self) -> None:
        """Nothing keeps memory from being written."""

    def trim(self, keep: int, decisions_seconds: float = math.inf) -> int:
        """Forget all but the last `keep` revisions, and decisions that were committed so long ago."""
        with self._changed:
            while self._feed and self._feed[0].last <= self._ledger.revision - keep:
                self._trimmed = self._feed.popleft().last
            self._rounds = {name: r for name, r in self._rounds.items() if r.revision >= self._trimmed}
            until = self._clock() - decisions_seconds
            for key in [key for key, written in self._written.items() if written <= until]:
                del self._decided[key], self._written[key]
            return self._trimmed

    def decided(self, key: str) -> Decided | None:
        """What came of a key."""
        return self._decided.get(key)

    def round(self, agent: str, number: int) -> Round | None:
        """What an agent saw."""
        return self._rounds.get((agent, number))

    def decisions(
        self, limit: int = 100, *, before: tuple[float, str] | None = None, prefix: str = ""
    ) -> list[Decided]:
        """The latest decisions, latest first."""
        with self._changed:
            found = {(d.record.at, key): d for key, d in self._decided.items() if key.startswith(prefix)}
        return [found[when] for when in heapq.nlargest(limit, (w for w in found if before is None or w < before))]

    def policy_results(self, since: float) -> list[PolicyResult]:
        """How each policy fared with the requests that were decided since a time."""
        with self._changed:
            by_policy: dict[str, list[Decided]] = {}
            for decided in self._decided.values():
                if decided.record.policy and decided.record.at >= since:
                    by_policy.setdefault(decided.record.policy, []).append(decided)
        return [_result(policy, made) for policy, made in sorted(by_policy.items())]

    # --------------------------------------------------------------------------------------------- looking up

    def tenant(self, name: str) -> TenantRow | None:
        """A tenant that has VMs."""
        return self._ledger.tenants.get(name)

    def tenants(self, after: str = "", limit: int = 100, prefix: str = "") -> list[tuple[str, TenantRow]]:
        """Tenants after a name, those with a prefix."""
        with self._changed:
            tenants = self._ledger.tenants
            names = heapq.nsmallest(limit, (n for n in tenants if n > after and n.startswith(prefix)))
            return [(name, tenants[name]) for name in names]

    def vm(self, name: str) -> VMRow | None:
        """A VM that runs."""
        return self._ledger.vms.get(name)

    def vms(
        self,
        after: str = "",
        limit: int = 100,
        *,
        tenant: str | None = None,
        machine: str | None = None,
        prefix: str = "",
    ) -> list[tuple[str, VMRow]]:
        """VMs after a name: of a tenant, on a machine, of tenants with a prefix."""
        with self._changed:
            vms = self._ledger.vms
            names = heapq.nsmallest(
                limit,
                (
                    name
                    for name, row in vms.items()
                    if name > after
                    and tenant in (None, row.tenant)
                    and machine in (None, row.machine)
                    and row.tenant.startswith(prefix)
                ),
            )
            return [(name, vms[name]) for name in names]

    def machine(self, name: str) -> MachineRow | None:
        """A machine as it is now."""
        with self._changed:
            row = self._ledger.machines.get(name)
            return row.copy() if row else None

    def registry(self, kind: str) -> dict[str, str]:
        """The present values of a kind, by name."""
        with self._changed:
            return {name: value for (of, name), value in sorted(self._ledger.registry.items()) if of == kind}

    def amounts(self) -> dict[str, tuple[Sequence[int], Sequence[int]]]:
        """What is used of each machine and what it has, by resource."""
        resources = self._ledger.accounts.resources
        return {name: (row.taken(resources), row.spec.capacity) for name, row in self._ledger.machines.items()}

    def counted(self) -> dict[str, tuple[str, bool]]:
        """The cluster of each machine, and whether it is empty."""
        resources = self._ledger.accounts.resources
        return {name: (row.spec.cluster, row.is_empty(resources)) for name, row in self._ledger.machines.items()}

    def repair(self, mend: Callable[[Ledger], Mending]) -> Mending:
        """Overwrite what rows say they add up to, and make every follower reload."""
        with self._changed:
            mending = mend(self._ledger)
            self._sums.forget()
            _update(self._ledger.machines, {row.spec.name: row for row in mending.machines})
            _update(self._ledger.tenants, mending.tenants)
            self._ledger.revision += 1
            self._trimmed = self._ledger.revision
            self._feed.clear()
            self._changed.notify_all()
        return mending

    def close(self) -> None:
        """Nothing to let go of."""


def _result(policy: str, made: Sequence[Decided]) -> PolicyResult:
    times = sorted(decided.record.decided_us for decided in made)
    committed = sum(decided.outcome == "committed" for decided in made)
    return PolicyResult(
        policy=policy,
        requests=len(made),
        committed=committed,
        declined=len(made) - committed,
        vms=sum(len(decided.placed) for decided in made),
        retries=sum(decided.record.retries for decided in made),
        mean_decided_us=sum(times) / len(times),
        p99_decided_us=times[math.ceil(0.99 * len(times)) - 1],
    )


def _found(rows: Mapping[Name, Row], names: Iterable[Name]) -> dict[Name, Row]:
    """Those of the rows that are there."""
    return {name: row for name in names if (row := rows.get(name)) is not None}


def _update(rows: dict[Name, Row], changed: Mapping[Name, Row | None]) -> None:
    for name, row in changed.items():
        if row is None:
            rows.pop(name, None)
        else:
            rows[name] = row
