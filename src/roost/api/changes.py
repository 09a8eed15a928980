"""The feed for those outside: pages, and streams that wait for more.

A stream reads the store at its reader's pace, so a slow reader holds nobody up and costs one page of memory. What came
last is kept here, so that many readers at the end of the feed read the store once.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterable
from functools import partial
from typing import Protocol, TypeVar

import msgspec

from roost.agent.agent import Agent
from roost.api.problems import Refused
from roost.api.tokens import ANYBODY, Principal, TokenBook
from roost.model.change import Entry, Eviction, PlacedVM
from roost.model.errors import StoreUnavailable
from roost.model.registry import FAILURES
from roost.model.request import Placement
from roost.model.rows import MachineState
from roost.settings import Settings
from roost.store.contract import Store
from roost.store.feed import Feed
from roost.wire.changes import Changes, ChangeView, EvictionReason

KEPT = 2_000  # changes that readers at the end of the feed share
PAGE = 500  # changes a stream sends at once
ROWS = 8  # transactions of the feed that are read at once; each may hold some hundred changes
AWAY_SECONDS = 1.0  # before a stream looks again for a store that is away
BEAT_SECONDS = 10.0  # between signs of life of a stream that has nothing to tell

T = TypeVar("T")
_encode = msgspec.json.Encoder().encode


class HasFeed(Protocol):
    """The service, as far as readers of the feed need it."""

    agent: Agent
    closing: asyncio.Event
    settings: Settings
    tokens: TokenBook

    async def read(self, look: Callable[[Store], T]) -> T:
        """Something from the store, read in another thread."""


class ChangeLog:
    """What changed after a revision, from memory if it is recent, else from the store."""

    def __init__(self, service: HasFeed) -> None:
        self._service = service
        self._recent: deque[tuple[int, Entry]] = deque(maxlen=KEPT)
        self._reading = asyncio.Lock()
        self._woken = asyncio.Event()
        self._revision = 0  # the last that the agent has seen
        self._open = Counter[str]()  # streams, by the token that has them

    @property
    def streams(self) -> int:
        """How many are open."""
        return self._open.total()

    def take(self, principal: Principal) -> Callable[[], None]:
        """A place for one more stream, and how to give it back; refuses what is too much, for a token or in all."""
        limits, who = self._service.settings.limits, principal.name
        if principal is not ANYBODY and self._open[who] >= limits.streams_per_token:
            raise Refused("roost.rate_limited", f"{self._open[who]} streams of this token are open")
        if self.streams >= limits.streams:
            raise Refused("roost.overloaded", f"{self.streams} streams are open")
        self._open[who] += 1
        return partial(self._give_back, who)

    def _give_back(self, who: str) -> None:
        self._open[who] -= 1
        if not self._open[who]:
            del self._open[who]

    def wake(self) -> None:
        """The agent may have seen more."""
        revision = self._service.agent.replica.revision
        if revision != self._revision:
            self._revision = revision
            self._woken.set()
            self._woken = asyncio.Event()

    async def page(self, since: int, limit: int, principal: Principal) -> Changes:
        """Up to `limit` changes after a revision that this one may see."""
        entries = await self._after(since, limit)
        found = [view_of(number, entry, principal) for number, entry in entries]
        last = entries[-1][0] if entries else since
        head = max(self._service.agent.replica.revision, last if entries else 0)
        return Changes(items=[each for each in found if each], revision=last, head=head)

    async def _after(self, since: int, limit: int) -> list[tuple[int, Entry]]:
        recent = self._recent
        async with self._reading:
            if not recent or recent[0][0] > since + 1 or recent[-1][0] <= since:
                feed: Feed = await self._service.read(lambda store: store.changes(since, ROWS))
                if feed.reload:
                    raise Refused(
                        "roost.too_old", f"changes after revision {since} are forgotten; list, then follow from there"
                    )
                read = list(feed.after(since))
                if read and (not recent or read[0][0] > recent[-1][0]):
                    if recent and read[0][0] > recent[-1][0] + 1:
                        recent.clear()  # what lies between was read by nobody
                    recent.extend(read)
                return read[:limit]
        return [each for each in recent if each[0] > since][:limit]

    async def stream(self, since: int, principal: Principal) -> AsyncIterator[bytes]:
        """Server-sent events, one a change, for as long as somebody reads."""
        service = self._service
        yield b"retry: 1000\n\n"
        while not service.closing.is_set() and service.tokens.admits(principal, time.time()):
            woken = self._woken
            try:
                entries = await self._after(since, PAGE)
            except (Refused, StoreUnavailable) as error:
                if isinstance(error, Refused) and error.code == "roost.too_old":
                    yield b"event: problem\ndata: " + error.body() + b"\n\n"
                    return
                yield b": the store is away\n\n"
                await asyncio.sleep(AWAY_SECONDS)
                continue
            if entries:
                since = entries[-1][0]
                views = (view_of(number, entry, principal) for number, entry in entries)
                lines = [_event(view) for view in views if view]
                yield b"".join(lines) or _bookmark(since)
                continue
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(BEAT_SECONDS):
                    await _first(woken, service.closing)
                continue
            yield _bookmark(since)


async def _first(*events: asyncio.Event) -> None:
    """Until one of them happens."""
    waits = [asyncio.create_task(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()


def _event(view: ChangeView) -> bytes:
    return b"id: %d\nevent: change\ndata: %s\n\n" % (view.revision, _encode(view))


def _bookmark(revision: int) -> bytes:
    """Nothing for this reader up to here; it may go on from this revision."""
    return b'id: %d\nevent: bookmark\ndata: {"revision":%d}\n\n' % (revision, revision)


def view_of(revision: int, entry: Entry, principal: Principal) -> ChangeView | None:
    """A change as somebody may see it."""
    if principal.namespace and not (entry.tenant and principal.owns(entry.tenant)):
        return None
    # What made VMs give way is told; of whom that was, only those hear who may.
    hushed = entry.eviction is not None and not principal.owns(entry.eviction.tenant)
    return ChangeView(
        revision=revision,
        key="" if hushed else entry.key,
        by="" if hushed else entry.by,
        at=entry.at,
        tenant=entry.tenant,
        placed=_placements(entry.placed),
        released=_placements(entry.released),
        machines=[_condition(c.machine, c.field, c.before, c.after) for c in entry.conditions],
        clusters=[{"cluster": q.cluster, "before": q.before, "after": q.after} for q in entry.quarantines],
        added=[spec.name for spec in entry.added],
        removed=[spec.name for spec in entry.removed],
        registered=[
            f"{'removed' if each.after is None else 'set'} {each.kind} {each.name}"
            for each in entry.registered
            if each.kind != FAILURES  # what is counted is told of the machine
        ],
        eviction=_reason(entry.eviction, hushed) if entry.eviction else None,
    )


def _reason(eviction: Eviction, hushed: bool) -> EvictionReason:
    tenant = "" if hushed else eviction.tenant
    return EvictionReason(priority=eviction.priority, grace=eviction.grace, tenant=tenant)


def _placements(placed: Iterable[PlacedVM]) -> list[Placement]:
    return [Placement(vm=p.vm, type=p.spec.type, machine=p.machine) for p in placed]


def _condition(machine: str, field: str, before: int, after: int) -> dict[str, object]:
    if field == "state":
        names = {state.value: state.name.lower() for state in MachineState}
        return {"machine": machine, "field": field, "before": names[before], "after": names[after]}
    return {"machine": machine, "field": field, "before": before, "after": after}
