"""How long the event loop is held at once: what everybody who waits for it notices.

A clock that beats in the loop, and the time that the loop's thread has computed between two beats: what other
processes of the machine do meanwhile is not counted.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

BEAT_SECONDS = 0.005


class Pulse:
    """Beats for as long as the loop runs."""

    def __init__(self, loop: asyncio.AbstractEventLoop, noted: Callable[[float], None]) -> None:
        """`noted` hears of each time between two beats that is longer than it should be."""
        self._loop, self._noted = loop, noted
        self._last = 0.0
        self.most = 0.0  # seconds, since it was last set to zero

    def start(self) -> None:
        """Begin to beat."""
        self._last = time.thread_time()
        self._loop.call_later(BEAT_SECONDS, self._beat)

    def _beat(self) -> None:
        now = time.thread_time()
        held, self._last = now - self._last, now
        self.most = max(self.most, held)
        if held > BEAT_SECONDS:
            self._noted(held)
        self._loop.call_later(BEAT_SECONDS, self._beat)
