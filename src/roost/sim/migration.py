"""Migrations in a simulation: planned as `roost whatif migrate` plans them, carried out by agents in virtual time."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from roost.agent.operation import Answer
from roost.agent.verbs.move import MoveVM
from roost.rules.policy import Policy
from roost.sim.crew import Crew
from roost.sim.events import COPIED, MIGRATE, Events
from roost.sim.experiment import Migrations, seconds
from roost.sim.tracker import Tracker
from roost.sim.virtual import Clock
from roost.whatif.plan import Move, Terms
from roost.whatif.planner import plan_moves


class Migration:
    """Plans of a run, one at a time: so many moves at once, each target held while its VM is copied."""

    def __init__(
        self,
        spec: Migrations | None,
        seed: int,
        clock: Clock,
        events: Events,
        crew: Crew,
        tracker: Tracker,
        warm_up: float,
    ) -> None:
        """`spec`: None moves nothing."""
        self._spec, self._seed, self._clock, self._events = spec, seed, clock, events
        self._crew, self._tracker, self._warm_up = crew, tracker, warm_up
        self._waiting: dict[int, Move] = {}
        self._under_way: dict[int, Move] = {}
        self._failed: set[int] = set()

    @property
    def busy(self) -> bool:
        """Whether a plan is under way."""
        return bool(self._waiting or self._under_way)

    def schedule(self) -> None:
        """Plan for the first time when the experiment says."""
        if self._spec is not None:
            self._tracker.migrated = 0
            self._events.at(seconds(self._spec.at, "migrations.at"), MIGRATE)

    def plan(self, policy: Policy) -> None:
        """Plan, on the zone as it is, and begin; while a plan is under way no other is begun."""
        assert self._spec is not None
        if self._spec.every is not None:
            self._events.after(seconds(self._spec.every, "migrations.every"), MIGRATE)
        if self.busy:
            return
        ledger = self._crew.store.load()
        terms = Terms(budget=int(self._spec.budget * len(ledger.vms)), cost=self._spec.cost)
        found = plan_moves(ledger, policy, terms, self._seed)
        self._waiting = {move.number: move for move in found.moves}
        self._failed = set()
        self._go_on()

    def _go_on(self) -> None:
        assert self._spec is not None
        for move in list(self._waiting.values()):
            if len(self._under_way) >= self._spec.at_once:
                return
            if any(number in self._failed for number in move.after):
                del self._waiting[move.number]
                self._failed.add(move.number)
            elif not any(number in self._waiting or number in self._under_way for number in move.after):
                self._under_way[move.number] = self._waiting.pop(move.number)
                self._step(move, "hold", self._held)

    def _step(self, move: Move, step: str, then: Callable[[Move, Answer], None]) -> None:
        self._crew.submit(MoveVM(move.tenant, move.vm, move.target, step), partial(then, move))  # type: ignore[arg-type]

    def _held(self, move: Move, answer: Answer) -> None:
        if answer.ok:
            assert self._spec is not None
            self._events.after(seconds(self._spec.copy, "migrations.copy"), COPIED, move.number)
        else:
            self._end(move, failed=True)

    def copied(self, number: int) -> None:
        """A VM was copied to its target."""
        self._step(self._under_way[number], "finish", self._finished)

    def _finished(self, move: Move, answer: Answer) -> None:
        if answer.ok:
            assert self._tracker.migrated is not None
            self._tracker.migrated += self._clock.now >= self._warm_up
            self._end(move)
        else:  # it left, or its target fails it
            self._step(move, "cancel", self._cancelled)

    def _cancelled(self, move: Move, answer: Answer) -> None:
        del answer  # the tenant may be gone altogether
        self._end(move, failed=True)

    def _end(self, move: Move, *, failed: bool = False) -> None:
        del self._under_way[move.number]
        if failed:
            self._failed.add(move.number)
        self._go_on()
