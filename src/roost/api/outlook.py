"""Foresight at work: how often VMs come is read from the feed, and what that means is told to all agents.

One worker of a host does it. Where several hosts do, whoever is first tells, and the others find that it was told.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING

import msgspec

from roost.agent.foresight import KIND, NAME, ArrivalRates, decode, foresee
from roost.api.problems import Refused
from roost.model.errors import RoostError
from roost.store.contract import Store

if TYPE_CHECKING:
    from roost.api.service import Service

LOOK_BACK = 100_000  # revisions that a service which starts reads, to know what came before
ROWS = 16  # transactions of the feed that are read at once
IDLE_SECONDS = 600.0  # between looks whether it was turned on meanwhile
FRESH = 0.9  # of the time between two: what was told later than this is not told again
BY = "foresight"  # who asks, as the trail tells it


class Outlook:
    """What comes to the zone of a service, and what is to be expected."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._rates = ArrivalRates()
        self._read: int | None = None  # the last revision of the feed that is in the rates
        self._arrived = False  # something did, since it was last told

    async def look(self) -> None:
        """Wait for the next time, then tell what is to be expected, unless nothing came or somebody else has."""
        service = self._service
        seconds = service.settings.agent.foresight_seconds if service.place == 0 else 0.0
        await asyncio.sleep(seconds or IDLE_SECONDS)
        if not seconds or service.down:
            return
        with contextlib.suppress(RoostError, Refused):  # the next time will do
            await self._follow()
            if self._arrived and not self._told(time.time() - FRESH * seconds):
                await self._tell()

    async def _follow(self) -> None:
        """Read on in the feed, a little at a time: others read the store, too."""
        while await asyncio.to_thread(self._read_on, self._service.store):
            await asyncio.sleep(0)

    def _read_on(self, store: Store) -> bool:
        """Whether there may be more."""
        head, trimmed = store.head()
        start = max(head - LOOK_BACK if self._read is None else self._read, trimmed)
        feed = store.changes(start, ROWS)
        for number, entry in feed.after(start):
            self._rates.note(entry)
            self._arrived |= bool(entry.placed)
            self._read = number
        return bool(feed.rows)

    def _told(self, since: float) -> bool:
        known = decode(self._service.agent.replica.registry.get((KIND, NAME)))
        return known is not None and known.at > since

    async def _tell(self) -> None:
        from roost.api.service import new_key

        service, at = self._service, time.time()
        allocator = service.agent.allocator
        rows, rates = allocator.view.machines.copy(), self._rates.per_hour(at)
        found = await asyncio.to_thread(foresee, allocator.zone, rows, rates, at)
        ticket = await service.enter(KIND, NAME, msgspec.json.encode(found).decode(), new_key(), BY)
        self._arrived = ticket.answer is None or not ticket.answer.ok
