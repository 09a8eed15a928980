"""The allocator of one process: a zone in memory, a policy, and the VMs that run."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray

from roost.engine.choice import BEST, Choice
from roost.engine.explain import Explanation, Subject, WhyNot, explaining, why_not
from roost.engine.invariants import check_rows
from roost.engine.kernel.compiler import compile_rules
from roost.engine.pools import PoolStats
from roost.engine.recheck import MOST_NUMBERS, TenantNumbers
from roost.engine.refusal import refusal
from roost.engine.ruleset import PolicySplit, RulePolicy
from roost.engine.selection import CacheLimits, Engine
from roost.engine.shape import Shape, Shapes
from roost.engine.statistics import RuleFilter, rule_filters
from roost.engine.steps import Steps, finish
from roost.engine.tenant import NOWHERE
from roost.engine.view import View
from roost.model.errors import InvalidInput, UnknownName
from roost.model.request import UNCONSTRAINED, VM, Constraints, Placement, Request, Terms, heeding, hold_of
from roost.model.rows import OCCUPIED, MachineState
from roost.model.thresholds import Purpose, Thresholds
from roost.model.zone import Zone
from roost.placing.books import RunningVM, Tenant
from roost.placing.decision import Decision
from roost.placing.gang import Trial, place_gang
from roost.placing.order import placing_order
from roost.placing.rehearsal import Rehearsal, try_out
from roost.placing.remedy import seeking_remedies
from roost.placing.search import Search
from roost.placing.seating import Seating, seating
from roost.placing.victims import MustWait, Prices, choose_victims, never

UNNAMED = {""}  # the names of VMs that are to be given one


@dataclass(frozen=True, slots=True)
class Arm:
    """A policy at work: what it asks of VMs, and the engine that decides by it."""

    policy: RulePolicy
    shapes: Shapes
    engine: Engine
    prices: Prices  # by its terms
    recorded: str  # what decisions call the policy: name and digest

    def check_enforced(self, constraints: Constraints) -> None:
        """Refuse constraints that the policy knows nothing of."""
        if constraints == UNCONSTRAINED:
            return
        for name in ("", *constraints.sets):
            self._check_terms(constraints.terms(name))

    def _check_terms(self, terms: Terms) -> None:
        policy = self.policy
        for name, value in terms.constraints.named.items():
            if not {name, f"{name}={value}"} & policy.rules.enforced:
                where = f"constraints.sets.{terms.set}" if terms.set else f"constraints.{name}"
                what = name if terms.set else "it"
                raise InvalidInput(where, f"policy {policy.name} has no rule for {what}", "use a policy that has")


@dataclass(frozen=True, slots=True)
class Usage:
    """How full a zone is, by its first resource (cores)."""

    machines: int
    empty_machines: int
    vms: int
    tenants: int
    utilisation: float  # of all cores
    packing_density: float  # of the cores of machines in use


@dataclass(frozen=True, slots=True)
class Stats:
    """An allocator at one moment."""

    revision: int
    usage: Usage
    caches: dict[str, PoolStats]  # by class of cached objects
    memory: dict[str, int]  # bytes, by what holds them


class Allocator:
    """Places and releases VMs on its own copy of a zone, by a policy. Same seed and same calls, same decisions."""

    def __init__(
        self,
        zone: Zone,
        policy: RulePolicy | PolicySplit,
        seed: int = 0,
        *,
        limits: CacheLimits | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.zone, self._limits, self._clock, self._seed = zone, limits, clock, seed
        self.vms: dict[str, RunningVM] = {}
        # By machine: VMs by identity. For a while two tenants may have VMs of the same name.
        self._on: dict[int, dict[int, RunningVM]] = {}
        self.reserved: set[str] = set()  # names that VMs had which may come back: none is given to another unasked
        self.leaving: dict[str, RunningVM] = {}  # VMs in the books that are off their machines' rows: they give way
        self.tenants: dict[str, Tenant] = {}
        self.numbers = TenantNumbers()
        main = policy.main if isinstance(policy, PolicySplit) else policy
        self.view = View(zone, compile_rules(main.rules, zone))
        self.switch_policy(policy)

    def switch_policy(self, policy: RulePolicy | PolicySplit) -> None:
        """Decide by another policy, or by two, from now on. What runs stays; a policy that does not work is refused.

        Compiles what the policies need, or loads it from disk, by trying them out on a copy of the zone.
        """
        split = policy if isinstance(policy, PolicySplit) else PolicySplit(policy)
        self.split, self.arms = split, tuple([self.arm_for(each) for each in split.policies])

    def arm_for(self, policy: RulePolicy, seed: int | None = None) -> Arm:
        """A policy at work on this copy of the zone, with caches of its own; one that does not work is refused.

        `seed`: of its lots, if not the allocator's.
        """
        rules = policy.rules
        kernel, shapes = compile_rules(rules, self.zone), Shapes(self.zone, rules)
        try_out(self.view, kernel, rules, shapes)
        seed = self._seed if seed is None else seed
        engine = Engine(self.view, rules, seed, self._limits, self._clock, kernel)
        return Arm(policy, shapes, engine, Prices(self, rules.evictions), f"{policy.name} {policy.digest}")

    def arm_of(self, tenant: str) -> Arm:
        """What decides for a tenant."""
        return self.arms[self.split.arm_of(tenant)]

    @property
    def policy(self) -> RulePolicy:
        """The main policy."""
        return self.arms[0].policy

    @property
    def shapes(self) -> Shapes:
        """What the main policy asks of VMs."""
        return self.arms[0].shapes

    @property
    def engine(self) -> Engine:
        """What decides by the main policy."""
        return self.arms[0].engine

    # ------------------------------------------------------------------------------------------- placing

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
        tenant = self._tenant_of(request)
        request = heeding(request, tenant.constraints)
        names, numbers = self._name_vms(request, tenant, leaving)
        if len(self.numbers) > MOST_NUMBERS:
            self.numbers.keep(self.tenants, set(self.view.machines["owner"].tolist()))
        before = self.view.revision
        arm = self.arm_of(request.tenant)
        shapes = self.shapes_of(request, arm, _purpose(tenant, purpose))
        for each in leaving:
            self.view.remove(each.machine, each.shape)
        beside = seating(tenant.constraints, request.vms, tenant.vms.values(), leaving)
        with arm.engine.pricing(arm.prices.at(at, fixed)):
            if len(aside):
                trial = self._try_elsewhere(shapes, arm, beside, choice, search, aside)
            else:
                trial = self._try(shapes, arm, beside, choice, search)
        if trial.failed_vm is not None:
            if leaving:
                self.view.rewind(before)
            return self._decision(request, tenant, trial, (), before, arm)
        since = {each.name: each.since for each in leaving}
        victims = self._make_way(trial, before, arm, at, fixed) if trial.overfills else ()
        self.tenants.setdefault(request.tenant, tenant)
        tenant.created = numbers
        vms, books, own, machine_names = request.vms, self.vms, tenant.vms, self.zone.machine_names
        by_vm: list[Placement | None] = [None] * len(names)
        for i, machine in zip(trial.order, trial.machines, strict=True):
            vm, name, shape = vms[i], names[i], trial.shapes[i]
            if vm.isolated:
                self.numbers.give(request.tenant)
            running = books[name] = own[name] = RunningVM(
                name, vm, request.tenant, machine, shape, since.get(name, at) if since else at
            )
            self._note_on(running)
            by_vm[i] = Placement(name, vm.type, machine_names[machine])
        return self._decision(request, tenant, trial, tuple(by_vm), before, arm, victims)  # type: ignore[arg-type]

    def _try(
        self, shapes: tuple[Shape, ...], arm: Arm, beside: Seating, choice: Choice, search: Search | None
    ) -> Trial:
        """Put VMs on machines."""
        order = placing_order(self.zone, shapes, beside.sets)
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
            trial = msgspec.structs.replace(trial, machines=())
        return msgspec.structs.replace(trial, aside=aside)

    def _make_way(
        self, trial: Trial, before: int, arm: Arm, at: float, fixed: Callable[[RunningVM], bool]
    ) -> tuple[RunningVM, ...]:
        """Take VMs of lower priority off the machines that a trial has overfilled."""
        try:
            victims = self._victims_of(trial, self._room(trial.machines), arm, at, fixed)
        except MustWait:
            self.view.rewind(before)
            raise
        for victim in victims:
            self.view.remove(victim.machine, victim.shape)
        return victims

    def _room(self, machines: Iterable[int]) -> dict[int, np.ndarray]:
        """What nobody holds of some machines, by resource; below zero where others have to give way."""
        rows = self.view.machines
        return {machine: rows[machine]["free"][-1].astype(np.int64) for machine in machines}

    def _victims_of(
        self, trial: Trial, room: Mapping[int, np.ndarray], arm: Arm, at: float, fixed: Callable[[RunningVM], bool]
    ) -> tuple[RunningVM, ...]:
        """Who has to go for a trial, which leaves that room."""
        bands: dict[int, int] = {}
        for machine, shape in trial.places:
            band = shape.traits["priority"]
            bands[machine] = min(band, bands.get(machine, band))
        return choose_victims(self, room, bands, arm.policy.rules.evictions, at, fixed)

    def giving_way(self, machine: int) -> Iterable[RunningVM]:
        """The VMs of a machine that are below the highest band."""
        return [vm for vm in self._on.get(machine, {}).values() if vm.shape.traits["priority"]]

    def _note_on(self, running: RunningVM) -> None:
        if (there := self._on.get(running.machine)) is None:
            there = self._on[running.machine] = {}
        there[id(running)] = running

    def shapes_of(self, request: Request, arm: Arm, purpose: Purpose) -> tuple[Shape, ...]:
        """What each VM of a request asks for; mostly they are one and the same VM."""
        found: list[Shape] = []
        last: VM | None = None
        for i, vm in enumerate(request.vms):
            if vm is last:
                found.append(found[-1])
                continue
            number = self.numbers.peek(request.tenant) if vm.isolated else 0
            found.append(arm.shapes.of(vm, number, f"request.vms[{i}]", purpose))
            last = vm
        return tuple(found)

    def recall(
        self, request: Request, trial: Trial, placements: tuple[Placement, ...], victims: tuple[RunningVM, ...]
    ) -> Decision:
        """A decision that was made on a zone in this very state, elsewhere or earlier, to be explained."""
        arm = self.arm_of(request.tenant)
        return self._decision(request, self._tenant_of(request), trial, placements, self.view.revision, arm, victims)

    def shape(self, vm: VM, tenant: str, where: str = "vm", purpose: Purpose = Purpose.NEW) -> Shape:
        """What a VM of a tenant asks for. Names that the zone does not know are refused."""
        return self.arm_of(tenant).shapes.of(vm, self.numbers.peek(tenant) if vm.isolated else 0, where, purpose)

    def running_shape(self, vm: VM, tenant: str) -> Shape:
        """What a VM that runs has, whoever placed it."""
        return self.shapes.of_running(vm, self.numbers[tenant] if vm.isolated else 0)

    def _decision(
        self,
        request: Request,
        tenant: Tenant,
        trial: Trial,
        placements: tuple[Placement, ...],
        before: int,
        arm: Arm,
        victims: tuple[RunningVM, ...] = (),
    ) -> Decision:
        after = int(self.view.journal[0])
        return Decision(request, tenant.constraints, placements, trial, before, after, arm.engine, self, victims)

    def _tenant_of(self, request: Request) -> Tenant:
        """The tenant of a request, existing or new, or an error that says what is wrong with its constraints."""
        tenant = self.tenants.get(request.tenant)
        if tenant is None:
            tenant = Tenant((request.constraints or UNCONSTRAINED).wished_by(request.vms))
            for name, wanted in tenant.constraints.sets.items():
                self.zone.availability.check(name, wanted)
        elif request.constraints is not None and not _same(request.constraints, tenant.constraints):
            raise InvalidInput(
                "request.constraints",
                f"differ from those that tenant {request.tenant} has",
                "leave them out: a scale-out keeps the tenant's constraints",
            )
        self.arm_of(request.tenant).check_enforced(tenant.constraints)
        for vm in request.vms:
            if vm.set and vm.set not in (sets := tenant.constraints.sets):
                where = f"request.vms[{request.vms.index(vm)}].set"
                raise UnknownName(where, f"availability set of tenant {request.tenant}", vm.set, sets)
        return tenant

    def _name_vms(self, request: Request, tenant: Tenant, leaving: Sequence[RunningVM]) -> tuple[list[str], int]:
        """A name for each VM of a request, and how many numbers the tenant has used up for names by then."""
        names: list[str] = []
        if leaving:  # they keep theirs
            return [vm.name for vm in request.vms], tenant.created
        number, taken, reserved = tenant.created, self.vms, self.reserved
        wished = {vm.name for vm in request.vms}
        if wished == UNNAMED:  # as nearly always
            while len(names) < len(request.vms):
                if (name := f"{request.tenant}/{number}") not in taken and name not in reserved:
                    names.append(name)
                number += 1
            return names, number
        for i, vm in enumerate(request.vms):
            name = vm.name
            if name and (name in self.vms or name in names):
                raise InvalidInput(f"request.vms[{i}].name", f"{name!r} is taken", "choose another name, or none")
            while not name or (not vm.name and (name in taken or name in wished or name in reserved)):
                name, number = f"{request.tenant}/{number}", number + 1
            names.append(name)
        return names, number

    def release(self, vm: str) -> None:
        """Take a VM off its machine. A tenant without VMs is forgotten."""
        running = self.vms.get(vm)
        if running is None:
            raise UnknownName("vm", "running VM", vm, self.vms)
        self.view.remove(running.machine, running.shape)
        self.strike(running)

    def enter(self, running: RunningVM, *, named: bool = True) -> None:
        """Write a VM into the books; the rows are another matter. Not `named`: another VM has its name for now."""
        if named:
            self.vms[running.name] = running
        self._note_on(running)
        tenant = self.tenants.get(running.tenant)
        if tenant is None:
            tenant = self.tenants[running.tenant] = Tenant(UNCONSTRAINED)
        tenant.vms[running.name] = running

    def rehouse(self, old: RunningVM, new: RunningVM) -> None:
        """Write a VM into the books where it is now, in the place of where it was; the rows are another matter."""
        self.vms[old.name] = self.tenants[old.tenant].vms[old.name] = new
        self._on.get(old.machine, {}).pop(id(old), None)
        self._note_on(new)

    def strike(self, running: RunningVM, heir: RunningVM | None = None) -> None:
        """Strike a VM from the books; an heir takes over its name. A tenant without VMs is forgotten."""
        name, tenant = running.name, self.tenants[running.tenant]
        if tenant.vms.get(name) is running:
            del tenant.vms[name]
        self._on.get(running.machine, {}).pop(id(running), None)
        if heir is not None:
            self.enter(heir)
        elif self.vms.get(name) is running:
            del self.vms[name]
        if not tenant.vms:
            del self.tenants[running.tenant]

    def refresh(self, steps: int = 1) -> int:
        """Use idle time to bring caches up to date; returns the machines looked at, 0 when there is nothing to do."""
        return sum(arm.engine.refresh(steps) for arm in self.arms)

    # ------------------------------------------------------------------------------------------ machines

    def set_machine_state(self, machine: str, state: str) -> None:
        """Make a machine ready, draining, down or quarantined. What runs on it stays."""
        names = [s.name.lower() for s in MachineState]
        if state not in names:
            raise UnknownName("state", "machine state", state, names)
        self.view.set_state(self.zone.machine(machine), MachineState[state.upper()])

    def set_machine_health(self, machine: str, health: int) -> None:
        """Say how healthy a machine is: 100 is perfect, 0 is broken."""
        if not isinstance(health, int) or not 0 <= health <= 100:
            raise InvalidInput("health", f"is {health!r}", "use a whole number from 0 to 100")
        self.view.set_field(self.zone.machine(machine), "health", health)

    def quarantine_cluster(self, cluster: str, quarantined: bool = True) -> None:
        """Take a cluster out of use for new VMs, or back."""
        self.view.set_quarantine(self.zone.cluster(cluster), quarantined)

    def set_thresholds(self, cluster: str, thresholds: Thresholds) -> None:
        """Keep other numbers of empty machines in a cluster."""
        c = self.zone.cluster(cluster)
        thresholds.check_size(cluster, int(self.zone.clusters[c]["machines"]))
        self.view.set_thresholds(c, thresholds)

    def has_machine_for(self, vm: VM, arm: Arm) -> bool:
        """Whether any machine would have a VM that is healed, whatever else its tenant wants. Nothing is placed."""
        shape = arm.shapes.of(vm, 0, purpose=Purpose.HEALING)
        before = self.view.attempt()
        arm.engine.desk.close()
        try:
            return arm.engine.assign(shape).machine >= 0
        finally:
            self.view.rewind(before)

    # -------------------------------------------------------------------------------------------- moving

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
        constraints = self._tenant_of(request).constraints
        request = heeding(request, constraints)
        arm, number = self.arm_of(request.tenant), self._number(request)
        rehearsal = Rehearsal(arm.engine, arm.shapes)
        trial = yield from self._trying_out(rehearsal, request, purpose, at, fixed)
        subject = self._subject(request, trial, vm)
        victims: tuple[RunningVM, ...] = ()
        if trial.failed_vm is None and len(rehearsal.unchanged(trial.machines, self.view)) == len(trial.machines):
            victims = self._would_give_way(trial, arm, at, fixed)
        yield
        found = yield from explaining(arm.engine, rehearsal.engine.view, subject)
        if trial.failed_vm is None:
            return _giving_way(found, subject, victims)
        return found.with_remedies((yield from seeking_remedies(self, rehearsal, request, constraints, number, trial)))

    def _trying_out(
        self,
        rehearsal: Rehearsal,
        request: Request,
        purpose: Purpose | None,
        at: float,
        fixed: Callable[[RunningVM], bool],
    ) -> Steps[Trial]:
        """What would come of a request, by the same steps as if it were decided."""
        tenant, prices = self._tenant_of(request), self.arm_of(request.tenant).prices
        number, what_for = self._number(request), _purpose(tenant, purpose)
        beside = seating(tenant.constraints, request.vms, tenant.vms.values())
        yield
        with rehearsal.engine.pricing(prices.at(at, fixed, rehearsal.engine.view)):
            return (yield from rehearsal.trying_out(request, number, beside, what_for))

    def _would_give_way(
        self, trial: Trial, arm: Arm, at: float, fixed: Callable[[RunningVM], bool]
    ) -> tuple[RunningVM, ...]:
        """What would give way to a trial that is not on the rows."""
        room, generation = self._room(trial.machines), self.view.machines["generation"]
        for machine, shape in trial.places:
            room[machine] -= shape.row["demand"][0][generation[machine]]
        try:
            return self._victims_of(trial, room, arm, at, fixed)
        except MustWait:
            return ()

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
        row = self.zone.machine(machine)
        request = heeding(request, self._tenant_of(request).constraints)
        arm = self.arm_of(request.tenant)
        rehearsal = Rehearsal(arm.engine, arm.shapes)
        trial = yield from self._trying_out(rehearsal, request, None, at, fixed)
        yield
        return why_not(arm.engine, rehearsal.engine.view, self._subject(request, trial, vm), row)

    def _number(self, request: Request) -> int:
        """The tenant's number, if it matters."""
        return self.numbers.peek(request.tenant) if any(vm.isolated for vm in request.vms) else 0

    def _past(self, decision: Decision) -> View:
        if not self.view.reaches(decision.before):
            raise InvalidInput(
                "decision", f"revision {decision.before} is too long ago to rebuild", "explain decisions sooner"
            )
        return self.view.at(decision.before)

    def explaining_past(self, decision: Decision, vm: int | None, *, remedied: bool = True) -> Steps[Explanation]:
        """Why a decision was made, a step at a time; not `remedied`: without what would make the request fit."""
        subject, arm = self._subject(decision.request, decision.trial, vm), self.arm_of(decision.request.tenant)
        past = self._past(decision)
        found = _giving_way((yield from explaining(decision.engine, past, subject)), subject, decision.victims)
        if decision.ok or not remedied or decision.engine is not arm.engine:
            return found
        rehearsal = Rehearsal(arm.engine, arm.shapes, past, decision.after)  # nothing was placed, so all is the same
        request, constraints, number = decision.request, decision.constraints, self._number(decision.request)
        sought = seeking_remedies(self, rehearsal, request, constraints, number, decision.trial)
        return found.with_remedies((yield from sought))

    def why_not_past(self, decision: Decision, machine: str, vm: int | None) -> WhyNot:
        subject = self._subject(decision.request, decision.trial, vm)
        return why_not(decision.engine, self._past(decision), subject, self.zone.machine(machine))

    def _subject(self, request: Request, trial: Trial, vm: int | None) -> Subject:
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

    # ------------------------------------------------------------------------------------------- looking

    def running_on(self, machines: Iterable[int]) -> dict[int, list[RunningVM]]:
        """The VMs on some machines, by machine row, without those that are leaving."""
        leaving = self.leaving
        return {m: [vm for vm in self._on.get(m, {}).values() if leaving.get(vm.name) is not vm] for m in machines}

    def usage(self) -> Usage:
        """How full the zone is."""
        machines, clusters = self.view.machines, self.view.clusters
        used = int(clusters["used"][:, -1, 0].sum())
        busy = machines["vms"] > 0
        return Usage(
            machines=len(machines),
            empty_machines=int((~busy).sum()),
            vms=len(self.vms),
            tenants=len(self.tenants),
            utilisation=used / int(clusters["capacity"][:, 0].sum()),
            packing_density=used / max(1, int(machines["capacity"][busy, 0].sum())),
        )

    def stats(self) -> Stats:
        """How full the zone is, what the caches did, and what they hold."""
        return Stats(self.view.revision, self.usage(), self.engine.cache_stats(), self.engine.memory())

    def machine_states(self) -> dict[str, int]:
        """How many machines are in each state."""
        counts = np.bincount(self.view.machines["state"], minlength=len(MachineState)).tolist()
        return {state.name.lower(): counts[state] for state in MachineState}

    def rule_filters(self, kinds: int | None = None) -> list[RuleFilter]:
        """How much each rule filters, averaged over the kinds of request served lately, or over so many of them."""
        return finish(rule_filters(self.engine, kinds))

    def check_invariants(self) -> None:
        """Raise unless the rows are exactly what the running VMs make of the zone."""
        staying = (vm for vm in self.vms.values() if self.leaving.get(vm.name) is not vm)
        check_rows(self.view, ((vm.machine, vm.shape) for vm in staying))


def _same(given: Constraints, known: Constraints) -> bool:
    """Whether constraints are those that a tenant has; where its VMs are to be may have come of its first VMs."""
    if given == known:
        return True
    pins = {pin: wanted for pin, wanted in known.pins.items() if not getattr(given, pin)}
    return bool(pins) and msgspec.structs.replace(given, **pins) == known


def _giving_way(found: Explanation, subject: Subject, victims: Iterable[RunningVM]) -> Explanation:
    """The same with those that give way on the machine that was chosen."""
    return found.with_victims([victim.name for victim in victims if victim.machine == subject.chosen])


def _purpose(tenant: Tenant, given: Purpose | None) -> Purpose:
    """What a request of a tenant is for, as it is said or as one can tell."""
    if given is not None:
        return given
    return Purpose.SCALE_OUT if tenant.vms else Purpose.NEW
