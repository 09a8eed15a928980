"""The allocator of one process: decides where VMs run, on a copy of a zone, by a policy.

What it decides on are its bases: the books (who runs what), the copy of the zone (rows beside them), the arms (policies
at work).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter

import msgspec
import numpy as np
from numpy.typing import NDArray

from roost.engine.choice import BEST, Choice
from roost.engine.explain import Explanation, WhyNot
from roost.engine.recheck import MOST_NUMBERS
from roost.engine.refusal import refusal
from roost.engine.shape import Shape
from roost.engine.steps import Steps, finish
from roost.engine.tenant import NOWHERE
from roost.model.availability import Short, Spread
from roost.model.change import PlacedVM
from roost.model.errors import InvalidInput
from roost.model.request import UNCONSTRAINED, VM, Placement, Request, heeding, hold_of
from roost.model.rows import OCCUPIED
from roost.model.thresholds import Purpose
from roost.placing.arms import Arm, Arms
from roost.placing.books import RunningVM, Tenant
from roost.placing.decision import Decision
from roost.placing.explaining import explaining_now, telling_why_not
from roost.placing.gang import Trial, place_gang
from roost.placing.order import placing_order
from roost.placing.purpose import purpose_of
from roost.placing.search import Search
from roost.placing.seating import FREE, Seating, seating
from roost.placing.victims import MustWait, never, room_on, victims_of

_name = attrgetter("name")
FIRST = (0,)  # the order of one


class Allocator(Arms):
    """Places and releases VMs on its own copy of a zone, by a policy. Same seed and same calls, same decisions."""

    def allocate(
        self, request: Request, choice: Choice = BEST, at: float = 0.0, purpose: Purpose | None = None
    ) -> Decision:
        """Place all VMs of a request, or none. A request that makes no sense raises; one that does not fit does not.

        `choice`: which of the valid machines each VM gets, if not the best; `at`: what time it is, in seconds since
        1970. VMs of lower priority that have to give way are released. `purpose`: unless it is said, VMs of a tenant
        that has some are a scale-out, and others a new deployment.
        """
        decision = self.decide(request, choice, at, purpose=purpose)
        for victim in decision.victims:
            self.strike(victim)
        return decision

    def decide(
        self,
        request: Request,
        choice: Choice = BEST,
        at: float = 0.0,
        fixed: Callable[[RunningVM], bool] = never,
        leaving: Sequence[RunningVM] = (),
        purpose: Purpose | None = None,
        search: Search | None = None,
        aside: NDArray[np.int64] = NOWHERE,
    ) -> Decision:
        """The same, but those that give way stay in the books: they are only taken off their machines' rows.

        What is `fixed` cannot give way; raises MustWait, and changes nothing, if it would have to. `leaving`: the VMs
        of the request as they run now, and what is held for them; they are off the rows if all find other machines.
        `search`: for how long to look for a way to place all of several VMs, and what was tried in vain.
        `aside`: machines that are to have none of them; nor has anybody to give way then.
        """
        arm = self.arm_of(request.tenant)
        tenant = self.tenant_of(request, arm)
        free = tenant.constraints is UNCONSTRAINED  # as nearly always
        if not free:
            request = heeding(request, tenant.constraints)
        names, numbers = self._name_vms(request, tenant, leaving)
        if len(self.numbers) > MOST_NUMBERS:
            self.numbers.only(self.tenants, set(self.view.machines["owner"].tolist()))
        before = self.view.journal.item(0)
        shapes = self.shapes_of(request, arm, purpose_of(tenant, purpose))
        for each in leaving:
            self.view.remove(each.machine, each.shape)
        beside = FREE if free else seating(tenant.constraints, request.vms, tenant.vms.values(), leaving)
        arm.engine.prices = arm.prices.at(at, fixed)
        try:
            if len(aside):
                trial = self._try_elsewhere(shapes, arm, beside, choice, search, aside)
            else:
                trial = self._try(shapes, arm, beside, choice, search)
        finally:
            arm.engine.prices = None
        if trial.failed_vm is not None:
            if leaving:
                self.view.rewind(before)
            return self._decision(request, tenant, trial, (), before, arm)
        since = {each.name: each.since for each in leaving} if leaving else {}
        victims = self._make_way(trial, before, arm, at, fixed) if trial.overfills else ()
        self.tenants.setdefault(request.tenant, tenant)
        tenant.created = numbers
        vms, books, own, machine_names = request.vms, self.vms, tenant.vms, self.zone.machine_names
        by_vm: list[RunningVM] = [None] * len(names)  # type: ignore[list-item]
        placements: list[Placement] = [None] * len(names)  # type: ignore[list-item]
        for i, machine in zip(trial.order, trial.machines, strict=True):
            vm, name, on = vms[i], names[i], machine_names[machine]
            if vm.isolated:
                self.numbers[request.tenant]  # it has one from now on
            spec = msgspec.structs.replace(vm, name="") if vm.name else vm  # its name stands beside it
            placed = PlacedVM(name, spec, on, since.get(name, at) if since else at)
            running = books[name] = own[name] = by_vm[i] = RunningVM(placed, request.tenant, machine, shapes[i])
            placements[i] = Placement(name, spec.type, on)
            self.note_on(running)
        return self._decision(request, tenant, trial, tuple(placements), before, arm, victims, tuple(by_vm))

    def _try(
        self, shapes: tuple[Shape, ...], arm: Arm, beside: Seating, choice: Choice, search: Search | None
    ) -> Trial:
        """Put VMs on machines."""
        order = placing_order(self.zone, shapes, beside.sets) if len(shapes) > 1 else FIRST
        return place_gang(arm.engine, shapes, order, beside, choice, search)

    def _try_elsewhere(
        self,
        shapes: tuple[Shape, ...],
        arm: Arm,
        beside: Seating,
        choice: Choice,
        search: Search | None,
        aside: NDArray[np.int64],
    ) -> Trial:
        """Put VMs on machines that are not set aside, where they make nobody give way."""
        before, desk = self.view.revision, arm.engine.desk
        desk.set_aside(aside)
        try:
            # Whoever is free goes to the desk, too.
            trial = self._try(shapes, arm, Seating(beside.parts, beside.sets), choice, search)
        finally:
            desk.set_aside(NOWHERE)
        if trial.overfills:
            self.view.rewind(before)
            trial = msgspec.structs.replace(trial, machines=(), failed_vm=trial.order[0])
        return msgspec.structs.replace(trial, aside=aside)

    def _make_way(
        self, trial: Trial, before: int, arm: Arm, at: float, fixed: Callable[[RunningVM], bool]
    ) -> tuple[RunningVM, ...]:
        """Take VMs of lower priority off the machines that a trial has overfilled."""
        try:
            victims = victims_of(
                self, trial.places, room_on(self, trial.machines), arm.policy.rules.evictions, at, fixed
            )
        except MustWait:
            self.view.rewind(before)
            raise
        for victim in victims:
            self.view.remove(victim.machine, victim.shape)
        return victims

    def recall(
        self, request: Request, trial: Trial, placements: tuple[Placement, ...], victims: tuple[RunningVM, ...]
    ) -> Decision:
        """A decision that was made on a zone in this very state, elsewhere or earlier, to be explained."""
        arm = self.arm_of(request.tenant)
        tenant = self.tenant_of(request, arm)
        return self._decision(request, tenant, trial, placements, self.view.revision, arm, victims)

    def _decision(
        self,
        request: Request,
        tenant: Tenant,
        trial: Trial,
        placements: tuple[Placement, ...],
        before: int,
        arm: Arm,
        victims: tuple[RunningVM, ...] = (),
        running: tuple[RunningVM, ...] = (),
    ) -> Decision:
        after = self.view.journal.item(0)
        short: tuple[Short, ...] = ()
        spread: tuple[Spread, ...] = ()
        if placements and trial.seating is not FREE:
            racks, domains = self.zone.machines["rack"], self.zone.machines["update_domain"]
            short, spread = trial.short(racks, domains), trial.spread(racks, domains)
        return Decision(
            request, tenant.constraints, placements, trial, before, after, arm, self, running, victims, short, spread
        )

    def _name_vms(self, request: Request, tenant: Tenant, leaving: Sequence[RunningVM]) -> tuple[list[str], int]:
        """A name for each VM of a request, and how many numbers the tenant has used up for names by then."""
        names: list[str] = []
        if leaving:  # they keep theirs
            return [vm.name for vm in request.vms], tenant.created
        number, taken, reserved = tenant.created, self.vms, self.reserved
        if not any(map(_name, request.vms)):  # as nearly always
            while len(names) < len(request.vms):
                if (name := f"{request.tenant}/{number}") not in taken and name not in reserved:
                    names.append(name)
                number += 1
            return names, number
        wished = {vm.name for vm in request.vms}
        for i, vm in enumerate(request.vms):
            name = vm.name
            if name and (name in self.vms or name in names):
                raise InvalidInput(f"request.vms[{i}].name", f"{name!r} is taken", "choose another name, or none")
            while not name or (not vm.name and (name in taken or name in wished or name in reserved)):
                name, number = f"{request.tenant}/{number}", number + 1
            names.append(name)
        return names, number

    def has_machine_for(self, vm: VM, arm: Arm) -> bool:
        """Whether any machine would have a VM that is healed, whatever else its tenant wants. Nothing is placed."""
        shape = arm.shapes.of(vm, 0, purpose=Purpose.HEALING)
        before = self.view.attempt()
        arm.engine.desk.close()
        try:
            return arm.engine.assign(shape).machine >= 0
        finally:
            self.view.rewind(before)

    def refusal(self, running: RunningVM, machine: int, off: Iterable[RunningVM]) -> str | None:
        """Why a machine may not have a VM that runs elsewhere; None if it may. As if those `off` did not run.

        For the tenant's constraints the VM counts only there, whatever it holds until it has moved. What is asked for
        as best effort refuses nothing: somebody has said where the VM is to go.
        """
        arm, tenant = self.arm_of(running.tenant), self.tenants[running.tenant]
        arm.check_enforced(tenant.constraints)
        terms = tenant.constraints.terms(running.vm.set)
        shape = self.shape(running.vm, running.tenant, purpose=Purpose.HEALING)  # it is admitted already
        moving = running.name, hold_of(running.name)
        homes = [vm.machine for name, vm in tenant.vms.items() if name not in moving and vm.vm.set == terms.set]
        before = self.view.attempt()
        try:
            for each in off:
                self.view.remove(each.machine, each.shape)
            arm.engine.desk.open(terms.rungs[-1], homes, 1)
            if why := refusal(arm.engine, shape, machine, terms.set):
                return why
            row = self.view.machines[machine]
            room = row["free"][-1] >= shape.row["demand"][0][row["generation"]]
            return None if room.all() else OCCUPIED
        finally:
            arm.engine.desk.close()
            self.view.rewind(before)

    # ---------------------------------------------------------------------------------------- explaining

    def explain(
        self,
        request: Request,
        vm: int | None = None,
        purpose: Purpose | None = None,
        at: float = 0.0,
        fixed: Callable[[RunningVM], bool] = never,
    ) -> Explanation:
        """Why a request would be placed as it would, or not at all; nothing is placed. `purpose`: see `allocate`.

        Explains the VM that finds no machine, or else the first; `vm` picks another by its index in the request.
        `at`, `fixed`: see `decide`; while what would give way is unclear, nothing is said of it.
        """
        return finish(self.explaining(request, vm, purpose, at, fixed))

    def explaining(
        self,
        request: Request,
        vm: int | None = None,
        purpose: Purpose | None = None,
        at: float = 0.0,
        fixed: Callable[[RunningVM], bool] = never,
    ) -> Steps[Explanation]:
        """The same a step at a time, of the zone as it is at the first one."""
        return explaining_now(self, request, vm, purpose, at, fixed)

    def why_not(
        self,
        request: Request,
        machine: str,
        vm: int | None = None,
        at: float = 0.0,
        fixed: Callable[[RunningVM], bool] = never,
    ) -> WhyNot:
        """Why a machine does not get a VM of a request: who refuses it, or the preference by which it loses.

        `at`, `fixed`: see `decide`.
        """
        return finish(self.telling_why_not(request, machine, vm, at, fixed))

    def telling_why_not(
        self,
        request: Request,
        machine: str,
        vm: int | None = None,
        at: float = 0.0,
        fixed: Callable[[RunningVM], bool] = never,
    ) -> Steps[WhyNot]:
        """The same a step at a time, of the zone as it is at the first one."""
        return telling_why_not(self, request, machine, vm, at, fixed)
