"""Cells that drive one allocator, by itself: a generated workload on a zone that is filled already.

No simulated run: what is measured is how long the engine's decisions really take and what its caches hit, and agent and
store would be measured with it. Requests come and VMs leave in virtual time, by the simulator's queue of events.
Nothing fails, so nobody is healed.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from typing import NamedTuple

import msgspec
import numpy as np

from roost.model.request import Request
from roost.model.zone import Zone
from roost.placing.allocator import Allocator
from roost.placing.decision import Decision
from roost.rules.policy import Policy
from roost.sim.events import LEAVE, Events
from roost.sim.virtual import Clock
from roost.traces.generate import WorkloadShape, generate, rate_for
from roost.traces.standing import standing_population
from roost.traces.workload import Workload

WORKLOAD = WorkloadShape(days=2, services=0.2, stays=0.0)
FEATURES: tuple[tuple[str, ...], ...] = ((), ("ssd",), ("fast-cpu",), ("ssd", "fast-cpu"))  # asked for besides
IDLE_SECONDS = 0.02  # without a request after which an agent has time: the paper's mean decision
EVERYTHING = 1_000_000  # evaluations to bring up to date


class DecidedRequest(NamedTuple):
    """One request, decided."""

    at: float  # seconds since the beginning
    vms: int
    hit: bool  # every VM found its evaluation
    ms: float  # that the decision took
    ok: bool  # it was placed


class Scene(NamedTuple):
    """A synthetic zone, what comes and goes there, and what one would find running at the beginning."""

    zone: Zone
    workload: Workload
    standing: Workload


def prepare(machines: int, utilisation: float, seed: int) -> Scene:
    """A zone whose utilisation neither rises nor falls."""
    zone = Zone.synthetic(machines, seed)
    rate = rate_for(WORKLOAD, zone.cores, utilisation, filled=True, zone=zone)
    workload = generate(msgspec.structs.replace(WORKLOAD, requests_per_day=rate), seed, zone)
    return Scene(zone, workload, standing_population(workload, utilisation * zone.cores, seed))


class Drive:
    """An allocator with the default policy in a scene."""

    def __init__(self, scene: Scene, varied: float, seed: int) -> None:
        """`varied`: share of the requests that ask for more than a type and a priority."""
        zone, self.workload, standing = scene
        self.clock = Clock()
        self.allocator = Allocator(zone, Policy.named("default"), seed, clock=self.clock)
        self._varied, self._random = varied, np.random.default_rng([seed, 1])
        self._wishes = list(product(("", *zone.classes), FEATURES))[1:]
        self._leaving = Events(self.clock)  # with the names of the VMs
        for number, lifetime in enumerate(standing.lifetime.tolist()):
            self._note(lifetime, self.allocator.allocate(standing.request(number)))

    def run(self, *, idle: bool = True) -> Iterator[DecidedRequest]:
        """Request by request; `idle`: while none comes, caches are brought up to date."""
        workload, clock, allocator = self.workload, self.clock, self.allocator
        lifetimes = workload.lifetime[workload.first[:-1]].tolist()
        for number, arrival in enumerate(workload.arrival.tolist()):
            waited = arrival - clock.now
            self._release_until(arrival)
            clock.now = arrival
            if idle and waited > IDLE_SECONDS:
                allocator.refresh(EVERYTHING)
            request = self.request(number)
            started = time.perf_counter_ns()
            decision = allocator.allocate(request)
            ms = (time.perf_counter_ns() - started) / 1e6
            trial = decision.trial
            tried = len(trial.machines) + (trial.failed_vm is not None)
            self._note(arrival + lifetimes[number], decision)
            yield DecidedRequest(arrival, len(request.vms), trial.hits >= tried, ms, decision.ok)

    def request(self, number: int) -> Request:
        """A request of the workload; now and then its VMs ask for hardware, or to be kept apart from others."""
        request = self.workload.request(number)
        if self._random.random() >= self._varied:
            return request
        colocation, features = self._wishes[int(self._random.integers(len(self._wishes)))]
        vm = msgspec.structs.replace(request.vms[0], colocation=colocation, requires=features)
        return Request(request.tenant, (vm,) * len(request.vms), request.constraints)

    def _note(self, until: float, decision: Decision) -> None:
        """Its VMs leave then, if there are any."""
        if decision.ok:
            self._leaving.at(until, LEAVE, tuple(placed.vm for placed in decision.placements))

    def _release_until(self, now: float) -> None:
        while self._leaving.soonest <= now:
            _, names = self._leaving.take()
            for name in names:
                if name in self.allocator.vms:  # else it had to give way
                    self.allocator.release(name)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Within, Python does not look for garbage: a decision that is measured would take as long as that."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
