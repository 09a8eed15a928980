"""Migrations in a simulation: planned as `roost whatif migrate` plans them, carried out by agents in virtual time."""

from __future__ import annotations

from collections.abc import Generator
from functools import partial

from roost.agent.operation import Answer
from roost.agent.verbs.move import MoveVM
from roost.rules.policy import Policy
from roost.sim.crew import Crew
from roost.sim.events import COPIED, MIGRATE, Events
from roost.sim.experiment import Migrations, seconds
from roost.sim.tracker import Tracker
from roost.sim.virtual import Clock
from roost.whatif.carrier import MovesInOrder, StepOfMove, steps_of_move
from roost.whatif.plan import PlannedMove, PlanTerms
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
        self._order = MovesInOrder(())
        self._steps: dict[
            int, tuple[PlannedMove, Generator[StepOfMove, bool, bool]]
        ] = {}  # of moves under way, by number

    @property
    def busy(self) -> bool:
        """Whether a plan is under way."""
        return self._order.busy

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
        terms = PlanTerms(budget=int(self._spec.budget * len(ledger.vms)), cost=self._spec.cost)
        found = plan_moves(ledger, policy, terms, self._seed)
        self._order = MovesInOrder(found.moves)
        self._begin()

    def _begin(self) -> None:
        assert self._spec is not None
        for move in self._order.begin(self._spec.at_once, lambda _move, _why: None, lambda _move: False):
            self._steps[move.number] = move, (steps := steps_of_move())
            self._do(move, next(steps))

    def _do(self, move: PlannedMove, step: StepOfMove) -> None:
        if step == "copy":
            assert self._spec is not None
            self._events.after(seconds(self._spec.copy, "migrations.copy"), COPIED, move.number)
        else:
            self._crew.submit(MoveVM(move.tenant, move.vm, move.target, step), partial(self._answered, move.number))

    def copied(self, number: int) -> None:
        """A VM was copied to its target."""
        self._done(number, True)

    def _answered(self, number: int, answer: Answer) -> None:
        self._done(number, answer.ok)

    def _done(self, number: int, ok: bool) -> None:
        """A step was done, or could not be: it left, or its target fails it."""
        move, steps = self._steps[number]
        try:
            self._do(move, steps.send(ok))
        except StopIteration as end:
            del self._steps[number]
            self._order.end(move, failed=not end.value)
            if end.value:
                assert self._tracker.migrated is not None
                self._tracker.migrated += self._clock.now >= self._warm_up
            self._begin()
