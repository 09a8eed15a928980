"""Work that takes long, done in the event loop a slice at a time, between the requests.

    explain, refusal, why-not ─▶ errand ─▶ slot ─▶ slice ─▶ rest: requests ─▶ slice ─▶ … ─▶ done, or cut short
                                   └── too many wait: refused

A thread would hold everybody up more: Python's lock changes hands only so often, and every callback of the loop would
wait for it. So an errand is a generator (see `roost.engine.steps`) that works on a copy of its own.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

from roost.api.problems import Refused
from roost.engine.steps import CutShort, Steps

T = TypeVar("T")
SLOTS = 2  # errands that are done at once; each has a copy of the zone
MOST_WAITING = 64  # errands that may wait for a slot
SLICE_SECONDS = 0.003  # that an errand has, before requests have their turn; a single step may take longer
REST = 6.0  # how much longer than a slice the requests have, while there are any
WAIT_SECONDS = 10.0  # for a slot, before an errand is given up


class Errands:
    """The slots of one event loop."""

    def __init__(self, busy: Callable[[], bool]) -> None:
        """`busy`: whether there are requests that want the loop, too."""
        self._busy, self._slots = busy, asyncio.Semaphore(SLOTS)
        self.waiting = 0
        self.cut_short = 0  # errands that took too long, so far
        self.refused = 0  # errands that nobody had time for, so far

    async def run(self, begin: Callable[[], Steps[T]], seconds: float, patience: float = WAIT_SECONDS) -> T:
        """Do an errand, for as long as it may compute; then it tells what it has, or raises CutShort.

        It begins when there is a slot for it. Raises Refused if there is none for as long as its `patience` lasts.
        """
        if self.waiting >= MOST_WAITING:
            self.refused += 1
            raise Refused("roost.overloaded", f"{self.waiting} others wait to be explained")
        self.waiting += 1
        try:
            async with asyncio.timeout(patience):
                await self._slots.acquire()
        except TimeoutError:
            self.refused += 1
            raise Refused("roost.overloaded", "others took too long to be explained") from None
        finally:
            self.waiting -= 1
        try:
            return await self._work(begin(), seconds)
        finally:
            self._slots.release()

    async def _work(self, work: Steps[T], seconds: float) -> T:
        spent = 0.0
        try:
            while True:
                began = time.perf_counter()
                took = 0.0
                while took <= SLICE_SECONDS:
                    next(work)
                    took = time.perf_counter() - began
                spent += took
                if spent > seconds:
                    self.cut_short += 1
                    work.throw(CutShort())
                    raise AssertionError("what was cut short goes on")
                await asyncio.sleep(REST * took if self._busy() else 0.0)
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]
        finally:
            work.close()
