"""One run: events in the order of their time, agents that decide and commit as they do in the service.

    arrivals, departures, faults ─▶ agents (their own, late copies) ─▶ commits ─▶ the store in memory
     world.py        faults.py        crew.py     ▲                                  │
            ▲                                     └── duties: seen_to.py ◀── feed ───┤
            └──────────── departures ◀── answers ◀───────────── books: guests.py ◀───┘

Everything is by seed, and nothing by the clock on the wall, unless decisions are to take as long as they really take.
"""

from __future__ import annotations

import gc
import time
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import structlog

from roost.agent.context import Watcher
from roost.model.errors import InvalidInput, InvariantBroken
from roost.model.random_state import restore, state_of
from roost.model.zone import Zone
from roost.rules.policy import Policy
from roost.sim.checkpoint import Checkpoint, packed, unpacked
from roost.sim.crew import Crew, Witness
from roost.sim.events import ARRIVE, COMMIT, COPIED, LEAVE, LOOK, MIGRATE, SAMPLE, SWITCH, TICK, Event, Events
from roost.sim.experiment import Experiment, Latency, seconds
from roost.sim.faults import DOWN, FaultInjector
from roost.sim.fingerprint import fingerprint
from roost.sim.guests import Guests
from roost.sim.migration import Migration
from roost.sim.result import RunResult
from roost.sim.tracker import Tracker
from roost.sim.virtual import NEVER, Clock
from roost.sim.world import BEFORE, World
from roost.store.memory import MemoryStore
from roost.traces.workload import Workload
from roost.wiring import open_store

Progress = Callable[[float, int], None]  # share done, operations so far

RARELY = (500_000, 10, 2_000)  # collections of garbage, by generation
REPORT_EVERY = 2_000  # operations
TRIM_EVERY = 5_000  # operations, between two times that the store forgets
ROUNDING = 1e-9  # samples: what rounding may take from the last one, which is at the end


class Simulation:
    """A run of an experiment, with one policy and one seed."""

    def __init__(
        self,
        experiment: Experiment,
        policy: str,
        seed: int,
        workload: Workload,
        zone: Zone,
        find_policy: Callable[[str], Policy],
        name: str = "",
        witness: Witness | None = None,
        shadow: Watcher | None = None,
        onlooker: Callable[[], None] = lambda: None,
    ) -> None:
        """`name`: what the result is to be called, instead of the policy. `witness`: sees every answer, in order.

        `shadow`: looks at every decision. `onlooker`: is called at every sample, once it is taken.
        """
        experiment.check(workload, zone)
        self.name = name or policy
        self.experiment, self.policy, self.seed, self.zone = experiment, policy, seed, zone
        self.policy_now = policy
        self.workload = workload
        self._find_policy, self._onlooker = find_policy, onlooker
        self.until, self._warm_up = experiment.ends(workload), seconds(experiment.warm_up, "warm_up")
        self._every = seconds(experiment.sample, "sample") if experiment.sample else max(60.0, self.until / 500)
        self._checkpointed = self._forgot = 0  # operations by then
        self.timing: dict[str, float] = {}

        self.clock = Clock()
        self.events = Events(self.clock)
        self._random = np.random.default_rng([seed, 1])
        self.tracker = Tracker(zone, _types_of(workload, zone), seconds(experiment.bin, "bin"), self._warm_up)
        self.guests = Guests(zone, self.clock, self.tracker)
        self.crew = Crew(experiment, seed, self.clock, self.events, self.tracker, self._random, self.guests.hear)
        self.crew.witness, self.crew.shadow = witness, shadow
        self.faults = FaultInjector(
            experiment.faults, zone, self.clock, self.events, self.crew, self.tracker, self._random, self._warm_up
        )
        self.world = World(
            experiment, workload, self.clock, self.events, self.crew, self.guests, self.tracker, self._warm_up
        )
        self.crew.noted = self.world.note
        self._migration = Migration(
            experiment.migrations, seed, self.clock, self.events, self.crew, self.tracker, self._warm_up
        )
        self._handlers: dict[int, Callable[[Any], None]] = {
            LEAVE: self.world.leave,
            COMMIT: self.crew.commit,
            LOOK: self.crew.look,
            **self.faults.handlers,
            SWITCH: self._switch,
            MIGRATE: self._migrate,
            COPIED: self._migration.copied,
            TICK: self.crew.tick,
            SAMPLE: self._sample,
        }

        started = time.perf_counter()
        store = open_store("memory:", create=zone)
        assert isinstance(store, MemoryStore)
        self.crew.hire(store, find_policy(policy))
        self.timing["load_s"] = time.perf_counter() - started
        self.fingerprint = fingerprint(experiment, policy, seed, workload, zone, find_policy)
        self._schedule_beginning()

    @property
    def store(self) -> MemoryStore:
        """The truth; after a checkpoint it is another one."""
        return self.crew.store

    def _schedule_beginning(self) -> None:
        for k in range(int(self.until / self._every + ROUNDING) + 1):
            self.events.at(min(k * self._every, self.until), SAMPLE)
        self.faults.begin()
        for change in self.experiment.policy_changes:
            self._find_policy(change.policy)
            self.events.at(seconds(change.at, "policy_changes.at"), SWITCH, change.policy)
        self._migration.schedule()

    # ------------------------------------------------------------------------------------------------ the loop

    def run(self, progress: Progress | None = None, checkpoint: Callable[[bytes], None] | None = None) -> RunResult:
        """To the end. `checkpoint` is given, now and then, what `go_on` can go on from."""
        self._started = time.perf_counter() - self.timing.get("run_s", 0.0)
        with _little_garbage(), _warnings_only():
            if self.world.next == 0 and not self.operations and self.experiment.fill:
                self._fill()
            self._loop(progress, checkpoint)
        self.timing["run_s"] = time.perf_counter() - self._started
        return self._result()

    def _loop(self, progress: Progress | None, checkpoint: Callable[[bytes], None] | None) -> None:
        world, crew, clock, until, handlers = self.world, self.crew, self.clock, self.until, self._handlers
        events, take, arrival = self.events.heap, self.events.take, array("d", world.arrival.tobytes())
        reported = 0
        while True:
            soonest = events[0][0] if events else NEVER
            coming = arrival[world.next] if world.next < len(arrival) else NEVER
            now = min(soonest, coming)
            if crew.touched and now > clock.now:
                crew.let_work()
                continue
            if now > until:
                break
            clock.now = now
            if (soonest <= coming and events[0][1] < ARRIVE) or soonest < coming:
                what, about = take()
                handlers[what](about)
            else:
                world.arrive()
            if crew.operations - reported >= REPORT_EVERY:
                reported = crew.operations
                if progress:
                    progress(min(1.0, now / until), reported)
            if crew.operations - self._forgot >= TRIM_EVERY:
                self._forgot = crew.operations
                crew.forget()
            due = self.experiment.checkpoint
            if due and crew.operations - self._checkpointed >= due and self.quiet:
                data = self._save()
                if checkpoint:
                    checkpoint(data)
                self.go_on(data)

    @property
    def operations(self) -> int:
        """That the world asked for."""
        return self.crew.operations

    def _fill(self) -> None:
        """Just before the beginning, in no time. One agent places all, and the others begin with what it left."""
        everybody, latency = self.crew.workers, self.crew.latency
        self.crew.alone(Latency(), everybody[:1])
        self.clock.now = BEFORE
        everybody[0].courier.hurry()  # nor do news take any
        self.world.fill(self.experiment.fill * self.zone.cores, self.seed)
        self.crew.alone(latency, everybody)
        self._sample(None)  # what it took counts in no other row
        if len(everybody) > 1:
            self.crew.hire(self.store, self._find_policy(self.policy_now), self.crew.memories())

    def _switch(self, policy: str) -> None:
        self.policy_now = policy
        self.crew.switch(self._find_policy(policy))

    def _migrate(self, _: None) -> None:
        self._migration.plan(self._find_policy(self.policy_now))

    def _sample(self, _: None) -> None:
        if self.crew.touched:  # all that happens at this moment comes before it is looked at
            self.crew.let_work()
            self.events.at(self.clock.now, SAMPLE)
            return
        self.tracker.cached(self.crew.cached())
        self.tracker.sample(self.clock.now, self.world.open)
        self._onlooker()

    # ----------------------------------------------------------------------------------------------- checkpoints

    @property
    def quiet(self) -> bool:
        """Whether nothing is queued, under way, or on its way to anybody. What waits for room does so in the store."""
        return self.crew.idle and not self._migration.busy

    def _save(self) -> bytes:
        """All that the rest of the run depends on."""
        self._checkpointed = self.operations
        self.tracker.cached(self.crew.cached())
        return packed(
            Checkpoint(
                fingerprint=self.fingerprint,
                now=self.clock.now,
                next=self.world.next,
                number=self.events.number,
                operations=self.operations,
                turn=self.crew.turn,
                policy=self.policy_now,
                random=state_of(self._random),
                state=self.faults.state,
                broken=self.faults.broken,
                events=self._coming(),
                guests=self.guests.state(),
                agents=self.crew.memories(),
                tracker=self.tracker.state(),
                forecast=self.crew.forecast(),
                due=self.crew.duties.roster.due,
                run_s=time.perf_counter() - self._started,
            ),
            self.store.load(),
        )

    def _coming(self) -> list[Event]:
        """Events, with guests by their places. Agents and duties that begin anew look by themselves."""
        places = {id(guest): place for place, guest in enumerate(self.guests.by_name.values())}
        found = []
        for event in self.events.heap:
            at, what, number, about = event
            if what == LEAVE:
                found.append((at, what, number, [places[id(g)] for g in about if id(g) in places]))
            elif what not in (LOOK, TICK):
                found.append(event)
        return found

    def go_on(self, data: bytes) -> None:
        """From a checkpoint. A run that has made one goes on from it as well, so that both go the same way."""
        saved, ledger = unpacked(data, self.store.catalogue)
        if saved.fingerprint != self.fingerprint:
            raise InvalidInput("checkpoint", "is of another workload, zone or version", "run the experiment anew")
        self.clock.now, self.world.next = saved.now, saved.next
        self.timing["run_s"] = saved.run_s
        self.crew.operations = self._checkpointed = self._forgot = saved.operations
        self.crew.turn, self.policy_now = saved.turn, saved.policy
        restore(self._random, saved.random)
        self.faults.state, self.faults.broken = saved.state, saved.broken
        guests = self.guests.restore(saved.guests, (m for m, state in enumerate(saved.state) if state == DOWN))
        events = [
            (at, what, number, [guests[place] for place in about] if what == LEAVE else about)
            for at, what, number, about in saved.events
        ]
        self.events.restore(events, saved.number)
        self.tracker.restore(saved.tracker)
        store = MemoryStore(self.store.catalogue, ledger)
        self.crew.hire(store, self._find_policy(self.policy_now), saved.agents, saved.forecast, saved.due)

    # ------------------------------------------------------------------------------------------------- the result

    def _result(self) -> RunResult:
        self._check()
        tables = self.tracker.tables(self.world.arrival[: self.world.next], self.until)
        experiment, workload, zone = self.experiment, self.workload, self.zone
        facts = {
            "workload": workload.name,
            "source": workload.source,
            "requests": int(workload.requests),
            "vms": int(workload.vms),
            "skipped": dict(workload.skipped),
            "zone": zone.name,
            "machines": len(zone.machines),
            "clusters": len(zone.clusters),
            "cores": zone.cores,
            "span_s": self.until,
            "warm_up_s": self._warm_up,
            "repeatable": experiment.repeatable,
        }
        self.timing |= {"operations": self.operations, "vms_placed": int(tables["rates"]["vms_placed"].sum())}
        return RunResult(
            name=self.name,
            seed=self.seed,
            experiment=experiment.as_data(),
            facts=facts,
            summary=self.tracker.summary(tables, self.until),
            timing=self.timing,
            **tables,
        )

    def _check(self) -> None:
        """What was counted is what the store holds, and nothing is over capacity; duties have not failed."""
        if failing := self.crew.duties.roster.failing:
            raise InvariantBroken(f"duties failed: {failing}")
        used, index = self.tracker.used_of(), self.zone.machine_index
        if not self.crew.idle:
            return  # what is under way is in one of them only
        for name, (taken, capacity) in self.store.amounts().items():
            if any(t > c for t, c in zip(taken, capacity, strict=True)):
                raise InvariantBroken(f"machine {name} is over capacity")
            if list(taken) != used[index[name]].tolist():
                raise InvariantBroken(f"machine {name} has {list(taken)}, counted were {used[index[name]].tolist()}")


def _types_of(workload: Workload, zone: Zone) -> list[int]:
    """The VM types that a workload asks for, by their numbers in the zone."""
    asked = {workload.types[kind].name for kind in np.unique(workload.type).tolist()}
    return sorted(zone.vm_type_index[name] for name in asked if name in zone.vm_type_index)


@contextmanager
def _little_garbage() -> Iterator[None]:
    """A run makes millions of values and hardly a cycle: let Python look for these rarely, not among what is old."""
    thresholds = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(*RARELY)
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()


@contextmanager
def _warnings_only() -> Iterator[None]:
    """A run tells what happened by its tables: of what duties log, only warnings are for people."""
    if structlog.is_configured():
        yield
        return
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(30))
    try:
        yield
    finally:
        structlog.reset_defaults()
