"""Agents in virtual time: what they send to the store and hear from it takes as long as an experiment says."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from roost.agent.agent import Agent
from roost.agent.courier import Delivery, Group
from roost.store.contract import Outcome, Store
from roost.store.feed import Feed, FeedRow

NEVER = float("inf")


class Clock:
    """The time in a simulation, in seconds; below zero before the workload begins."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class FeedLog:
    """A store's feed with the time of each commit, as far as some agent has not read it."""

    def __init__(self, store: Store, revision: int) -> None:
        self._store, self._revision = store, revision
        self._rows: deque[tuple[float, FeedRow]] = deque()
        self.start = 0  # the number of the first row that is kept

    @property
    def end(self) -> int:
        """The number that the next row will have."""
        return self.start + len(self._rows)

    def extend(self, now: float) -> Sequence[FeedRow]:
        """Take in what was committed just now."""
        rows = self._store.changes(self._revision).rows
        for row in rows:
            self._rows.append((now, row))
            self._revision = row.last
        return rows

    def read(self, start: int, now: float, late: float, told: float) -> list[FeedRow]:
        """Rows from a number on that get somewhere so late, and are there by now; or were committed until `told`."""
        found = []
        for number in range(start - self.start, len(self._rows)):
            when, row = self._rows[number]
            if when + late > now and when > told:  # the very sum that `next_look` promised
                break
            found.append(row)
        return found

    def time_of(self, number: int) -> float:
        """When a row was committed, or will never have been."""
        return self._rows[number - self.start][0] if number < self.end else NEVER

    def forget(self, before: int) -> None:
        """Nobody needs the rows before a number any more."""
        while self.start < before:
            self._rows.popleft()
            self.start += 1


class VirtualCourier:
    """Keeps what an agent sends until the simulation commits it, and what comes back until it is due."""

    def __init__(self, clock: Clock, log: FeedLog, feed_seconds: float) -> None:
        self._clock, self._log, self._feed_seconds = clock, log, feed_seconds
        self._back: deque[tuple[float, Delivery]] = deque()
        self.read = 0  # the number of the next row of the feed
        self._told = -NEVER  # all that was committed until then is known, however late the feed is
        self.sent: Group | None = None

    def send(self, group: Group) -> None:
        """Commit this when its turn comes: the simulation looks here after each step."""
        assert self.sent is None
        self.sent = group

    def bring(self, due: float, group: Group, outcomes: Sequence[Outcome], seconds: float) -> None:
        """Deliver then what came of a group just now. Whoever asked something gets all that was committed before."""
        self._back.append((due, Delivery(group.round.number, outcomes, seconds=seconds)))
        if group.wants_news(outcomes):
            self._told = self._clock.now

    @property
    def due(self) -> bool:
        """Whether something of the store's answers is to be received now."""
        return bool(self._back) and self._back[0][0] <= self._clock.now

    def receive(self, seconds: float = 0.0) -> list[Delivery]:
        """What is due by now."""
        del seconds
        now, back, found = self._clock.now, self._back, []
        while back and back[0][0] <= now:
            found.append(back.popleft()[1])
        if self.read < self._log.end and (rows := self._log.read(self.read, now, self._feed_seconds, self._told)):
            self.read += len(rows)
            found.append(Delivery(feed=Feed(rows)))
        return found

    def hurry(self) -> None:
        """Whoever was told to look again gets all that was committed until now."""
        self._told = self._clock.now

    def next_look(self, *, news: bool) -> float:
        """When the next answer gets here, or, if that is waited for, the next row of the feed."""
        answer = self._back[0][0] if self._back else NEVER
        return min(answer, self._log.time_of(self.read) + self._feed_seconds) if news else answer

    def follow(self, revision: int) -> None:
        """Read the feed from its end on: a simulated agent loads its copy only when it has read all that there is."""
        del revision
        self.read = self._log.end

    def close(self) -> None:
        """Nothing to stop."""


@dataclass
class SimulatedWorker:
    """An agent at its desk."""

    number: int
    agent: Agent
    courier: VirtualCourier
    busy_until: float = -NEVER
    wake: float = -NEVER  # when it has been told to look again
    in_flight: int = 0
    commits: int = 0  # and conflicts: what was counted of it already
    conflicts: int = 0

    @property
    def load(self) -> int:
        """Requests that it has before it."""
        return self.agent.waiting + self.in_flight
