"""Why a request would be placed as it would, or not at all, by a rehearsal; what was decided: see `Decision`."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from roost.engine.explain import Explanation, Subject, WhyNot, explaining, why_not
from roost.engine.steps import Steps
from roost.model.errors import InvalidInput
from roost.model.request import Request, heeding
from roost.model.thresholds import Purpose
from roost.placing.arms import Arm, Arms
from roost.placing.books import RunningVM
from roost.placing.gang import Trial
from roost.placing.purpose import purpose_of
from roost.placing.rehearsal import Rehearsal
from roost.placing.remedy import seeking_remedies
from roost.placing.seating import seating
from roost.placing.victims import MustWait, never, room_on, victims_of


def explaining_now(
    allocator: Arms,
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
    number = number_of(allocator, request)
    rehearsal = Rehearsal(arm.engine, arm.shapes)
    trial = yield from _trying_out(allocator, rehearsal, request, purpose, at, fixed)
    subject = subject_of(request, trial, vm)
    victims: tuple[RunningVM, ...] = ()
    if trial.failed_vm is None and len(rehearsal.unchanged(trial.machines, allocator.view)) == len(trial.machines):
        victims = _would_give_way(allocator, trial, arm, at, fixed)
    yield
    found = yield from explaining(arm.engine, rehearsal.engine.view, subject)
    if trial.failed_vm is None:
        return giving_way(found, subject, victims)
    return found.with_remedies((yield from seeking_remedies(allocator, rehearsal, request, constraints, number, trial)))


def telling_why_not(
    allocator: Arms,
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
    return why_not(arm.engine, rehearsal.engine.view, subject_of(request, trial, vm), row)


def _trying_out(
    allocator: Arms,
    rehearsal: Rehearsal,
    request: Request,
    purpose: Purpose | None,
    at: float,
    fixed: Callable[[RunningVM], bool],
) -> Steps[Trial]:
    """What would come of a request, by the same steps as if it were decided."""
    arm = allocator.arm_of(request.tenant)
    tenant, prices = allocator.tenant_of(request, arm), arm.prices
    number, what_for = number_of(allocator, request), purpose_of(tenant, purpose)
    beside = seating(tenant.constraints, request.vms, tenant.vms.values())
    yield
    with rehearsal.engine.pricing(prices.at(at, fixed, rehearsal.engine.view)):
        return (yield from rehearsal.trying_out(request, number, beside, what_for))


def _would_give_way(
    allocator: Arms, trial: Trial, arm: Arm, at: float, fixed: Callable[[RunningVM], bool]
) -> tuple[RunningVM, ...]:
    """What would give way to a trial that is not on the rows."""
    room, generation = room_on(allocator, trial.machines), allocator.view.machines["generation"]
    for machine, shape in trial.places:
        room[machine] -= shape.row["demand"][0][generation[machine]]
    try:
        return victims_of(allocator, trial.places, room, arm.policy.rules.evictions, at, fixed)
    except MustWait:
        return ()


def number_of(allocator: Arms, request: Request) -> int:
    """The tenant's number, if it matters."""
    return allocator.numbers.peek(request.tenant) if any(vm.isolated for vm in request.vms) else 0


def subject_of(request: Request, trial: Trial, vm: int | None) -> Subject:
    """What is explained of a request: a VM by its index, else the one that failed, else the first."""
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


def giving_way(found: Explanation, subject: Subject, victims: Iterable[RunningVM]) -> Explanation:
    """The same with those that give way on the machine that was chosen."""
    return found.with_victims([victim.name for victim in victims if victim.machine == subject.chosen])
