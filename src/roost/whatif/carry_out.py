"""Carries a plan out: several moves at once, each only after those it depends on, and never twice.

Each move: hold the target, copy the VM (a command, or nothing), finish. What fails is cancelled or skipped and said so,
with the moves that need it, and the rest goes on. After a crash the progress file says where to go on; keys made of the
plan's id and the file's nonce see to it that a step which was done just before the crash is not done again. A key that
was used answers as it did then, whatever came after: so nothing is copied before the room is seen to be held.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

import msgspec

from roost.model.errors import StoreUnavailable
from roost.model.request import hold_of
from roost.whatif.carrier import MovesInOrder, steps_of_move
from roost.whatif.commands import command
from roost.whatif.mover import Mover, MoverStep, StepOutcome
from roost.whatif.plan import Plan, PlannedMove
from roost.whatif.progress import FAILED, Progress, Reached

WORDS = ("vm", "tenant", "type", "source", "target", "number", "plan")  # that a command can name in braces
TRIES = 5  # of a step that others were faster at, or that was undone by somebody
NOT_HELD = (None, "begun")  # how far a move has got before room is known to be held

Copy = Callable[[PlannedMove], str]  # copies a VM; returns what went wrong, or nothing
TellMove = Callable[[PlannedMove, Reached, str], None]


class NotDone(msgspec.Struct, frozen=True):
    """A move that was not made, and why."""

    number: int
    vm: str
    reached: Reached
    why: str


class CarryOutResult(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a plan."""

    plan: str
    moves: int
    finished: int
    gone: int  # VMs that had left their machine without us
    skipped: int
    cancelled: int
    emptied: int  # machines that all VMs of the plan have left
    not_done: tuple[NotDone, ...]


def command_of(text: str, plan: str) -> Copy:
    """A command that copies a VM: `migrate {vm} {source} {target}`. Its exit code says whether it did."""
    run = command(text, WORDS, "migrate {vm} {source} {target}")
    return lambda move: run({**msgspec.structs.asdict(move), "plan": plan})


def carry_out(
    plan: Plan,
    mover: Mover,
    progress: Progress,
    *,
    copy: Copy | None = None,
    at_once: int = 1,
    tell: TellMove = lambda _move, _reached, _detail: None,
) -> CarryOutResult:
    """Make the moves of a plan that are not made yet, up to so many at once. `tell` hears of every step.

    Whoever cannot be reached raises; what is under way then is finished by carrying the plan out again.
    """
    work = _Work(plan, mover, progress, copy, tell)
    under_way: dict[Future[None], PlannedMove] = {}
    with ThreadPoolExecutor(at_once, "roost-move") as threads:
        while work.order.busy:
            for move in work.order.begin(at_once, work.skip, work.begun):
                under_way[threads.submit(work.make, move)] = move
            if under_way:
                for each in wait(under_way, return_when=FIRST_COMPLETED).done:
                    each.result()
                    work.end(under_way.pop(each))
    return work.result()


class _Work:
    """A plan being carried out."""

    def __init__(self, plan: Plan, mover: Mover, progress: Progress, copy: Copy | None, tell: TellMove) -> None:
        self.plan, self.mover, self.progress, self.copy, self.tell = plan, mover, progress, copy, tell
        self.order = MovesInOrder(plan.moves)
        self._why: dict[int, str] = {}  # by move: what went wrong
        for move in plan.moves:
            if progress.ended(move.number):
                self.end(move)

    def note(self, move: PlannedMove, reached: Reached, detail: str = "") -> None:
        """A move has got so far."""
        self.progress.note(move.number, reached, detail)
        self.tell(move, reached, detail)

    def skip(self, move: PlannedMove, why: str) -> None:
        """A move is pointless by now."""
        self.note(move, "skipped", why)

    def begun(self, move: PlannedMove) -> bool:
        """Whether a move was begun: what was begun is finished."""
        return self.progress.state(move.number) is not None

    def end(self, move: PlannedMove) -> None:
        """Nothing is left to do of a move."""
        self.order.end(move, failed=self.progress.state(move.number) in FAILED)

    def make(self, move: PlannedMove) -> None:
        """Make a move, from where it stopped."""
        reached = self.progress.state(move.number)
        ready = reached == "copied"
        if not ready:
            there = self.mover.machine_of(move.vm)
            ready = there == move.target and reached not in NOT_HELD  # it was finished, and nobody heard of it
            if there != move.source and not ready:
                self.note(move, "gone", f"it runs on {there}" if there else "it runs no more")
                return
        do = {"hold": self._held, "copy": self._copied, "finish": self._finished, "cancel": self._cancelled}
        steps = steps_of_move()
        step = next(steps)
        try:
            while True:
                step = steps.send((ready and step in ("hold", "copy")) or do[step](move))
        except StopIteration:
            return

    def _held(self, move: PlannedMove) -> bool:
        if self.progress.state(move.number) is None:  # whoever goes on must know that room may be held
            self.progress.note(move.number, "begun")
        if problem := self._hold(move):
            self.note(move, "skipped", problem)
        elif self.progress.state(move.number) in NOT_HELD:
            self.note(move, "held")
        return not problem

    def _copied(self, move: PlannedMove) -> bool:
        if self.copy is None:
            return True
        if problem := self.copy(move):
            self._why[move.number] = problem
        else:
            self.note(move, "copied")
        return not problem

    def _finished(self, move: PlannedMove) -> bool:
        finished = self._step(move, "finish")
        if finished.again:
            raise StoreUnavailable(f"move {move.number} ({move.vm}) cannot be finished just now: {finished.detail}")
        if finished.done:
            self.note(move, "finished")
        self._why[move.number] = finished.detail
        return finished.done

    def _cancelled(self, move: PlannedMove) -> bool:
        """Give the target back, and see that it is not held any more."""
        for attempt in range(TRIES):
            answer = self._step(move, "cancel", attempt)
            if not self._is_held(move):
                self.note(move, "cancelled", self._why[move.number])
                return True
        detail = answer.detail or "it is held again by somebody"
        raise StoreUnavailable(f"move {move.number} ({move.vm}) cannot be cancelled just now: {detail}")

    def _hold(self, move: PlannedMove) -> str:
        """Hold the target, and see that it is held; returns why it is not. What somebody gave back is held anew."""
        for attempt in range(TRIES):
            held = self._step(move, "hold", attempt)
            if not held.done:
                return held.detail
            if self._is_held(move):
                return ""
        return f"the room on {move.target} is given back by somebody"

    def _is_held(self, move: PlannedMove) -> bool:
        return self.mover.machine_of(hold_of(move.vm)) == move.target

    def _step(self, move: PlannedMove, step: MoverStep, attempt: int = 0) -> StepOutcome:
        """A step, asked for again if others were faster; `attempt`: as one that was not asked for before."""
        key = f"{self.plan.id}-{self.progress.nonce}-{move.number}-{step}{f'-{attempt}' if attempt else ''}"
        for _ in range(TRIES):
            outcome = self.mover.move(move.tenant, move.vm, move.target, step, key)
            if not outcome.again:
                break
        return outcome

    def result(self) -> CarryOutResult:
        """What came of it."""
        lines = {move.number: self.progress.reached[move.number] for move in self.plan.moves}
        ends = [line.reached for line in lines.values()]
        return CarryOutResult(
            plan=self.plan.id,
            moves=len(ends),
            finished=ends.count("finished"),
            gone=ends.count("gone"),
            skipped=ends.count("skipped"),
            cancelled=ends.count("cancelled"),
            emptied=len({move.empties for move in self.plan.moves} - set(self.order.given_up)),
            not_done=tuple(
                NotDone(move.number, move.vm, line.reached, line.detail)
                for move in self.plan.moves
                if (line := lines[move.number]).reached not in ("finished", None)
            ),
        )
