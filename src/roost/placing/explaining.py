"""Why a request is placed as it is, or not at all: now, on a rehearsal, or as it was when it was decided."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from roost.engine.explain import Explanation, Subject, WhyNot, explaining, why_not
from roost.engine.steps import Steps
from roost.engine.view import View
from roost.model.errors import InvalidInput
from roost.model.request import Request, heeding
from roost.model.thresholds import Purpose
from roost.placing.arms import Arm
from roost.placing.books import RunningVM
from roost.placing.gang import Trial
from roost.placing.purpose import purpose_of
from roost.placing.rehearsal import Rehearsal
from roost.placing.remedy import seeking_remedies
from roost.placing.seating import seating
from roost.placing.victims import MustWait, never

if TYPE_CHECKING:
    from roost.placing.allocator import Allocator
    from roost.placing.decision import Decision


def explaining_now(
    allocator: Allocator,
    request: Request,
    vm: int | None = None,
    purpose: Purpose | None = None,
    at: float = 0.0,
    fixed: Callable[[RunningVM], bool] = never,
) -> Steps[Explanation]:
    """Why a request would be placed as it would, or not at all; a step at a time, of the zone at the first one."""
    arm = allocator.arm_of(request.tenant)
    constraints = allocator.tenant_of(request, arm).constraints
    request = heeding(request, constraints)
    number = _number(allocator, request)
    rehearsal = Rehearsal(arm.engine, arm.shapes)
    trial = yield from _trying_out(allocator, rehearsal, request, purpose, at, fixed)
    subject = _subject(request, trial, vm)
    victims: tuple[RunningVM, ...] = ()
    if trial.failed_vm is None and len(rehearsal.unchanged(trial.machines, allocator.view)) == len(trial.machines):
        victims = _would_give_way(allocator, trial, arm, at, fixed)
    yield
    found = yield from explaining(arm.engine, rehearsal.engine.view, subject)
    if trial.failed_vm is None:
        return _giving_way(found, subject, victims)
    return found.with_remedies((yield from seeking_remedies(allocator, rehearsal, request, constraints, number, trial)))


def telling_why_not(
    allocator: Allocator,
    request: Request,
    machine: str,
    vm: int | None = None,
    at: float = 0.0,
    fixed: Callable[[RunningVM], bool] = never,
) -> Steps[WhyNot]:
    """Why a machine does not get a VM of a request, a step at a time, of the zone as it is at the first one."""
    row = allocator.zone.machine(machine)
    arm = allocator.arm_of(request.tenant)
    request = heeding(request, allocator.tenant_of(request, arm).constraints)
    rehearsal = Rehearsal(arm.engine, arm.shapes)
    trial = yield from _trying_out(allocator, rehearsal, request, None, at, fixed)
    yield
    return why_not(arm.engine, rehearsal.engine.view, _subject(request, trial, vm), row)


def explaining_past(
    allocator: Allocator, decision: Decision, vm: int | None, *, remedied: bool = True
) -> Steps[Explanation]:
    """Why a decision was made, a step at a time; not `remedied`: without what would make the request fit."""
    subject, arm = _subject(decision.request, decision.trial, vm), allocator.arm_of(decision.request.tenant)
    past = _past(allocator, decision)
    found = _giving_way((yield from explaining(decision.engine, past, subject)), subject, decision.victims)
    if decision.ok or not remedied or decision.engine is not arm.engine:
        return found
    rehearsal = Rehearsal(arm.engine, arm.shapes, past, decision.after)  # nothing was placed, so all is the same
    request, constraints, number = decision.request, decision.constraints, _number(allocator, decision.request)
    sought = seeking_remedies(allocator, rehearsal, request, constraints, number, decision.trial)
    return found.with_remedies((yield from sought))


def why_not_past(allocator: Allocator, decision: Decision, machine: str, vm: int | None) -> WhyNot:
    """Why a machine did not get a VM of a request when it was decided."""
    subject = _subject(decision.request, decision.trial, vm)
    return why_not(decision.engine, _past(allocator, decision), subject, allocator.zone.machine(machine))


def _trying_out(
    allocator: Allocator,
    rehearsal: Rehearsal,
    request: Request,
    purpose: Purpose | None,
    at: float,
    fixed: Callable[[RunningVM], bool],
) -> Steps[Trial]:
    """What would come of a request, by the same steps as if it were decided."""
    arm = allocator.arm_of(request.tenant)
    tenant, prices = allocator.tenant_of(request, arm), arm.prices
    number, what_for = _number(allocator, request), purpose_of(tenant, purpose)
    beside = seating(tenant.constraints, request.vms, tenant.vms.values())
    yield
    with rehearsal.engine.pricing(prices.at(at, fixed, rehearsal.engine.view)):
        return (yield from rehearsal.trying_out(request, number, beside, what_for))


def _would_give_way(
    allocator: Allocator, trial: Trial, arm: Arm, at: float, fixed: Callable[[RunningVM], bool]
) -> tuple[RunningVM, ...]:
    """What would give way to a trial that is not on the rows."""
    room, generation = allocator.room_on(trial.machines), allocator.view.machines["generation"]
    for machine, shape in trial.places:
        room[machine] -= shape.row["demand"][0][generation[machine]]
    try:
        return allocator.victims_of(trial, room, arm, at, fixed)
    except MustWait:
        return ()


def _number(allocator: Allocator, request: Request) -> int:
    """The tenant's number, if it matters."""
    return allocator.numbers.peek(request.tenant) if any(vm.isolated for vm in request.vms) else 0


def _past(allocator: Allocator, decision: Decision) -> View:
    if not allocator.view.reaches(decision.before):
        raise InvalidInput(
            "decision", f"revision {decision.before} is too long ago to rebuild", "explain decisions sooner"
        )
    return allocator.view.at(decision.before)


def _subject(request: Request, trial: Trial, vm: int | None) -> Subject:
    if vm is None:
        vm = trial.failed_vm if trial.failed_vm is not None else 0
    if not 0 <= vm < len(request.vms):
        raise InvalidInput("vm", f"is {vm}", f"the request has VMs 0 to {len(request.vms) - 1}")
    at = trial.order.index(vm)
    if at > len(trial.machines):
        raise InvalidInput("vm", f"{vm} was never tried", f"VM {trial.failed_vm} found no machine before it")
    seat = trial.seat(at)
    asked, held_to = seat.terms.constraints.named, seat.constraints.named
    return Subject(
        request=request,
        vm=vm,
        shape=trial.shapes[vm],
        of_set=seat.terms.set,
        constraints=seat.constraints,
        waived=tuple(f"{name} = {value}" for name, value in asked.items() if name not in held_to),
        homes=seat.homes,
        remaining=seat.remaining,
        refused=trial.refused,
        aside=trial.aside,
        earlier=tuple((m, trial.shapes[i]) for i, m in zip(trial.order[:at], trial.machines, strict=False)),
        chosen=trial.machines[at] if at < len(trial.machines) else None,
        sought=trial.sought,
    )


def _giving_way(found: Explanation, subject: Subject, victims: Iterable[RunningVM]) -> Explanation:
    """The same with those that give way on the machine that was chosen."""
    return found.with_victims([victim.name for victim in victims if victim.machine == subject.chosen])
