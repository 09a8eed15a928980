"""What is to happen in a run, in the order of its time."""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import Any

from roost.sim.virtual import NEVER, Clock

# What happens, in the order in which it does at one moment; arrivals come after departures, a sample after both.
(
    LEAVE, COMMIT, LOOK, FAIL, FAIL_RACK, OUTAGE, REPAIR, DRAIN, RESUME, SWITCH, MIGRATE, COPIED, TICK,
    ARRIVE, SAMPLE,
) = range(15)  # fmt: skip
Event = tuple[float, int, int, Any]  # time, what, number, about what


class Events:
    """A queue of events. Those of one moment come in the order of the list above, then as they were put in."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.heap: list[Event] = []
        self.number = 0  # of events so far, to tell apart those of one moment

    def at(self, time: float, what: int, about: Any = None) -> None:
        """Let something happen then."""
        self.number += 1
        heappush(self.heap, (time, what, self.number, about))

    def after(self, seconds: float, what: int, about: Any = None) -> None:
        """Let something happen so much later."""
        self.at(self._clock.now + seconds, what, about)

    @property
    def soonest(self) -> float:
        """When the next one is."""
        return self.heap[0][0] if self.heap else NEVER

    def take(self) -> tuple[int, Any]:
        """What the next one is, and about what: its time has come."""
        self._clock.now, what, _, about = heappop(self.heap)
        return what, about

    def restore(self, events: list[Event], number: int) -> None:
        """Go on with these."""
        self.heap[:] = events
        heapify(self.heap)
        self.number = number
