"""What a duty is, and who sees to it that each has its turn.

    roster.step(now) ──▶ every duty that is due ──▶ its step: looks, and asks the agent for what it finds to do
                              │
                              └── what it took, what went wrong: `Health`, for metrics, /readyz and people

A duty is a name, a period and a step. It keeps no thread and no clock of its own: whoever runs it (the service, a
worker, the simulator) tells it the time. A step that fails is logged and counted; neither the others nor the next step
of the same duty suffer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

import msgspec
import structlog

log = structlog.get_logger()
D = TypeVar("D")


class Duty(Protocol):
    """Something that is seen to beside the requests."""

    @property
    def name(self) -> str:
        """What people call it: in metrics, in logs, in /readyz."""

    @property
    def period(self) -> float:
        """Seconds between two steps at the least; 0: as often as its runner comes round."""

    def step(self, now: float) -> None:
        """Look, and ask for what is to be done. `now`: seconds that only go on. Must not wait for anything."""


class Health(msgspec.Struct):
    """How a duty fares."""

    runs: int = 0
    failures: int = 0
    last_run: float | None = None  # by the runner's clock
    last_seconds: float = 0.0  # that its last step took
    last_error: str = ""  # of its last step; empty: it went well


class Roster:
    """Duties that one runner sees to, in the order of the list."""

    def __init__(self, duties: Sequence[Duty], timer: Callable[[], float] = time.perf_counter) -> None:
        """`timer`: measures how long steps take."""
        self.duties = tuple(duties)
        self.health = {duty.name: Health() for duty in self.duties}
        if len(self.health) < len(self.duties):
            raise ValueError("two duties have the same name")
        self._timer = timer
        self._next = dict.fromkeys(self.health, float("-inf"))

    def find(self, kind: type[D]) -> D | None:
        """The duty of a kind, if this runner has it."""
        return next((duty for duty in self.duties if isinstance(duty, kind)), None)

    @property
    def failing(self) -> dict[str, str]:
        """What went wrong in the last step of each duty that failed in it."""
        return {name: health.last_error for name, health in self.health.items() if health.last_error}

    @property
    def next_due(self) -> float:
        """When the next of those duties is due that have a period."""
        return min((self._next[duty.name] for duty in self.duties if duty.period), default=float("inf"))

    def step(self, now: float) -> None:
        """Let every duty that is due have its turn."""
        for duty in self.duties:
            if now >= self._next[duty.name]:
                self._next[duty.name] = now + duty.period
                self._run(duty, now)

    def _run(self, duty: Duty, now: float) -> None:
        health, began = self.health[duty.name], self._timer()
        try:
            duty.step(now)
            health.last_error = ""
        except Exception as error:  # a bug: the next turn may do better, and nobody else must suffer
            log.exception("a duty failed", duty=duty.name)
            health.failures += 1
            health.last_error = f"{type(error).__name__}: {error}"
        health.runs += 1
        health.last_run, health.last_seconds = now, self._timer() - began
