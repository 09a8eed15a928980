"""Who waits for its turn at an agent: the many small operations, what the agent asks for itself, and large ones.

A large one has a round of its own. While small ones keep coming, there is one such round at a time, and then none for
longer than it took, from its decision to its answer. What the agent's own duties ask for (healing, placing again) may
be much at once: it takes turns with what others ask for, round by round.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator

from roost.agent.ticket import Ticket

REST = 1.5  # how long small ones have after a large one, as a share of what it took
QUIET_SECONDS = 0.02  # without small ones, after which large ones follow each other


class Lines:
    """Three lines, and whose turn it is."""

    def __init__(self, clock: Callable[[], float], group: int) -> None:
        """`group`: how many small ones a round takes."""
        self._clock, self._group = clock, group
        self.small: deque[Ticket] = deque()
        self.large: deque[Ticket] = deque()
        self.duties: deque[Ticket] = deque()
        self._last: deque[Ticket] = self.duties  # that had its turn, of this one and the small ones
        self._last_small = -math.inf  # when one came
        self._round: int | None = None  # of a large one that is under way
        self._began = 0.0  # that one
        self._next = 0.0  # when the next large one may come between small ones, if some have come between
        self._some_between = True

    def join(self, ticket: Ticket, *, large: bool, first: bool = False) -> None:
        """Wait for one's turn; `first`: before all others."""
        line = self.large if large else self.duties if ticket.duty else self.small
        if first:
            line.appendleft(ticket)
            return
        line.append(ticket)
        if line is self.small:
            self._last_small = self._clock()

    def turn(self) -> tuple[deque[Ticket], int]:
        """Whose turn it is, and how many of them a round takes."""
        other = self.duties if self._last is self.small else self.small
        many = other or self._last  # the other one of the two, if somebody waits there
        if not self.large:
            return many, self._group
        now = self._clock()
        quiet = not (self.small or self.duties) and now >= self._last_small + QUIET_SECONDS
        rested = self._round is None and now >= self._next
        if quiet or (rested and (self._some_between or not (self.small or self.duties))):
            return self.large, 1
        return many, self._group

    @property
    def large_at(self) -> float:
        """When it is the turn of a large one, if it waits for nothing but time."""
        if not self.large or self.small or self.duties:
            return math.inf
        quiet = self._last_small + QUIET_SECONDS  # the very sum that `turn` goes by
        return quiet if self._round is not None else min(quiet, self._next)

    def had(self, line: deque[Ticket], round_: int | None, began: float) -> None:
        """A line has just had its turn. `round_`: the round that is on its way to the store since then, if any is."""
        self._some_between = line is not self.large
        if self._some_between:
            self._last = line
            return
        self._began, self._round = began, round_
        if round_ is None:
            self.rest(began)

    def rest(self, since: float) -> None:
        """Something has taken long: it is not the turn of a large one for a while."""
        now = self._clock()
        self._next = max(self._next, now + REST * (now - since))

    def answered(self, round_: int) -> None:
        """What was under way is answered."""
        if round_ == self._round:
            self._round = None
            self.rest(self._began)

    @property
    def many(self) -> int:
        """How many wait of those that share rounds."""
        return len(self.small) + len(self.duties)

    def __bool__(self) -> bool:
        return bool(self.small or self.duties or self.large)

    def __len__(self) -> int:
        return len(self.small) + len(self.duties) + len(self.large)

    def __iter__(self) -> Iterator[Ticket]:
        yield from self.small
        yield from self.duties
        yield from self.large
