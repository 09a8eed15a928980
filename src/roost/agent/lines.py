"""Who waits for its turn at an agent: the many small operations, and large ones, for which all the others would wait.

A large one has a round of its own. While small ones keep coming, there is one such round at a time, and then none for
as long as it took, from its decision to its answer.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from roost.agent.agent import Ticket

QUIET_SECONDS = 0.02  # without small ones, after which large ones follow each other


class Lines:
    """Two lines, and whose turn it is."""

    def __init__(self, clock: Callable[[], float], group: int) -> None:
        """`group`: how many small ones a round takes."""
        self._clock, self._group = clock, group
        self.small: deque[Ticket] = deque()
        self.large: deque[Ticket] = deque()
        self._last_small = -math.inf  # when one came
        self._round: int | None = None  # of a large one that is under way
        self._began = 0.0  # that one
        self._next = 0.0  # when the next large one may come between small ones, if some have come between
        self._some_between = True

    def join(self, ticket: Ticket, *, large: bool, first: bool = False) -> None:
        """Wait for one's turn; `first`: before all others."""
        line = self.large if large else self.small
        if first:
            line.appendleft(ticket)
            return
        line.append(ticket)
        if not large:
            self._last_small = self._clock()

    def turn(self) -> tuple[deque[Ticket], int]:
        """Whose turn it is, and how many of them a round takes."""
        if not self.large:
            return self.small, self._group
        now = self._clock()
        quiet = not self.small and now - self._last_small >= QUIET_SECONDS
        rested = self._round is None and now >= self._next
        if quiet or (rested and (self._some_between or not self.small)):
            return self.large, 1
        return self.small, self._group

    def had(self, line: deque[Ticket], round_: int | None, began: float) -> None:
        """A line has had its turn; `round_`: what came of it is under way, unless that is nothing."""
        self._some_between = line is self.small
        if line is self.large:
            self._began = began
            self._round = round_
            if round_ is None:
                self.rest(began)

    def rest(self, since: float) -> None:
        """Something has taken long: it is not the turn of a large one for as long."""
        self._next = max(self._next, 2 * self._clock() - since)

    def answered(self, round_: int) -> None:
        """What was under way is answered."""
        if round_ == self._round:
            self._round = None
            self.rest(self._began)

    def __bool__(self) -> bool:
        return bool(self.small or self.large)

    def __len__(self) -> int:
        return len(self.small) + len(self.large)

    def __iter__(self) -> Iterator[Ticket]:
        yield from self.small
        yield from self.large
