"""What is read from the store for a request: in other threads, within the time that an answer may take."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from roost.api.problems import Refused
from roost.api.store_watch import StoreWatch
from roost.model.errors import StoreBroken, StoreUnavailable
from roost.store.contract import Store

T = TypeVar("T")
READERS = 8  # threads that look things up in the store
SLOW_WAITING = 8  # snapshots and explanations of past decisions that may wait for their turn
SLOW_SECONDS = 120.0  # that these may take; clients wait as long


class StoreReader:
    """Threads that read a store, and how long somebody waits for them."""

    def __init__(self, loop: asyncio.AbstractEventLoop, watch: StoreWatch, closing: asyncio.Event) -> None:
        """`closing`: the service stops, so that nobody reads any more."""
        self._loop, self._watch, self._closing = loop, watch, closing
        self._quick = ThreadPoolExecutor(READERS, "roost-reader")
        self._slow = ThreadPoolExecutor(1, "roost-slow")  # one at a time: each holds a copy of the zone
        self._slow_waiting = 0

    async def read(self, look: Callable[[Store], T], seconds: float) -> T:
        """Something that is looked up."""
        return await self._look(self._quick, look, seconds)

    async def read_slowly(self, look: Callable[[Store], T], seconds: float) -> T:
        """Something that takes a copy of the whole zone; one at a time. Refuses if too many wait."""
        if self._slow_waiting >= SLOW_WAITING:
            raise Refused("roost.overloaded", f"{self._slow_waiting} others wait for a copy of the zone")
        self._slow_waiting += 1
        try:
            return await self._look(self._slow, look, max(SLOW_SECONDS, seconds))
        finally:
            self._slow_waiting -= 1

    async def _look(self, pool: ThreadPoolExecutor, look: Callable[[Store], T], seconds: float) -> T:
        try:
            return await self.in_time(self._loop.run_in_executor(pool, look, self._watch.store), seconds)
        except StoreBroken:
            raise  # of what is there, something cannot be read
        except StoreUnavailable as error:
            self._watch.went_away(str(error))
            raise

    async def in_time(self, reading: asyncio.Future[T], seconds: float) -> T:
        """What comes in the time that an answer may take, and before the store goes away: nobody waits for ever."""
        leaving = self._watch.leaving
        try:
            await asyncio.wait((reading, leaving), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            if reading.done() and not reading.cancelled():
                return reading.result()
        finally:
            reading.cancel()
        if self._closing.is_set():  # nobody reads any more
            raise Refused("roost.store_unavailable", "the service stops")
        if leaving.done():
            raise Refused("roost.store_unavailable", self._watch.down or "the store went away")
        raise Refused("roost.timeout", "the store did not answer in time")

    def stop(self) -> None:
        """Read no longer."""
        for pool in (self._slow, self._quick):
            pool.shutdown(wait=False, cancel_futures=True)
