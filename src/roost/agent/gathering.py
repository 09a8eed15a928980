"""When what waits is worth a round.

A commit costs nearly the same whatever its size, so where there is much to do, rounds should be large. One that would
be small waits for the answer of the one under way; and as whoever was just answered probably asks again, it waits for
them, too, for a part of the time that their commit took. Where requests come one by one, nobody waits. See decision 55.
"""

from __future__ import annotations

import math
from collections import deque

from roost.agent.context import Context
from roost.agent.ticket import Ticket
from roost.agent.under_way import UnderWay

LONGEST_WAIT = 0.01  # seconds, for those who were just answered


class Gathering:
    """Whether to decide what has come, or to wait for more."""

    def __init__(self, context: Context, under_way: UnderWay) -> None:
        self._context, self._under_way = context, under_way
        # Of the last round that the store has answered: until when, and for how many, to wait for another one.
        self._callers, self._until = 0, -math.inf

    def answered(self, requests: int, seconds: float) -> None:
        """The store has answered a round of so many requests, after so long: all of them may ask again at once."""
        context = self._context
        self._callers = min(requests + self._under_way.lines.many, context.settings.group)
        self._until = context.clock() + min(context.settings.patience * seconds, LONGEST_WAIT)

    @property
    def full(self) -> bool:
        """Whether as many rounds are under way as may be."""
        return len(self._under_way.rounds) >= self._context.settings.pipeline

    @property
    def due_in(self) -> float:
        """Seconds until the next round is worth it, whosever turn it is."""
        return self.ripe_in(self._under_way.lines.turn()[0])

    def ripe_in(self, line: deque[Ticket]) -> float:
        """Seconds until what waits in a line is worth a round; infinitely many if that has to wait for an answer."""
        lines = self._under_way.lines
        if not line or self.full:
            return math.inf
        if line is lines.large:
            return 0.0
        if self._under_way.rounds:
            return 0.0 if lines.many >= self._context.settings.enough else math.inf
        return 0.0 if lines.many >= self._callers else max(0.0, self._until - self._context.clock())
