"""Failures that were counted weigh less as time goes by: who notices, and asks for them to be counted again.

Every process does; the store works out what is left as of the time it is told, so it is all the same who comes first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from roost.agent.verbs.failures import CountFailures
from roost.duties.duty import SimpleDuty
from roost.model.failures import read_entry
from roost.model.registry import FAILURES

if TYPE_CHECKING:
    from roost.agent.agent import Agent
    from roost.agent.registry import Registry

BY = "fading"  # who asks, as the trail tells it
LOOK_SECONDS = 300.0  # between two looks
AT_ONCE = 100  # machines that are asked for after one look; more have time until the next


def faded(registry: Registry, now: float) -> Iterator[str]:
    """The machines of which fewer failures count by now, in seconds since 1970, than rows say."""
    return (machine for machine, value in registry.of(FAILURES).items() if read_entry(value).fewer_at < now)


class Fading(SimpleDuty):
    """Looks now and then, through an agent."""

    name, period = "fading", LOOK_SECONDS

    def __init__(self, agent: Agent, time_of_day: Callable[[], float]) -> None:
        """`time_of_day`: seconds since 1970, by which failures are dated."""
        self._agent, self._time_of_day = agent, time_of_day

    def step(self, now: float) -> None:
        """Have failures counted again where fewer count by now."""
        del now  # what fades is dated by the time of day
        found = faded(self._agent.replica.registry, self._time_of_day())
        for machine, _ in zip(list(found), range(AT_ONCE), strict=False):
            self._agent.submit(CountFailures(machine), by=BY)
