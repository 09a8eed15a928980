"""The duties of the service in virtual time: healing, placing again, fading, as the first agent of a run sees to them.

    the feed brings something ──▶ the first agent has taken it in ──▶ roster.step ──▶ it is asked for what is to be done
                                            ▲                            │
                                            └──── a tick later ◀── not at rest: somebody may find room by then

One roster is enough. Duties look at a copy of the zone and ask through an agent; a second one would find the same to
do, and the store would let one of them do it. In the service further healers wait for the first; here nobody dies.

A run in which nothing fails, gives way or is foreseen takes a step whenever a duty with a period is due, and no more.
What was done is heard of by the feed, like everything else. A roster that begins anew, after a checkpoint, finds all it
needs in the store, as that of a service does which was restarted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from roost.agent.agent import Agent
from roost.agent.ticket import Ticket
from roost.duties.arrivals import ArrivalRates
from roost.duties.foresight import Forecaster
from roost.duties.virtual import VirtualRoster
from roost.sim.events import TICK, Events
from roost.sim.virtual import Clock

TICK_SECONDS = 1.0  # between two steps while somebody waits for its turn: the pause between two tries of one VM


class VirtualDuties:
    """The roster of the first agent, and when it has its turns."""

    def __init__(
        self,
        agent: Agent,
        clock: Clock,
        events: Events,
        noted: Callable[[Ticket], None],
        foresight: float,
        arrivals: ArrivalRates,
    ) -> None:
        """`noted` hears of what duties asked for, once it is answered.

        `foresight`: seconds between two looks at what is to be expected, 0 for none; `arrivals`: what the run counts.
        """
        self._agent, self._clock, self._events = agent, clock, events
        self.roster = VirtualRoster(agent, clock, noted, foresight, arrivals)
        self.forecaster = self.roster.find(Forecaster)
        self._stirred: deque[int] = deque()  # revisions that may be of interest and were not looked at, in their order
        self._next = clock.now  # when the next tick is
        events.at(clock.now, TICK)

    def stir(self, revision: int) -> None:
        """Something that concerns them is in the feed at a revision."""
        self._stirred.append(revision)

    @property
    def stirred(self) -> bool:
        """Whether there is something that they have not looked at, if only on its way to the agent."""
        return bool(self._stirred)

    @property
    def due(self) -> bool:
        """Whether the agent has taken in some of it: more may always be on its way."""
        return bool(self._stirred) and self._stirred[0] <= self._agent.replica.revision

    def step(self) -> bool:
        """Let them look; whether the agent has something to do then."""
        now = self._clock.now
        while self.due:
            self._stirred.popleft()
        self.roster.step(now)
        if not self.roster.at_rest:
            self._tick_at(now + TICK_SECONDS)
        else:
            self._tick_at(self.roster.next_due)
        return bool(self._agent.waiting)

    def _tick_at(self, at: float) -> None:
        """Look again then, unless it will be before."""
        if not self._clock.now < self._next <= at:
            self._next = at
            self._events.at(at, TICK)
