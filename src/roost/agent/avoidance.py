"""Conflict avoidance (Protean §5.3): the more commits are lost, the more often an agent does not insist on the best."""

from __future__ import annotations

from collections import deque

import numpy as np

from roost.engine.selection import LARGEST_TOP
from roost.model.errors import InvalidInput


class Avoidance:
    """Draws among the top N with a probability equal to the share of conflicts among the last commits."""

    def __init__(self, top: int = 100, window: int = 50, seed: int = 0) -> None:
        """`top` 1 turns it off."""
        if not 1 <= top <= LARGEST_TOP:
            raise InvalidInput("top", f"is {top}", f"use 1 (off) to {LARGEST_TOP:,}")
        if window < 1:
            raise InvalidInput("window", f"is {window}", "use at least 1")
        self.top = top
        self._recent: deque[bool] = deque(maxlen=window)
        self._conflicts = 0
        self._random = np.random.default_rng(seed)

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

    def draw(self) -> int:
        """Among how many machines to draw this time."""
        return self.top if self._conflicts and self._random.random() < self.ratio else 1
