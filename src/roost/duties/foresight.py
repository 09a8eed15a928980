"""Foresight: how often VMs come is counted, and what that means for the zone is told to all agents.

    feed ──▶ arrivals, counted ──▶ what is to be expected, on the rows of the copy ──▶ registry: foresight

What an operator has said comes instead of what was counted; how many find room before each kind of machine is worked
out anew all the same. Where several do this, whoever is first tells, and the others find that it was told.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from roost.agent.operation import Answer
from roost.agent.verbs.entry import SetEntry
from roost.duties.arrivals import ArrivalRates
from roost.duties.duty import Pausing, SimpleDuty
from roost.model.foresight import NAME, Foresight, decode, encode, foresee, foresee_given
from roost.model.registry import FORESIGHT

if TYPE_CHECKING:
    from roost.agent.agent import Agent
    from roost.agent.registry import Registry
    from roost.store.contract import Store

LOOK_BACK = 100_000  # revisions that are read by one who begins, to know what came before
ROWS = 16  # transactions of the feed that are read at once
BY = "foresight"  # who asks, as the trail tells it


def foreseen(registry: Registry) -> Foresight | None:
    """What is to be expected at present, as far as an agent has heard."""
    return decode(registry.get((FORESIGHT, NAME)))


class ForecastMemory(msgspec.Struct, frozen=True):
    """What a forecaster needs to go on as if nothing had been between."""

    arrivals: tuple[float, float, list[tuple[str, str, float]]]  # see ArrivalRates
    arrived: bool
    read: int | None
    heard: str | None


class Forecaster(SimpleDuty):
    """Counts what comes, and tells what is to be expected, through an agent."""

    name = "foresight"

    def __init__(
        self,
        agent: Agent,
        period: float,
        time_of_day: Callable[[], float],
        counted: ArrivalRates | None = None,
    ) -> None:
        """`time_of_day`: seconds since 1970, by which arrivals are dated.

        `counted`: how often VMs come, where whoever runs this notes each entry of the feed there; else it is read.
        """
        self.period, self._agent, self._time_of_day = period, agent, time_of_day
        self._reads, self._rates = counted is None, counted or ArrivalRates()
        self._read: int | None = None  # the last revision of the feed that is in the rates
        self._told = 0  # arrivals that what was last told goes by
        self._heard: str | None = None  # what had been told when it was last looked at

    def memory(self) -> ForecastMemory:
        """All that it goes by."""
        return ForecastMemory(self._rates.state(), self._rates.noted > self._told, self._read, self._heard)

    def recall(self, memory: ForecastMemory) -> None:
        """Go on from there."""
        self._rates.restore(memory.arrivals)
        self._told, self._read, self._heard = self._rates.noted - memory.arrived, memory.read, memory.heard

    def step(self, now: float) -> Pausing:
        """Tell what is to be expected, unless nothing came or somebody else has."""
        del now  # what came is dated by the time of day
        if self._reads:
            yield partial(self._follow, self._agent.store)
        # Whether somebody else has told it since is seen from what is told; clocks differ, and may be set.
        told = self._agent.replica.registry.get((FORESIGHT, NAME))
        stale, self._heard = told == self._heard, told
        if stale and (self._rates.noted > self._told or told is None):
            yield from self._tell(told)

    def _follow(self, store: Store) -> None:
        """Read on in the feed, a little at a time: others read the store, too."""
        while self._read_on(store):
            pass

    def _read_on(self, store: Store) -> bool:
        """Whether there may be more."""
        head, trimmed = store.head()
        start = max(head - LOOK_BACK if self._read is None else self._read, trimmed)
        feed = store.changes(start, ROWS)
        for number, entry in feed.after(start):
            self._rates.note(entry)
            self._read = number
        return bool(feed.rows)

    def _tell(self, before: str | None) -> Pausing:
        """`before`: what was told until now."""
        at, noted, known = self._time_of_day(), self._rates.noted, decode(before)
        allocator, rates = self._agent.allocator, self._rates.per_hour(at)
        zone, rows = allocator.zone, allocator.view.machines.copy()  # others change them meanwhile
        if known is not None and known.given:
            found = yield partial(foresee_given, zone, rows, known.given, at)
        elif rates:
            found = yield partial(foresee, zone, rows, rates, at)
        else:
            return
        entry = SetEntry(
            FORESIGHT, NAME, encode(found), new=before is None, instead_of=before
        )  # who else tells is right
        self._agent.submit(entry, done=partial(self._answered, entry.value, noted), by=BY)

    def _answered(self, text: str | None, noted: int, answer: Answer) -> None:
        if answer.ok:
            self._told, self._heard = noted, text
