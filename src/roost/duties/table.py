"""Every duty, once: what it is for, and how one is made for whoever runs it.

The service and the JSON-lines worker make their rosters from this list; a new duty is its own file and one line here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from roost.agent.agent import Agent
from roost.agent.ticket import Ticket
from roost.duties.duty import Duty, Roster
from roost.duties.fading import Fading
from roost.duties.healing import Healer
from roost.duties.heartbeats import Exchange, Heartbeats
from roost.duties.requeue import Requeue
from roost.settings import Settings


@dataclass(frozen=True)
class Runner:
    """Who runs duties, and what they need of it."""

    agent: Agent
    settings: Settings
    clock: Callable[[], float]  # seconds that only go on
    time_of_day: Callable[[], float]  # seconds since 1970
    noted: Callable[[Ticket], None] = lambda _: None  # hears of what duties asked for, once it is answered
    healing_delay: float = 0.0  # seconds that it leaves to other workers' healers before it begins
    listens: bool = False  # machines send their heartbeats here
    exchange: Exchange | None = None  # tells other listeners what was heard here, if there may be any


def _requeue(runner: Runner) -> Duty | None:
    """Places again what had to give way; turned off by a pause of 0."""
    patience = runner.settings.agent.requeue_seconds
    return Requeue(runner.agent, runner.clock, runner.noted, patience=patience) if patience else None


def _heartbeats(runner: Runner) -> Duty | None:
    """Takes machines that fall silent for down, where they are listened to."""
    patience = runner.settings.healing.heartbeat_seconds
    if not (runner.listens and patience):
        return None
    return Heartbeats(runner.agent, runner.clock, patience, runner.exchange)


def _healing(runner: Runner) -> Duty:
    """Places again what is on machines that are down."""
    healing = runner.settings.healing
    return Healer(runner.agent, runner.clock, healing.retry_seconds, healing.flaps, runner.healing_delay, runner.noted)


def _fading(runner: Runner) -> Duty:
    """Has failures counted again as they fade."""
    return Fading(runner.agent, runner.time_of_day)


# In the order in which they have their turns: what falls silent is healed in the same round.
DUTIES: list[Callable[[Runner], Duty | None]] = [_requeue, _heartbeats, _healing, _fading]


def make_roster(runner: Runner) -> Roster:
    """The duties of a runner, those that it has."""
    return Roster([duty for make in DUTIES if (duty := make(runner)) is not None])
