"""Conflict avoidance: the more commits are lost, the more often an agent does not insist on the best.

Protean (§5.3) then draws at random among the best 100, with a probability equal to the share of commits that were lost.
Here an agent keeps to machines of its own instead: of the best 100 it takes the one it likes most, which is another one
for every agent, until that is full. So agents stay apart, and still fill machines up.
"""

from __future__ import annotations

from collections import deque

import msgspec
import numpy as np

from roost.engine.choice import BEST, MOST_AMONG, AmongBest, Choice, Favourite
from roost.model.errors import InvalidInput
from roost.model.random_state import restore, state_of

EAGERNESS = 10  # how many times likelier than a conflict it is that an agent keeps to its own machines


class AvoidanceMemory(msgspec.Struct, frozen=True):
    """How the last commits ended, the lot that is next, and the state of the random numbers after it."""

    recent: list[bool]
    lot: float
    random: dict[str, str]


class Avoidance:
    """How to choose machines, by how many of the last commits were lost."""

    def __init__(self, top: int = 100, window: int = 50, seed: int = 0, *, favourites: bool = True) -> None:
        """`top`: among how many machines to choose; 1 turns it off. Without `favourites` it is Protean's."""
        if not 1 <= top <= MOST_AMONG:
            raise InvalidInput("top", f"is {top}", f"use 1 (off) to {MOST_AMONG:,}")
        if window < 1:
            raise InvalidInput("window", f"is {window}", "use at least 1")
        self._eagerness = EAGERNESS if favourites else 1
        self._apart: Choice = BEST if top == 1 else Favourite(top) if favourites else AmongBest(top)
        self._recent: deque[bool] = deque(maxlen=window)
        self._conflicts = 0
        self._random = np.random.default_rng(seed)
        self._lot = self._random.random()

    @property
    def ratio(self) -> float:
        """Conflicts per commit attempt, lately."""
        return self._conflicts / len(self._recent) if self._recent else 0.0

    def note(self, conflict: bool) -> None:
        """Remember how a commit ended."""
        if len(self._recent) == self._recent.maxlen:
            self._conflicts -= self._recent[0]
        self._recent.append(conflict)
        self._conflicts += conflict

    def draw(self) -> Choice:
        """How to choose this time; the same until something was placed so and `next_lot` is called."""
        if not self._conflicts or self._lot >= self._eagerness * self.ratio:
            return BEST
        return self._apart

    def next_lot(self) -> None:
        """Something is to be placed as it was drawn. Without conflicts no lot was drawn for it."""
        if self._conflicts and self._apart is not BEST:
            self._lot = self._random.random()

    def memory(self) -> AvoidanceMemory:
        """All that the next draws depend on."""
        return AvoidanceMemory(list(self._recent), self._lot, state_of(self._random))

    def recall(self, memory: AvoidanceMemory) -> None:
        """Go on from there."""
        self._recent.clear()
        self._recent.extend(memory.recent)
        self._conflicts, self._lot = sum(memory.recent), memory.lot
        restore(self._random, memory.random)
