"""Where the processor's time of a worker goes, by stages of a request: timers around the functions of a table.

A timer reads the clock of its thread, which counts what that thread computes; so waiting counts for nobody. What is
called within counts for its own stage, if it has one. What a thread computes outside of all of them counts for what the
thread is there for: the loop in the first one, with its sockets; the commit, or the feed, in those of the courier.

Timers cost some microseconds for each request, so whatever is compared is measured without them. Samples of stacks were
tried. A thread that takes them has to wait for the interpreter's lock, and finds the others where they let go of it. To
write a stack down in the very signal that interrupts a thread (faulthandler) ends the process now and then: Python 3.11
shows frames that are only half made.
"""

from __future__ import annotations

import inspect
import threading
import time
import types
from collections.abc import Callable, Coroutine, Generator
from functools import partial, wraps
from importlib import import_module
from typing import Any

PARSE, DECIDE, SETTLE, ENCODE = "parse and gate", "decide", "settle", "encode"
COMMIT, FETCH, FOLLOW, ANSWER, LOOP, OTHER = "commit", "fetch", "follow", "answer", "loop", "other"
ALL = (PARSE, DECIDE, SETTLE, ENCODE, COMMIT, FETCH, FOLLOW, ANSWER, LOOP, OTHER)
# Functions by the module that calls them, or that they are methods in.
TIMED = {
    # A request comes in: its bytes are parsed, it passes the gate, and is queued.
    "roost.api.protocol:Protocol.data_received": PARSE,
    "uvicorn.protocols.http.httptools_impl:RequestResponseCycle.run_asgi": PARSE,
    # A round is decided on the agent's own copy, and handed to the courier.
    "roost.agent.agent:Agent._decide_round": DECIDE,
    # The proposals of a group are settled on the rows that were read.
    "roost.store.postgres:needs_of": SETTLE,
    "roost.store.postgres:settle": SETTLE,
    # Values become what the database takes, and rows become values.
    "roost.store.codec:Codec.machine": ENCODE,
    "roost.store.codec:Codec.tenant": ENCODE,
    "roost.store.codec:Codec.vm": ENCODE,
    "roost.store.postgres:PostgresStore._write": ENCODE,
    "roost.store.postgres_trip:Trip.add": ENCODE,
    "roost.store.postgres_trip:Trip._rows": ENCODE,
    # The rest of a commit: talking to the database.
    "roost.agent.courier:ThreadCourier._persist": COMMIT,
    # The feed is fetched.
    "roost.agent.courier:ThreadCourier._more": FETCH,
    # The copy is brought up to date with what the feed says that others did.
    "roost.agent.agent:Agent._follow": FOLLOW,
    "roost.agent.agent:Agent._reload": FOLLOW,
    # What the store said is taken in, and whoever asked is answered.
    "roost.agent.agent:Agent._take_in": ANSWER,
    "roost.agent.outcomes:Outcomes.fed": ANSWER,
    "roost.api.routes.tenants:placed": ANSWER,
    "roost.api.express:_encode": ANSWER,
    "roost.api.gate:Gate._note": ANSWER,
    "roost.api.protocol:Corked.flush": ANSWER,
    "uvicorn.protocols.http.httptools_impl:RequestResponseCycle.send": ANSWER,
    # What the loop does besides: the agent's turns, but for the above; duties; metrics.
    "roost.api.pump:Pump.step": OTHER,
    "roost.api.service:Service._tick": OTHER,
    "roost.api.service:Service._measure": OTHER,
    "roost.api.service:Service._measure_rules": OTHER,
}
# What threads are there for, by their names.
THREADS = {"MainThread": LOOP, "roost-courier": COMMIT, "roost-reader": FETCH, "roost-listener": FETCH}

_taken: dict[int, dict[str, int]] = {}  # by thread, nanoseconds of each stage


class _Timer(threading.local):
    """Which stage a thread is at, since when it has been, and within which others."""

    def __init__(self) -> None:
        self.stages: list[str] = []
        self.since = 0
        self.taken = _taken[threading.get_ident()] = dict.fromkeys(ALL, 0)

    def enter(self, stage: str) -> None:
        now = time.thread_time_ns()
        if self.stages:
            self.taken[self.stages[-1]] += now - self.since
        self.stages.append(stage)
        self.since = now

    def leave(self) -> None:
        now = time.thread_time_ns()
        self.taken[self.stages.pop()] += now - self.since
        self.since = now


_timer = _Timer()


def install() -> None:
    """Put timers around all functions of the table. Before anything is made that keeps one of them."""
    for place, stage in TIMED.items():
        owner, name, function = find(place)
        setattr(owner, name, timed(function, stage))


def find(place: str) -> tuple[Any, str, Callable[..., Any]]:
    """What a place of the table is an attribute of, its name, and the function."""
    module, _, path = place.partition(":")
    *owners, name = path.split(".")
    owner: Any = import_module(module)
    for each in owners:
        owner = getattr(owner, each)
    return owner, name, getattr(owner, name)


def timed(function: Callable[..., Any], stage: str) -> Callable[..., Any]:
    """A function, or one that is awaited, with a timer around it."""
    if inspect.iscoroutinefunction(function):

        @wraps(function)
        async def awaited(*arguments: Any, **named: Any) -> Any:
            return await _driven(function(*arguments, **named), stage)

        return awaited

    @wraps(function)
    def called(*arguments: Any, **named: Any) -> Any:
        _timer.enter(stage)
        try:
            return function(*arguments, **named)
        finally:
            _timer.leave()

    return called


@types.coroutine
def _driven(work: Coroutine[Any, Any, Any], stage: str) -> Generator[Any, Any, Any]:
    """The same as to await it. While it waits, the timer does not run."""
    step = partial(work.send, None)
    while True:
        _timer.enter(stage)
        try:
            waits_for = step()
        except StopIteration as done:
            return done.value
        finally:
            _timer.leave()
        try:
            sent = yield waits_for
        except BaseException as error:
            step = partial(work.throw, error)
        else:
            step = partial(work.send, sent)


def taken() -> dict[str, float]:
    """Seconds that all threads of this process have computed, by stage."""
    seconds = dict.fromkeys(ALL, 0.0)
    counted = 0.0
    for thread in threading.enumerate():
        if thread.ident is None:
            continue
        computed, within = time.clock_gettime(time.pthread_getcpuclockid(thread.ident)), 0.0
        for stage, nanoseconds in _taken.get(thread.ident, {}).items():
            seconds[stage] += nanoseconds / 1e9
            within += nanoseconds / 1e9
        seconds[THREADS.get(thread.name, OTHER)] += computed - within
        counted += computed
    seconds[OTHER] += max(0.0, time.process_time() - counted)  # threads that have ended, or are not Python's
    return seconds
