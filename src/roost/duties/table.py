"""Every duty, once: what it is for, and how one is made for whoever runs it.

The service, the JSON-lines worker, the simulator and what-if make their rosters from this list; a new duty is its own
file and one line here.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass

from roost.agent.agent import Agent
from roost.agent.ticket import Ticket
from roost.duties.arrivals import ArrivalRates
from roost.duties.duty import Duty, Roster
from roost.duties.fading import Fading
from roost.duties.foresight import Forecaster
from roost.duties.healing import Healer
from roost.duties.heartbeats import Heartbeats
from roost.duties.requeue import Requeue
from roost.duties.trimming import Trimming
from roost.settings import Settings

HEALER_SECONDS = 2.0  # that each further runner of a host leaves to those before it, when machines go down


@dataclass(frozen=True)
class Runner:
    """Who runs duties, and what they need of it."""

    agent: Agent
    settings: Settings
    clock: Callable[[], float]  # seconds that only go on; steps are told the time by it, and so is the agent
    time_of_day: Callable[[], float]  # seconds since 1970, by which the agent, too, dates what is done
    noted: Callable[[Ticket], None] = lambda _: None  # hears of what duties asked for, once it is answered
    place: int = 0  # among the runners of a host: the first does what one is enough for
    listens: bool = False  # machines send their heartbeats here
    executor: Executor | None = None  # does what takes long, in other threads; None: it is done at once
    counted: ArrivalRates | None = None  # how often VMs come, if the runner counts them; None: the feed is read


def _requeue(runner: Runner) -> Duty | None:
    """Places again what had to give way; turned off by a pause of 0."""
    patience = runner.settings.agent.requeue_seconds
    return Requeue(runner.agent, runner.clock, runner.noted, patience=patience) if patience else None


def _heartbeats(runner: Runner) -> Duty | None:
    """Takes machines that fall silent for down, where they are listened to."""
    patience = runner.settings.healing.heartbeat_seconds
    if not (runner.listens and patience):
        return None
    return Heartbeats(runner.agent, patience)


def _healing(runner: Runner) -> Duty:
    """Places again what is on machines that are down."""
    healing = runner.settings.healing
    delay = HEALER_SECONDS * runner.place
    return Healer(
        runner.agent, runner.clock, runner.time_of_day, healing.retry_seconds, healing.flaps, delay, runner.noted
    )


def _fading(runner: Runner) -> Duty:
    """Has failures counted again as they fade."""
    return Fading(runner.agent, runner.time_of_day)


def _foresight(runner: Runner) -> Duty | None:
    """Tells what is to be expected; turned off by a period of 0."""
    period = runner.settings.agent.foresight_seconds
    if runner.place or not period:
        return None
    return Forecaster(runner.agent, period, runner.time_of_day, runner.counted)


def _trimming(runner: Runner) -> Duty:
    """Lets the store forget what is old."""
    return Trimming(runner.agent.store, runner.settings.retention)


# In the order in which they have their turns: what falls silent is healed in the same round.
DUTIES: list[Callable[[Runner], Duty | None]] = [_requeue, _heartbeats, _healing, _fading, _foresight, _trimming]


def make_roster(runner: Runner) -> Roster:
    """The duties of a runner, those that it has."""
    return Roster([duty for make in DUTIES if (duty := make(runner)) is not None], runner.executor)
