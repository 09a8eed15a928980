"""Failures that were counted weigh less as time goes by: who notices, and asks for them to be counted again.

Every process does; the store works out what is left as of the time it is told, so it is all the same who comes first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from roost.agent.operation import CountFailures
from roost.model.failures import KIND, read_entry

if TYPE_CHECKING:
    from roost.agent.agent import Agent
    from roost.agent.registry import Registry

BY = "fading"  # who asks, as the trail tells it
LOOK_SECONDS = 300.0  # between two looks
AT_ONCE = 100  # machines that are asked for after one look; more have time until the next


def faded(registry: Registry, now: float) -> Iterator[str]:
    """The machines of which fewer failures count by now, in seconds since 1970, than rows say."""
    return (machine for machine, value in registry.of(KIND).items() if read_entry(value).fewer_at < now)


class Fading:
    """Looks now and then, through an agent. Call `step` between the agent's own."""

    def __init__(self, agent: Agent, clock: Callable[[], float], now: Callable[[], float]) -> None:
        """`clock`: seconds that only go on; `now`: seconds since 1970."""
        self._agent, self._clock, self._now = agent, clock, now
        self._next = clock()

    def step(self) -> None:
        """Have failures counted again where fewer count by now."""
        if self._clock() < self._next:
            return
        self._next = self._clock() + LOOK_SECONDS
        found = faded(self._agent.replica.registry, self._now())
        for machine, _ in zip(list(found), range(AT_ONCE), strict=False):
            self._agent.submit(CountFailures(machine), by=BY)
