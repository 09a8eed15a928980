"""What a duty is, and who sees to it that each has its turn.

    roster.step(now) ──▶ every duty that is due ──▶ its step: looks, and asks the agent for what it finds to do
                              │                          │   ▲
                              │                  yields ─┘   └─ result: what takes long is done by an executor,
                              │                                 in other threads; in the simulator at once
                              └── what it took, what went wrong: `DutyRecord`, for metrics, /readyz and `roost duties`

A duty is a name, a period and a step. It keeps no thread, and each step is told what time it is by whoever runs it (the
service, a worker, the simulator). What a duty spends on tries, and how long something takes that is answered between
its steps, it measures with the clock that it is made with: the one that steps, and its agent, go by. A step that fails
is logged and counted; neither the others nor the next step of the same duty suffer.

Where nothing happens by itself, as in a simulated run, duties are stepped when the feed brings something that concerns
one of them, and again and again until all are at rest: so long, somebody waits for what a duty would do. A service
comes round often enough not to ask.

A step must not wait, as requests would wait with it. One that reads the store, or computes for long, is a generator: it
yields a function, its runner has that called elsewhere, and the step goes on with the result (or with the exception
that came of it) when the runner comes round again. What is written between two yields runs in the runner's own
thread, where the agent may be asked for something. A duty has one step under way at a time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import Executor, Future
from typing import Any, Protocol, TypeVar

import msgspec
import structlog

from roost.model.change import Entry
from roost.model.errors import RoostError

log = structlog.get_logger()
D = TypeVar("D")

Pausing = Generator[Callable[[], Any], Any, None]  # a step that has something done elsewhere, and goes on with it


class Duty(Protocol):
    """Something that is seen to beside the requests."""

    @property
    def name(self) -> str:
        """What people call it: in metrics, in logs, in /readyz."""

    @property
    def period(self) -> float:
        """Seconds between two steps at the least, and before the first; 0: as often as its runner comes round."""

    def step(self, now: float) -> Pausing | None:
        """Look, and ask for what is to be done. `now`: seconds that only go on. Must not wait: it yields instead."""

    @property
    def at_rest(self) -> bool:
        """Whether nothing waits for a later step of it, unless something changes."""

    def concerns(self, entry: Entry) -> bool:
        """Whether something that was committed may give it something to do before its period is over."""


class SimpleDuty:
    """What a duty need not say itself if nothing waits for it."""

    @property
    def at_rest(self) -> bool:
        """It has done all there is to do in each step."""
        return True

    def concerns(self, entry: Entry) -> bool:
        """What machines are like, and what all agree on, may be of interest to anybody; VMs come and go."""
        return bool(entry.conditions or entry.registered)


class DutyRecord(msgspec.Struct):
    """How a duty fares."""

    runs: int = 0
    failures: int = 0
    last_run: float | None = None  # by the runner's clock: when its last step began
    last_seconds: float = 0.0  # that its last step took, what was done elsewhere included
    last_error: str = ""  # of its last step; empty: it went well


class AtOnce(Executor):
    """Does everything at once, in the thread that asks: nothing happens at another time than it is asked for."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """What comes of a call, which is over when this returns."""
        done: Future[Any] = Future()
        try:
            done.set_result(fn(*args, **kwargs))
        except Exception as error:
            done.set_exception(error)
        return done


NOTHING = AtOnce().submit(lambda: None)  # what a step begins with


class DutyTurn(msgspec.Struct):
    """A step that is under way."""

    step: Pausing
    began: float  # by the timer
    awaited: Future[Any]  # what it goes on with


class Roster:
    """Duties that one runner sees to, in the order of the list."""

    def __init__(
        self,
        duties: Sequence[Duty],
        executor: Executor | None = None,
        timer: Callable[[], float] = time.perf_counter,
    ) -> None:
        """`executor`: does what steps yield, else that is done at once. `timer`: measures how long steps take."""
        self.duties = tuple(duties)
        self.health = {duty.name: DutyRecord() for duty in self.duties}
        if len(self.health) < len(self.duties):
            raise ValueError("two duties have the same name")
        self._executor, self._timer = executor or AtOnce(), timer
        self._next: dict[str, float] = {}  # by name: when it is due
        self._under_way: dict[str, DutyTurn] = {}  # by name

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
        return min(self.due.values(), default=float("inf"))

    @property
    def due(self) -> dict[str, float]:
        """When each duty that has a period is due, once it is known."""
        return {each.name: self._next[each.name] for each in self.duties if each.period and each.name in self._next}

    def recall(self, due: Mapping[str, float]) -> None:
        """Go on where another roster of the same clock stopped."""
        self._next.update(due)

    @property
    def at_rest(self) -> bool:
        """Whether nothing waits for a later step of any of them, unless something changes or a period is over."""
        return not self._under_way and all(duty.at_rest for duty in self.duties)

    def concerns(self, entry: Entry) -> bool:
        """Whether something that was committed may give one of them something to do."""
        return True in [duty.concerns(entry) for duty in self.duties]  # not `any`: a generator for each commit

    def step(self, now: float) -> None:
        """Let every duty that is due have its turn, and go on with what waited for something that is done by now."""
        for duty in self.duties:
            turn = self._under_way.pop(duty.name, None)
            if turn is None and now >= self._next.setdefault(duty.name, now + duty.period):
                self._next[duty.name] = now + duty.period
                self.health[duty.name].last_run = now
                turn = DutyTurn(_begun(duty, now), self._timer(), NOTHING)
            if turn is not None:
                self._go_on(duty.name, turn)

    def _go_on(self, name: str, turn: DutyTurn) -> None:
        error = ""
        try:
            while turn.awaited.done():
                turn.awaited = self._executor.submit(_next_of(turn))
            self._under_way[name] = turn
            return
        except StopIteration:  # it is over
            pass
        except RoostError as problem:  # the store is away, or the like: the next turn may do better
            log.warning("a duty could not be done", duty=name, detail=str(problem))
            error = f"{type(problem).__name__}: {problem}"
        except Exception as problem:  # a bug: nobody else must suffer
            log.exception("a duty failed", duty=name)
            error = f"{type(problem).__name__}: {problem}"
        self._note(self.health[name], turn, error)

    def _note(self, health: DutyRecord, turn: DutyTurn, error: str) -> None:
        health.runs += 1
        health.failures += bool(error)
        health.last_error, health.last_seconds = error, self._timer() - turn.began


def _begun(duty: Duty, now: float) -> Pausing:
    """A step of a duty, whether it pauses or not."""
    pausing = duty.step(now)
    if pausing is not None:
        yield from pausing


def _next_of(turn: DutyTurn) -> Callable[[], Any]:
    """What a step wants to have done next, now that it has what it waited for."""
    error = turn.awaited.exception()
    return turn.step.throw(error) if error else turn.step.send(turn.awaited.result())
