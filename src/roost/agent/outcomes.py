"""What came of what an agent asked of the store: its copy keeps it or takes it back, and whoever asked is answered.

committed ──▶ confirm: the copy keeps it ──▶ answer, at once or when the feed has brought it
conflict  ──▶ take back, believe the fresh rows ──▶ queue again, or give up
no answer ──▶ forget: take the whole round back; if it was committed, the feed will bring it
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from roost.agent.context import Context
from roost.agent.operation import Answer, Evicted, Operation, Status
from roost.agent.ticket import Ticket
from roost.agent.under_way import UnderWay
from roost.agent.verbs.table import verb_of
from roost.model.availability import Short, Spread
from roost.model.change import PlacedVM
from roost.model.errors import InvalidInput, RoostError
from roost.model.request import HOLD, Placement
from roost.placing.decision import Decision
from roost.store import contract as store
from roost.store.contract import Committed, Conflict, Outcome, Rejected, Replayed


@dataclass(slots=True)
class Counters:
    """What an agent did since it began."""

    commits: int = 0  # attempts to place
    conflicts: int = 0
    placed_vms: int = 0
    done: int = 0
    declined: int = 0
    gave_up: int = 0
    rounds: int = 0
    followed: int = 0  # entries of the feed
    reloads: int = 0
    reasons: dict[str, int] = field(default_factory=dict)  # of conflicts
    answers: dict[tuple[str, Status], int] = field(default_factory=dict)  # by verb, as operations are called


class Outcomes:
    """Confirms, takes back and answers what an agent has sent to the store."""

    def __init__(self, context: Context, under_way: UnderWay) -> None:
        self._context, self._under_way = context, under_way
        self.counters = Counters()
        self._names: dict[type[Operation], str] = {}  # of verbs

    def confirm(self, round_: int, tickets: Sequence[Ticket], outcomes: Sequence[Outcome], seconds: float) -> None:
        """Keep what was committed of a round, take back the rest, believe the fresh rows, answer or try again."""
        replica, ahead = self._context.replica, self._context.replica.ahead[round_]
        for position, outcome in enumerate(outcomes):
            if position not in ahead.placed:
                continue
            mine = isinstance(outcome, Replayed) and _is_of(outcome, self._context.agent, round_, position)
            if isinstance(outcome, Committed):
                replica.confirm(round_, position, outcome.versions, outcome.before, outcome.stamp)
            elif mine:  # the store was away after it had done it
                ahead.plain = False
            else:
                replica.take_back(round_, position)
            self.counters.commits += 1
            self._context.avoidance.note(isinstance(outcome, Conflict) and outcome.reason != "premise")
        for outcome in outcomes:
            if isinstance(outcome, Conflict):
                replica.adopt(outcome.machines, round_)
        if ahead.placed:
            ahead.settled = True
        else:
            del replica.ahead[round_]
        took = int(seconds * 1e6)
        for position, (ticket, outcome) in enumerate(zip(tickets, outcomes, strict=True)):
            self.conclude(ticket, outcome, round_, position, took)

    def forget(self, round_: int, tickets: Sequence[Ticket], error: RoostError) -> None:
        """Nobody knows what came of a round: take it back here; if it was committed, the feed will bring it."""
        replica = self._context.replica
        for position in list(replica.ahead[round_].placed):
            replica.take_back(round_, position)
        del replica.ahead[round_]
        for ticket in tickets:
            self.answer(ticket, "unavailable", f"{error}; ask again with the same key")

    def conclude(
        self, ticket: Ticket, outcome: Outcome, round_: int, position: int, took: int, *, fed: bool = False
    ) -> None:
        """Answer what came of a ticket. `fed`: do not wait for the feed to bring it."""
        if isinstance(outcome, Conflict):
            self.lost(ticket, outcome)
        elif isinstance(outcome, Rejected):
            self.answer(ticket, "invalid", error=outcome.error, took=took)
        elif isinstance(outcome, Replayed):
            mine = _is_of(outcome, self._context.agent, round_, position)
            decided = outcome.decided
            record = decided.record
            self.answer(
                ticket,
                "done",
                placed=decided.placed,
                evicted=evicted_of(record.victims),
                short=record.short,
                spread=record.spread,
                generation=record.generation,
                replayed=not mine,
                took=took,
            )
        elif ticket.asking:
            self._under_way.queue(ticket, first=True)  # and look again: the feed since then comes with this answer
        elif ticket.refusal:
            self.answer(ticket, "declined", ticket.refusal, took=took)
        elif ticket.decision is not None and not ticket.decision.ok:
            detail = f"no machine for VM {ticket.decision.trial.failed_vm} of the request"
            if ticket.search and ticket.search.unfinished:
                detail += f" (cut short: {ticket.search.unfinished})"
            self.answer(ticket, "declined", detail, took=took)
        elif ticket.decision is not None:
            decision = ticket.decision
            self.answer(
                ticket,
                "done",
                placements=decision.placements,
                evicted=self._evicted_for(decision) if decision.victims else (),
                short=decision.short,
                spread=decision.spread,
                generation=outcome.stamp,
                took=took,
            )
        elif outcome.changed and not fed:
            ticket.generation = verb_of(ticket.operation).generation(ticket.operation, outcome)
            self._under_way.unfed.setdefault(round_, []).append(ticket)
        else:
            generation = verb_of(ticket.operation).generation(ticket.operation, outcome)
            self.answer(ticket, "done", generation=generation, took=took)

    def _evicted_for(self, decision: Decision) -> tuple[Evicted, ...]:
        return evicted_of([store.Victim(vm.tenant, vm.placed) for vm in decision.victims])

    def fed(self, round_: int) -> None:
        """The copy has what was committed in a round."""
        for ticket in self._under_way.unfed.pop(round_, ()):
            self.answer(ticket, "done", generation=ticket.generation)

    def lost(self, ticket: Ticket, conflict: Conflict) -> None:
        """Try again, on what is known now, or give up."""
        verb = verb_of(ticket.operation)
        if not ticket.dry:
            reasons = self.counters.reasons
            reasons[conflict.reason] = reasons.get(conflict.reason, 0) + 1
            self.counters.conflicts += verb.places
        if conflict.reason == "premise":
            self.answer(ticket, "invalid", error=self._broken(ticket.operation, conflict))
        elif error := verb.hopeless(conflict):
            self.answer(ticket, "invalid", error=error)
        elif ticket.retries >= self._context.settings.retries:
            self.answer(ticket, "conflicts", f"{conflict.detail} ({ticket.retries} retries)")
        else:
            ticket.retries += 1
            ticket.decision, ticket.search, ticket.asked = None, None, False
            if conflict.behind and not ticket.dry:  # whoever rehearses it again has another key
                self._under_way.note_asked(ticket)
            if not ticket.dry:
                self._under_way.queue(ticket, first=True)

    def _broken(self, operation: Operation, conflict: Conflict) -> InvalidInput:
        """What is to be answered where the store says that something is not as whoever asks was told."""
        try:
            verb_of(operation).check_premise(operation, self._context.allocator.tenants, conflict.stamp or 0)
        except InvalidInput as error:
            return error
        raise AssertionError("unreachable")

    def answer(
        self,
        ticket: Ticket,
        status: Status,
        detail: str = "",
        *,
        error: RoostError | None = None,
        generation: int = 0,
        placements: tuple[Placement, ...] = (),
        placed: Sequence[PlacedVM] = (),
        evicted: tuple[Evicted, ...] = (),
        short: tuple[Short, ...] = (),
        spread: tuple[Spread, ...] = (),
        replayed: bool = False,
        took: int = 0,
    ) -> None:
        """Say what came of a ticket to whoever asked, and count it."""
        if placed and not placements:
            placements = tuple([Placement(each.vm, each.spec.type, each.machine) for each in placed])
        if not ticket.dry:
            self._count(ticket.operation, status, 0 if replayed else len(placements))
        if self._under_way.asked:
            self._under_way.forget_asked(ticket.key)
        decided = ticket.decided or ticket.started or ticket.submitted
        started = ticket.started or ticket.submitted
        ticket.answer = answer = Answer(
            key=ticket.key,
            status=status,
            placements=placements,
            evicted=evicted,
            short=short,
            spread=spread,
            detail=str(error) if error else detail,
            code=error.code if error else "",
            where=error.where if isinstance(error, InvalidInput) else "",
            generation=generation,
            replayed=replayed,
            retries=ticket.retries,
            waited_us=int((started - ticket.submitted) * 1e6),
            decided_us=int((decided - started) * 1e6),
            committed_us=took,
        )
        if ticket.done is not None:
            ticket.done(answer)

    def _count(self, operation: Operation, status: Status, placed: int) -> None:
        counters = self.counters
        if (verb := self._names.get(type(operation))) is None:
            verb = self._names[type(operation)] = str(operation.__struct_config__.tag)
        counters.answers[verb, status] = counters.answers.get((verb, status), 0) + 1
        counters.done += status == "done"
        counters.declined += status == "declined"
        counters.gave_up += status == "conflicts"
        counters.placed_vms += placed if status == "done" else 0


def evicted_of(victims: Sequence[store.Victim]) -> tuple[Evicted, ...]:
    """The VMs among those that gave way; room that was held for them is none."""
    found = [
        Evicted(each.vm.vm, each.tenant, each.vm.spec.type, each.vm.spec.priority, each.vm.machine)
        for each in victims
        if not each.vm.vm.endswith(HOLD)
    ]
    return tuple(found)


def _is_of(outcome: Replayed, agent: str, round_: int, position: int) -> bool:
    record = outcome.decided.record
    return (record.agent, record.round, record.position) == (agent, round_, position)
