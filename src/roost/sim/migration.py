"""Migrations in a simulation: planned as `roost whatif migrate` plans them, carried out by agents in virtual time."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from roost.agent.operation import Answer, Operation
from roost.agent.verbs.move import MoveVM
from roost.sim.experiment import Migrations, seconds
from roost.whatif.plan import Move, Plan


class Migration:
    """A plan under way: so many moves at once, each target held while its VM is copied."""

    def __init__(
        self,
        spec: Migrations,
        submit: Callable[[Operation, Callable[[Answer], None]], None],
        copied_after: Callable[[float, int], None],
        arrived: Callable[[Move], None],
    ) -> None:
        """`copied_after`: call `copied` with a move's number so much later; `arrived`: a VM runs on its target."""
        self._copy, self._at_once = seconds(spec.copy, "migrations.copy"), spec.at_once
        self._submit, self._copied_after, self._arrived = submit, copied_after, arrived
        self._waiting: dict[int, Move] = {}
        self._under_way: dict[int, Move] = {}
        self._failed: set[int] = set()

    @property
    def busy(self) -> bool:
        """Whether a plan is under way."""
        return bool(self._waiting or self._under_way)

    def begin(self, plan: Plan) -> None:
        """Carry out a plan, once the one before is done."""
        assert not self.busy
        self._waiting = {move.number: move for move in plan.moves}
        self._failed = set()
        self._go_on()

    def _go_on(self) -> None:
        for move in list(self._waiting.values()):
            if len(self._under_way) >= self._at_once:
                return
            if any(number in self._failed for number in move.after):
                del self._waiting[move.number]
                self._failed.add(move.number)
            elif not any(number in self._waiting or number in self._under_way for number in move.after):
                self._under_way[move.number] = self._waiting.pop(move.number)
                self._step(move, "hold", self._held)

    def _step(self, move: Move, step: str, then: Callable[[Move, Answer], None]) -> None:
        self._submit(MoveVM(move.tenant, move.vm, move.target, step), partial(then, move))  # type: ignore[arg-type]

    def _held(self, move: Move, answer: Answer) -> None:
        if answer.ok:
            self._copied_after(self._copy, move.number)
        else:
            self._end(move, failed=True)

    def copied(self, number: int) -> None:
        """A VM was copied to its target."""
        self._step(self._under_way[number], "finish", self._finished)

    def _finished(self, move: Move, answer: Answer) -> None:
        if answer.ok:
            self._arrived(move)
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
