"""Foresight at work: how often VMs come is read from the feed, and what that means is told to all agents.

What an operator has said comes instead of that; how many find room before each kind of machine is worked out anew.

One worker of a host does it. Where several hosts do, whoever is first tells, and the others find that it was told.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING

from roost.agent.verbs.entry import SetEntry
from roost.api.problems import Refused
from roost.duties.arrivals import ArrivalRates
from roost.model.errors import RoostError
from roost.model.foresight import NAME, Foresight, decode, encode, foresee, foresee_given
from roost.model.registry import FORESIGHT
from roost.store.contract import Store

if TYPE_CHECKING:
    from roost.api.service import Service

LOOK_BACK = 100_000  # revisions that a service which starts reads, to know what came before
ROWS = 16  # transactions of the feed that are read at once
IDLE_SECONDS = 600.0  # between looks whether it was turned on meanwhile
BY = "foresight"  # who asks, as the trail tells it


class Outlook:
    """What comes to the zone of a service, and what is to be expected."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._rates = ArrivalRates()
        self._read: int | None = None  # the last revision of the feed that is in the rates
        self._arrived = False  # something did, since it was last told
        self._heard: str | None = None  # what had been told when it was last looked at

    async def look(self) -> None:
        """Wait for the next time, then tell what is to be expected, unless nothing came or somebody else has."""
        service = self._service
        seconds = service.settings.agent.foresight_seconds if service.place == 0 else 0.0
        await asyncio.sleep(seconds or IDLE_SECONDS)
        if not seconds or service.down:
            return
        with contextlib.suppress(RoostError, Refused):  # the next time will do
            await self._follow()
            # Whether somebody else has told it since is seen from what is told; clocks differ, and may be set.
            told = service.agent.replica.registry.get((FORESIGHT, NAME))
            stale, self._heard = told == self._heard, told
            if stale and (self._arrived or told is None):
                await self._tell(decode(told))

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

    async def _tell(self, known: Foresight | None) -> None:
        from roost.api.service import new_key

        service, at = self._service, time.time()
        before = service.agent.replica.registry.get((FORESIGHT, NAME))
        allocator = service.agent.allocator
        rows, rates = allocator.view.machines.copy(), self._rates.per_hour(at)
        if known is not None and known.given:
            found = await asyncio.to_thread(foresee_given, allocator.zone, rows, known.given, at)
        elif rates:
            found = await asyncio.to_thread(foresee, allocator.zone, rows, rates, at)
        else:
            return
        text = encode(found)
        entry = SetEntry(FORESIGHT, NAME, text, new=before is None, instead_of=before)  # who else tells is right
        ticket = await service.submit(entry, new_key(), BY)
        self._arrived = ticket.answer is None or not ticket.answer.ok
        self._heard = before if self._arrived else text


def known_to(service: Service) -> Foresight | None:
    """What is foreseen at present, as far as a service has heard."""
    return decode(service.agent.replica.registry.get((FORESIGHT, NAME)))
