"""For how long a request that found no machines at first is tried in other ways: over several turns, if need be."""

import time
from collections.abc import Callable, Hashable

IN_VAIN = 2_000  # VMs that may be placed in vain for one request, before others have their turn
IN_ALL = 40_000  # and in all of its turns


class Search:
    """What was tried for a request so far, and whether more may be."""

    def __init__(
        self,
        in_turn: int = IN_ALL,
        in_all: int = IN_ALL,
        clock: Callable[[], float] = time.monotonic,
        seconds: float = float("inf"),
    ) -> None:
        """`in_turn`, `in_all`: VMs that may be placed in vain; `seconds`: that a turn may take."""
        self._in_turn, self._in_all, self._clock, self._seconds = in_turn, in_all, clock, seconds
        self._began, self._before, self._spent = 0.0, 0, 0  # the turn, and VMs placed in vain before it, and in all
        self.tried: tuple[int, ...] = ()  # units (see `TenantDesk.unit_of`) that turned out to be too small
        self.left = 0  # units that may have room and were not tried when the last turn ended
        self.dead: set[Hashable] = set()  # some VMs on machines after which the others find none; see `backtracking`
        self.cut = False  # there were other ways to place the VMs when the last turn ended

    def begin(self) -> None:
        """Have another turn."""
        self._began, self._before, self.left, self.cut = self._clock(), self._spent, 0, False

    def note(self, tried: tuple[int, ...], placed: int) -> bool:
        """So many VMs were placed in the last of these in vain; whether the turn is over."""
        self.tried = tried
        return self.spend(placed)

    def spend(self, placed: int) -> bool:
        """So many VMs were placed in vain, or what takes as long was done; whether the turn is over."""
        self._spent += placed
        late = self._clock() - self._began > self._seconds
        return late or self._spent - self._before >= self._in_turn

    @property
    def unfinished(self) -> str:
        """What was left untried when the last turn ended, for people; empty if nothing was."""
        if self.left:
            return f"{self.left:,} places that may have room for all were not tried"
        return "not every way to place them together was tried" if self.cut else ""

    @property
    def goes_on(self) -> bool:
        """Whether there is more to try, and another turn to do it in."""
        return (self.left > 0 or self.cut) and self._spent < self._in_all
