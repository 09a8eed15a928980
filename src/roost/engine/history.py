"""What undoes the recent changes of a view: a bounded history, which forgets nothing while an attempt is open."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

Change = tuple[str, int, Any]  # what, the row it changes (or of many, how many), and a shape, a row or the new value
MANY = "many"  # changes that were made at once, each of which is a revision


class History:
    """For each recent change, the revision before it and the change that undoes it; the oldest are forgotten."""

    __slots__ = ("_count", "_kept", "_notes", "attempting", "reach")

    def __init__(self, kept: int) -> None:
        """`kept`: how many changes may be undone; a note may be of many."""
        self._notes: deque[tuple[int, Change]] = deque()
        self._kept, self._count = kept, 0
        self.reach = 0  # the oldest revision that can still be rebuilt
        self.attempting = False  # all may have to be undone, so nothing is forgotten

    def note(self, before: int, undo: Change) -> None:
        """A change was made at a revision."""
        self._notes.append((before, undo))
        self._count += 1 if undo[0] != MANY else undo[1]
        if self._count > self._kept and not self.attempting:
            self._forget()

    def keep(self) -> None:
        """What was attempted is not to be undone."""
        self.attempting = False
        if self._count > self._kept:
            self._forget()

    def _forget(self) -> None:
        while self._count > self._kept:
            before, undone = self._notes.popleft()
            self._count -= _weight(undone)
            self.reach = before + _weight(undone)

    @property
    def last(self) -> int:
        """The revision before the last change that is kept; -1 if none is."""
        return self._notes[-1][0] if self._notes else -1

    def back_to(self, revision: int) -> Iterator[Change]:
        """What undoes every change since a revision, the last one first."""
        for before, undo in reversed(self._notes):
            if before < revision:
                return
            yield undo

    def taken_back_to(self, revision: int) -> Iterator[Change]:
        """The same; they are forgotten as they are undone."""
        while self._notes and self._notes[-1][0] >= revision:
            _, undo = self._notes.pop()
            self._count -= _weight(undo)
            yield undo


def _weight(undo: Change) -> int:
    """How many revisions a change is."""
    return undo[1] if undo[0] == MANY else 1
