"""How a plan is carried out, in real and in virtual time: the steps of a move, and whose turn it is among the moves.

hold the target ──▶ copy the VM ──▶ finish: it runs there, and its old place is free
      │ no               │ no            │ no
      ▼                  └──────▶ cancel ◀┘: it runs where it ran, and the target is free
   nothing is to be done

waiting ──▶ its turn: all that it needs is made ──▶ under way ──▶ ended: made, or failed
    └─────▶ pointless: something that it needs has failed, or its machine is not emptied any more
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from typing import Literal

from roost.whatif.plan import PlannedMove

StepOfMove = Literal["hold", "copy", "finish", "cancel"]


def steps_of_move() -> Generator[StepOfMove, bool, bool]:
    """The steps of one move, each to be done and answered with whether it was; returns whether the VM was moved."""
    if not (yield "hold"):
        return False
    if (yield "copy") and (yield "finish"):
        return True
    yield "cancel"
    return False


class MovesInOrder:
    """The moves of one plan. Whoever carries them out says what came of each."""

    def __init__(self, moves: Iterable[PlannedMove]) -> None:
        self._waiting = {move.number: move for move in moves}
        self._under_way: dict[int, PlannedMove] = {}
        self._failed: set[int] = set()
        self._given_up: dict[str, int] = {}  # machines that are not emptied any more, and because of which move

    @property
    def busy(self) -> bool:
        """Whether some are not ended."""
        return bool(self._waiting or self._under_way)

    @property
    def given_up(self) -> Iterable[str]:
        """Machines that are not emptied any more."""
        return self._given_up.keys()

    def begin(
        self, at_once: int, skip: Callable[[PlannedMove, str], None], begun: Callable[[PlannedMove], bool]
    ) -> list[PlannedMove]:
        """The moves whose turn it is, so that no more than so many are under way.

        `skip` is told of those that are pointless, and why; `begun`: whether one was begun before: it is finished.
        """
        found = []
        for move in list(self._waiting.values()):
            if len(self._under_way) >= at_once:
                break
            if not begun(move) and (why := self._pointless(move)):
                del self._waiting[move.number]
                self.end(move, failed=True)
                skip(move, why)
            elif not any(number in self._waiting or number in self._under_way for number in move.after):
                self._under_way[move.number] = self._waiting.pop(move.number)
                found.append(move)
        return found

    def end(self, move: PlannedMove, *, failed: bool) -> None:
        """A move is made, or never will be: then nor are those that need it, nor is its machine emptied."""
        self._waiting.pop(move.number, None)
        self._under_way.pop(move.number, None)
        if failed:
            self._failed.add(move.number)
            self._given_up.setdefault(move.empties, move.number)

    def _pointless(self, move: PlannedMove) -> str:
        """Why a move that has not begun need not begin any more."""
        for number in move.after:
            if number in self._failed:
                return f"it needs move {number}, which was not made"
        if number := self._given_up.get(move.empties, 0):
            return f"{move.empties} is not emptied any more: move {number} was not made"
        return ""
