"""Whether the store answers and can be written: who notices that it went away, and tries until it is back.

answers ──▶ down: nothing is asked of it ──▶ tried every half second ──▶ answers
   └──────▶ unwritable: it is only read  ──▶ tried every half second ──▶ answers
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import structlog

from roost.api.aside import aside
from roost.model.errors import RoostError, StoreUnavailable
from roost.store.contract import Store

PROBE_SECONDS = 0.5  # between attempts to reach a store that is away
ANSWER_SECONDS = 3.0  # without an answer, after which a store is away

log = structlog.get_logger()


class StoreWatch:
    """What is known of the store's health."""

    store: Store  # once it is open

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.on = False  # whether it is watched: it is open, and not let go of
        self.down = ""  # why the store cannot be used just now
        self.unwritable = ""  # why nothing can be written to it just now, though it may be read
        self.leaving: asyncio.Future[None] = loop.create_future()  # done when the store goes away
        self._probing: asyncio.Task[None] | None = None
        self._asked: asyncio.Future[tuple[int, int]] | None = None  # of the store, how far its feed goes
        # A store that hangs keeps this thread for a while. Nobody else is to wait for it.
        self._prober = ThreadPoolExecutor(1, "roost-prober")

    async def head(self) -> tuple[int, int]:
        """How far the feed goes, asked by one thread and for a short time: so it tells that a store hangs."""
        if self._asked is None or self._asked.done():
            self._asked = self._loop.run_in_executor(self._prober, self.store.head)
        asked = self._asked
        await asyncio.wait((asked,), timeout=ANSWER_SECONDS)
        if not asked.done():
            raise StoreUnavailable(f"the store has not answered for {ANSWER_SECONDS:g} s")
        return asked.result()

    def went_away(self, why: str) -> None:
        """The store cannot be reached: refuse at once, until it can."""
        if not self.down and self.on:
            self.down = why
            log.error("the store went away", detail=why)
            self.leaving.set_result(None)
            self.leaving = self._loop.create_future()
            self._probe_on()

    def cannot_write(self, why: str) -> None:
        """Something could not be committed: refuse to write at once, until it works; what can be read is read."""
        if not self.unwritable and self.on:
            self.unwritable = why
            log.error("the store cannot be written", detail=why)
            self._probe_on()

    def _probe_on(self) -> None:
        if self._probing is None or self._probing.done():
            self._probing = asyncio.create_task(self._probe())

    async def _probe(self) -> None:
        """Until the store answers and can be written."""
        while self.down or self.unwritable:
            try:
                await self._try_reading()
                if self.unwritable and not self.down:
                    await self._try_writing()
            except Exception:  # a bug must not end this: nobody else would find that the store is well
                log.exception("the store could not be tried")
            await asyncio.sleep(PROBE_SECONDS)

    async def _try_reading(self) -> None:
        try:
            await self.head()
            if self.down:
                self.down = ""
                log.info("the store is back")
        except RoostError as error:
            self.went_away(str(error))
            self.down = str(error)

    async def _try_writing(self) -> None:
        try:
            # Not by the one who asks how far the feed goes: on a disk that hangs, what can be read is read.
            await aside(self.store.try_writing)
            self.unwritable = ""
            log.info("the store can be written again")
        except RoostError as error:
            self.unwritable = str(error)

    async def stop(self) -> None:
        """Watch no longer."""
        self.on = False
        if self._probing is not None:
            self._probing.cancel()
            await asyncio.gather(self._probing, return_exceptions=True)
        self._prober.shutdown(wait=False, cancel_futures=True)
