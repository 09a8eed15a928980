"""The duties of whoever has a time of its own: a simulated run, or a copy of a zone on which something is tried."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from roost.agent.agent import Agent
from roost.agent.ticket import Ticket
from roost.duties.arrivals import ArrivalRates
from roost.duties.duty import Roster
from roost.duties.table import Runner, make_roster
from roost.settings import Settings

# A machine that is repaired is trusted, however often it failed: in such a time, a repair is when somebody has looked
# at it. And whoever has a store in memory has it forget by itself, if at all.
SETTINGS = replace(
    Settings(),
    healing=replace(Settings().healing, flaps=0),
    retention=replace(Settings().retention, every_seconds=0.0),
)


class VirtualRoster(Roster):
    """The service's duties on a clock that goes on only when it is told to."""

    def __init__(
        self,
        agent: Agent,
        clock: Callable[[], float],
        noted: Callable[[Ticket], None],
        foresight: float = 0.0,
        arrivals: ArrivalRates | None = None,
    ) -> None:
        """`noted` hears of what duties asked for, once it is answered.

        `foresight`: seconds between two looks at what is to be expected, 0 for none; `arrivals`: what was counted.
        Failures fade by the same clock, so those that were dated by another one do not.
        """
        settings = replace(SETTINGS, agent=replace(SETTINGS.agent, foresight_seconds=foresight))
        runner = Runner(agent, settings, clock=clock, time_of_day=clock, noted=noted, counted=arrivals)
        super().__init__(make_roster(runner).duties)
