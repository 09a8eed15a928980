"""A policy at work on a copy of a zone. While two policies are compared, there are two arms to choose from."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from roost.engine.kernel.compiler import compile_rules
from roost.engine.pools import PoolStats
from roost.engine.ruleset import PolicySplit, RulePolicy
from roost.engine.selection import CacheLimits, Engine
from roost.engine.shape import Shape, Shapes
from roost.engine.statistics import RuleFilter, rule_filters
from roost.engine.steps import finish
from roost.engine.view import View
from roost.model.errors import InvalidInput, UnknownName
from roost.model.request import UNCONSTRAINED, VM, Constraints, Request, Terms
from roost.model.thresholds import Purpose
from roost.model.zone import Zone
from roost.placing.books import Tenant
from roost.placing.rehearsal import try_out
from roost.placing.victims import EvictionPrices
from roost.placing.zone_copy import Usage, ZoneCopy


@dataclass(frozen=True, slots=True)
class Arm:
    """A policy at work: what it asks of VMs, and the engine that decides by it."""

    policy: RulePolicy
    shapes: Shapes
    engine: Engine
    prices: EvictionPrices  # by its terms
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
class Stats:
    """An allocator at one moment."""

    revision: int
    usage: Usage
    caches: dict[str, PoolStats]  # by class of cached objects
    memory: dict[str, int]  # bytes, by what holds them


class Arms(ZoneCopy):
    """A copy of a zone with the policies that decide on it, and what they ask of VMs."""

    def __init__(
        self,
        zone: Zone,
        policy: RulePolicy | PolicySplit,
        seed: int = 0,
        *,
        limits: CacheLimits | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        main = policy.main if isinstance(policy, PolicySplit) else policy
        super().__init__(View(zone, compile_rules(main.rules, zone)))
        self._limits, self._clock, self._seed = limits, clock, seed
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
        return Arm(policy, shapes, engine, EvictionPrices(self, rules.evictions), f"{policy.name} {policy.digest}")

    def arm_of(self, tenant: str) -> Arm:
        """What decides for a tenant."""
        arms = self.arms
        return arms[0] if len(arms) == 1 else arms[self.split.arm_of(tenant)]

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

    def shapes_of(self, request: Request, arm: Arm, purpose: Purpose) -> tuple[Shape, ...]:
        """What each VM of a request asks for; mostly they are one and the same VM."""
        found: list[Shape] = []
        shape: Shape | None = None
        last: VM | None = None
        for vm in request.vms:
            if shape is None or vm is not last:
                number = self.numbers.peek(request.tenant) if vm.isolated else 0
                shape = arm.shapes.known(vm, number, purpose)
                shape = shape or arm.shapes.of(vm, number, f"request.vms[{len(found)}]", purpose)
                last = vm
            found.append(shape)
        return tuple(found)

    def shape(self, vm: VM, tenant: str, where: str = "vm", purpose: Purpose = Purpose.NEW) -> Shape:
        """What a VM of a tenant asks for. Names that the zone does not know are refused."""
        return self.arm_of(tenant).shapes.of(vm, self.numbers.peek(tenant) if vm.isolated else 0, where, purpose)

    def tenant_of(self, request: Request, arm: Arm) -> Tenant:
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
        if tenant.constraints is not UNCONSTRAINED:
            arm.check_enforced(tenant.constraints)
        for vm in request.vms:
            if vm.set and vm.set not in (sets := tenant.constraints.sets):
                where = f"request.vms[{request.vms.index(vm)}].set"
                raise UnknownName(where, f"availability set of tenant {request.tenant}", vm.set, sets)
        return tenant

    def running_shape(self, vm: VM, tenant: str) -> Shape:
        """What a VM that runs has, whoever placed it."""
        return self.shapes.of_running(vm, self.numbers[tenant] if vm.isolated else 0)

    def refresh(self, steps: int = 1) -> int:
        """Use idle time to bring caches up to date; returns the machines looked at, 0 when there is nothing to do."""
        looked = 0
        for arm in self.arms:
            looked += arm.engine.refresh(steps)
        return looked

    def stats(self) -> Stats:
        """How full the zone is, what the caches did, and what they hold."""
        return Stats(self.view.revision, self.usage(), self.engine.cache_stats(), self.engine.memory())

    def rule_filters(self, kinds: int | None = None) -> list[RuleFilter]:
        """How much each rule filters, averaged over the kinds of request served lately, or over so many of them."""
        return finish(rule_filters(self.engine, kinds))


def _same(given: Constraints, known: Constraints) -> bool:
    """Whether constraints are those that a tenant has; where its VMs are to be may have come of its first VMs."""
    if given == known:
        return True
    pins = {pin: wanted for pin, wanted in known.pins.items() if not getattr(given, pin)}
    return bool(pins) and msgspec.structs.replace(given, **pins) == known
