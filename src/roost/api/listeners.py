"""What this process has heard of machines, for what other processes have: exchanged through the store."""

from __future__ import annotations

import asyncio
import contextlib

from roost.agent.agent import Agent
from roost.duties.heartbeats import NOTE, Heard
from roost.model.errors import RoostError


class NoteExchange:
    """Exchanges notes in another thread, one at a time."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._exchanging: asyncio.Task[None] | None = None

    def __call__(self, told: bytes, keep: float, heard: Heard) -> None:
        """`heard` is called later, in this thread, with what others told; None: they could not be asked."""
        self._exchanging = asyncio.create_task(self._exchange(told, keep, heard))

    async def _exchange(self, told: bytes, keep: float, heard: Heard) -> None:
        notes = None
        try:
            with contextlib.suppress(RoostError):  # the next time will do
                notes = await asyncio.to_thread(self._agent.store.exchange, NOTE, self._agent.name, told, keep)
        finally:
            heard(notes)

    async def stop(self) -> None:
        """Exchange no more."""
        if self._exchanging is not None:
            self._exchanging.cancel()
            await asyncio.gather(self._exchanging, return_exceptions=True)
