"""How verbs that place VMs decide: where the VMs are to run, ahead of the feed, and what the store is asked for."""

from __future__ import annotations

from operator import attrgetter

import msgspec

from roost.agent.context import Context
from roost.agent.replica import Replica
from roost.agent.settings import ROUND_SECONDS
from roost.agent.ticket import Ticket, Unfinished
from roost.agent.verbs.verb import Wanted
from roost.engine.choice import BEST
from roost.model.thresholds import PURPOSES
from roost.placing.decision import Decision
from roost.placing.search import IN_ALL, IN_VAIN, Search
from roost.placing.victims import MustWait
from roost.store import contract as store
from roost.store.contract import Proposal, Record

_placed = attrgetter("placed")


def propose(context: Context, ticket: Ticket, wanted: Wanted) -> Proposal:
    """Decide where VMs are to run; the proposal, or that it is declined."""
    replica, at = context.replica, context.now()
    request, leaving, aside, purpose = wanted.request, wanted.leaving, wanted.aside, wanted.purpose
    round_, position = ticket.round, ticket.position
    known = replica.allocator.tenants.get(request.tenant)
    stamp = known.stamp if known else 0
    arm = replica.allocator.arm_of(request.tenant)
    lots = arm.engine.rng.item(0)
    choice = context.avoidance.draw()
    if len(request.vms) > 1 and ticket.search is None:
        ticket.search = Search(IN_VAIN, IN_ALL, context.clock, ROUND_SECONDS)  # for a way to place all of them
    try:
        decision = ticket.decision = replica.place(
            request, round_, position, choice, at, purpose, leaving, ticket.search, aside
        )
    except MustWait:
        arm.engine.rng[0] = lots
        raise
    ticket.decided = context.clock()
    ok = decision.ok
    if not ok and ticket.unfinished and not ticket.dry:
        raise Unfinished
    if (
        context.shadow is not None
        and decision.trial.choice == BEST
        and not (decision.trial.sought or len(aside) or ticket.dry)
    ):  # what avoids conflicts, or machines, or was sought for the sake of other VMs, is no policy's choice
        context.shadow.look(decision)
    trial = decision.trial
    record = Record(
        agent=context.agent,
        round=round_,
        position=position,
        at=at,
        by=ticket.by,
        policy=arm.recorded,
        retries=ticket.retries,
        hits=trial.hits,
        updated=trial.updated,
        waited_us=int((ticket.started - ticket.submitted) * 1e6),
        decided_us=int((ticket.decided - ticket.started) * 1e6),
        constraints=decision.constraints,
        lots=arm.engine.rng.item(0),
        purpose=PURPOSES[trial.shapes[0].traits["purpose"]],
    )
    if not _is_ordinary(decision):
        record = _with_the_rest(record, decision, replica)
    if not ok:
        arm.engine.rng[0] = lots  # nothing that comes later depends on how often something was tried in vain
        return store.Decline(key=ticket.key, request=ticket.request, record=record)
    if not ticket.dry:
        context.avoidance.next_lot()
    placed = tuple(map(_placed, decision.running))
    seen = store.NOTHING
    if context.settings.strict:
        index = replica.allocator.zone.machine_index
        seen = {each.machine: replica.seen(index[each.machine]) for each in placed}
    return store.Place(
        key=ticket.key,
        request=ticket.request,
        record=record,
        tenant=request.tenant,
        premise=ticket.premise,
        constraints=decision.constraints,
        stamp=stamp,
        placed=placed,
        leaving=tuple(map(_placed, leaving)),
        victims=record.victims,
        grace=arm.policy.rules.evictions.grace,
        requeued=wanted.requeued,
        seen=seen,
    )


def _is_ordinary(decision: Decision) -> bool:
    """Whether each VM in its turn, as they came, found the best machine, and nothing else is to be recorded of it."""
    trial = decision.trial
    order = trial.order
    return (
        decision.ok
        and trial.choice is BEST
        and (len(order) == 1 or order == tuple(range(len(order))))
        and not (trial.tried or trial.rungs or trial.sought or decision.victims or decision.spread)
    )


def _with_the_rest(record: Record, decision: Decision, replica: Replica) -> Record:
    """What is seldom to be said of a decision, besides what is said of all: a record is made for each of them."""
    trial, names = decision.trial, replica.allocator.zone.machine_names
    order = trial.order
    return msgspec.structs.replace(
        record,
        order=() if order == tuple(range(len(order))) else order,
        found=() if decision.ok else tuple([names[m] for m in trial.machines]),
        refused=trial.tried,
        rungs=trial.rungs,
        short=decision.short,
        spread=decision.spread,
        sought=trial.sought,
        victims=replica.victims(record.round, record.position) if decision.victims else (),
        avoiding=trial.choice != BEST,
    )
