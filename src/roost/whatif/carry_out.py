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
from roost.whatif.commands import command
from roost.whatif.mover import Mover, Outcome, Step
from roost.whatif.plan import Move, Plan
from roost.whatif.progress import FAILED, Progress, Reached

WORDS = ("vm", "tenant", "type", "source", "target", "number", "plan")  # that a command can name in braces
TRIES = 5  # of a step that others were faster at, or that was undone by somebody
NOT_HELD = (None, "begun")  # how far a move has got before room is known to be held

Copy = Callable[[Move], str]  # copies a VM; returns what went wrong, or nothing
Tell = Callable[[Move, Reached, str], None]


class NotDone(msgspec.Struct, frozen=True):
    """A move that was not made, and why."""

    number: int
    vm: str
    reached: Reached
    why: str


class Result(msgspec.Struct, frozen=True, kw_only=True):
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
    tell: Tell = lambda _move, _reached, _detail: None,
) -> Result:
    """Make the moves of a plan that are not made yet, up to so many at once. `tell` hears of every step.

    Whoever cannot be reached raises; what is under way then is finished by carrying the plan out again.
    """
    work = _Work(plan, mover, progress, copy, tell)
    waiting = [move for move in plan.moves if not progress.ended(move.number)]
    under_way: set[Future[None]] = set()
    with ThreadPoolExecutor(at_once, "roost-move") as threads:
        while waiting or under_way:
            rest: list[Move] = []
            for place, move in enumerate(waiting):
                if len(under_way) == at_once:
                    rest += waiting[place:]
                    break
                if why := work.pointless(move):
                    work.note(move, "skipped", why)
                elif all(progress.ended(number) for number in move.after):
                    under_way.add(threads.submit(work.make, move))
                else:
                    rest.append(move)
            waiting = rest
            if under_way:
                done, under_way = wait(under_way, return_when=FIRST_COMPLETED)
                for each in done:
                    each.result()
    return work.result()


class _Work:
    """A plan being carried out."""

    def __init__(self, plan: Plan, mover: Mover, progress: Progress, copy: Copy | None, tell: Tell) -> None:
        self.plan, self.mover, self.progress, self.copy, self.tell = plan, mover, progress, copy, tell
        self._given_up: dict[str, int] = {}  # machines that are not emptied any more, and because of which move
        for move in plan.moves:
            if progress.state(move.number) in FAILED:
                self._given_up.setdefault(move.empties, move.number)

    def note(self, move: Move, reached: Reached, detail: str = "") -> None:
        """A move has got so far."""
        self.progress.note(move.number, reached, detail)
        if reached in FAILED:
            self._given_up.setdefault(move.empties, move.number)
        self.tell(move, reached, detail)

    def pointless(self, move: Move) -> str:
        """Why a move that has not begun need not begin any more."""
        if self.progress.state(move.number) is not None:
            return ""  # what was begun is finished
        for number in move.after:
            if self.progress.state(number) in FAILED:
                return f"it needs move {number}, which was not made"
        if (number := self._given_up.get(move.empties, 0)) != 0:
            return f"{move.empties} is not emptied any more: move {number} was not made"
        return ""

    def make(self, move: Move) -> None:
        """Make a move, from where it stopped."""
        reached = self.progress.state(move.number)
        if reached != "copied":
            there = self.mover.machine_of(move.vm)
            if there == move.source:
                if not self._ready(move):
                    return
            elif reached in NOT_HELD or there != move.target:  # else it was finished, and nobody heard of it
                self.note(move, "gone", f"it runs on {there}" if there else "it runs no more")
                return
        finished = self._step(move, "finish")
        if finished.done:
            self.note(move, "finished")
        elif finished.again:
            raise StoreUnavailable(f"move {move.number} ({move.vm}) cannot be finished just now: {finished.detail}")
        else:
            self._cancel(move, finished.detail)

    def _ready(self, move: Move) -> bool:
        """Hold the target and copy the VM; whether that was done."""
        if self.progress.state(move.number) is None:  # whoever goes on must know that room may be held
            self.progress.note(move.number, "begun")
        if problem := self._hold(move):
            self.note(move, "skipped", problem)
            return False
        if self.progress.state(move.number) in NOT_HELD:
            self.note(move, "held")
        if self.copy is not None:
            if problem := self.copy(move):
                self._cancel(move, problem)
                return False
            self.note(move, "copied")
        return True

    def _hold(self, move: Move) -> str:
        """Hold the target, and see that it is held; returns why it is not. What somebody gave back is held anew."""
        for attempt in range(TRIES):
            held = self._step(move, "hold", attempt)
            if not held.done:
                return held.detail
            if self._is_held(move):
                return ""
        return f"the room on {move.target} is given back by somebody"

    def _cancel(self, move: Move, why: str) -> None:
        """Give the target back, and see that it is not held any more."""
        for attempt in range(TRIES):
            answer = self._step(move, "cancel", attempt)
            if not self._is_held(move):
                self.note(move, "cancelled", why)
                return
        detail = answer.detail or "it is held again by somebody"
        raise StoreUnavailable(f"move {move.number} ({move.vm}) cannot be cancelled just now: {detail}")

    def _is_held(self, move: Move) -> bool:
        return self.mover.machine_of(hold_of(move.vm)) == move.target

    def _step(self, move: Move, step: Step, attempt: int = 0) -> Outcome:
        """A step, asked for again if others were faster; `attempt`: as one that was not asked for before."""
        key = f"{self.plan.id}-{self.progress.nonce}-{move.number}-{step}{f'-{attempt}' if attempt else ''}"
        for _ in range(TRIES):
            outcome = self.mover.move(move.tenant, move.vm, move.target, step, key)
            if not outcome.again:
                break
        return outcome

    def result(self) -> Result:
        """What came of it."""
        lines = {move.number: self.progress.reached[move.number] for move in self.plan.moves}
        ends = [line.reached for line in lines.values()]
        return Result(
            plan=self.plan.id,
            moves=len(ends),
            finished=ends.count("finished"),
            gone=ends.count("gone"),
            skipped=ends.count("skipped"),
            cancelled=ends.count("cancelled"),
            emptied=len({move.empties for move in self.plan.moves} - self._given_up.keys()),
            not_done=tuple(
                NotDone(move.number, move.vm, line.reached, line.detail)
                for move in self.plan.moves
                if (line := lines[move.number]).reached not in ("finished", None)
            ),
        )
