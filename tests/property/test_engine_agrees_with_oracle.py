"""Whatever happens to a zone, the engine chooses what slow and obvious code would, and never over-fills a machine.

Each state machine below is one shape of zones (kernels are compiled per shape and policy); Hypothesis makes up layouts
and histories: requests of all kinds, releases, operators' changes, idle refreshes, time passing, explanations.
"""

from __future__ import annotations

from typing import Any, ClassVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from roost.engine.selection import CacheLimits
from roost.model.request import Request
from roost.model.rows import MachineState
from tests.oracle.plain import Wish
from tests.property.effort import examples
from tests.property.requests import constraints, gangs, layouts, vms
from tests.property.world import SMALL, World
from tests.property.zones import COLUMNS, MIDDLE, SINGLE, STANDARD, TINY, Shape, build, policy

any_index = st.integers(0, 2**16)
limits = st.sampled_from((SMALL, SMALL, CacheLimits(evaluations=1, rankings=1, columns=1, max_idle=5.0), None))


class History(RuleBasedStateMachine):
    """What may happen to a zone."""

    shape: ClassVar[Shape]
    policies: ClassVar[tuple[str, ...]]
    traits: ClassVar[bool] = False
    world: World
    tenants = 0

    @initialize(data=st.data())
    def open(self, data: st.DataObject) -> None:
        """A zone, empty so far."""
        zone = build(self.shape, data.draw(layouts(self.shape)), data.draw(st.none() | st.integers(0, 3)))
        chosen = data.draw(st.sampled_from(self.policies))
        self.world = World(zone, policy(chosen), data.draw(st.integers(0, 5)), data.draw(limits))

    def new_tenant(self) -> str:
        """A tenant nobody has heard of."""
        self.tenants += 1
        return f"t{self.tenants}"

    @rule(data=st.data())
    def allocate_one(self, data: st.DataObject) -> None:
        """A new tenant wants a VM, perhaps in vain."""
        vm = data.draw(vms(self.shape, self.world.zone, self.traits))
        self.world.allocate(Request(self.new_tenant(), (vm,)))

    @rule(data=st.data(), wanted=constraints())
    def allocate_gang(self, data: st.DataObject, wanted: Any) -> None:
        """A new tenant wants VMs under constraints."""
        gang = data.draw(gangs(self.shape, self.world.zone, self.traits))
        self.world.allocate(Request(self.new_tenant(), gang, wanted))

    @precondition(lambda self: self.world.allocator.tenants)
    @rule(data=st.data(), which=any_index)
    def scale_out(self, data: st.DataObject, which: int) -> None:
        """A tenant wants more."""
        names = sorted(self.world.allocator.tenants)
        gang = data.draw(gangs(self.shape, self.world.zone, self.traits, most=3))
        self.world.allocate(Request(names[which % len(names)], gang))

    @precondition(lambda self: self.world.allocator.vms)
    @rule(which=any_index)
    def release(self, which: int) -> None:
        """A VM goes."""
        names = sorted(self.world.allocator.vms)
        self.world.release(names[which % len(names)])

    @precondition(lambda self: self.world.allocator.tenants)
    @rule(which=any_index)
    def leave(self, which: int) -> None:
        """A tenant goes, VM by VM."""
        names = sorted(self.world.allocator.tenants)
        for name in list(self.world.allocator.tenants[names[which % len(names)]].vms):
            self.world.release(name)

    @rule(which=any_index, state=st.sampled_from(MachineState))
    def set_state(self, which: int, state: MachineState) -> None:
        """An operator drains a machine, loses it, or gets it back."""
        self.world.set_state(which % len(self.world.zone.machines), state)

    @rule(which=any_index, health=st.sampled_from((0, 29, 30, 59, 60, 99, 100)))
    def set_health(self, which: int, health: int) -> None:
        """A machine gets better or worse."""
        self.world.set_health(which % len(self.world.zone.machines), health)

    @rule(which=any_index, quarantined=st.booleans())
    def quarantine(self, which: int, quarantined: bool) -> None:
        """An operator closes a cluster, or opens it."""
        self.world.quarantine(which % len(self.world.zone.clusters), quarantined)

    @rule(steps=st.integers(0, 4))
    def refresh(self, steps: int) -> None:
        """The allocator has nothing else to do; the twin keeps its caches stale."""
        revision = self.world.allocator.view.revision
        self.world.allocator.refresh(steps)
        assert self.world.allocator.view.revision == revision

    @rule(seconds=st.sampled_from((1.0, 4.0, 60.0, 101.0)))
    def wait(self, seconds: float) -> None:
        """Time passes, and what is cached grows old."""
        self.world.clock.now += seconds

    @rule(data=st.data(), wanted=constraints(), which=any_index)
    def explain(self, data: st.DataObject, wanted: Any, which: int) -> None:
        """Somebody asks for explanations, which must change nothing; the twin is never asked."""
        allocator = self.world.allocator
        names = sorted(allocator.tenants)
        tenant = names[which % len(names)] if names and which % 2 else "somebody"
        request = Request(
            tenant,
            data.draw(gangs(self.shape, self.world.zone, self.traits, most=3)),
            None if tenant in allocator.tenants else wanted,
        )
        before = (allocator.view.revision, allocator.engine.rng.tolist(), allocator.engine.evaluations.keys())
        str(allocator.explain(request))
        str(allocator.why_not(request, self.world.zone.machine_names[which % len(self.world.zone.machine_names)]))
        allocator.rule_filters()
        assert before == (allocator.view.revision, allocator.engine.rng.tolist(), allocator.engine.evaluations.keys())

    @rule(data=st.data(), top=st.integers(2, 8), which=any_index)
    def draw_top(self, data: st.DataObject, top: int, which: int) -> None:
        """An agent that avoids conflicts draws among the best few, for a tenant that is there or for none."""
        vm = data.draw(vms(self.shape, self.world.zone, self.traits))
        tenants = self.world.allocator.tenants
        wish = Wish(vm, "nobody")
        if tenants and which % 2:
            name = sorted(tenants)[which % len(tenants)]
            wish = Wish(vm, name, tenants[name].constraints, 1 + which % 3)
        self.world.draw_top(wish, top)

    @precondition(lambda self: len(self.policies) > 1)
    @rule(data=st.data())
    def switch_policy(self, data: st.DataObject) -> None:
        """The zone is run by other rules from now on."""
        self.world.switch_policy(policy(data.draw(st.sampled_from(self.policies))))

    @invariant()
    def all_is_well(self) -> None:
        """Rows and VMs agree."""
        if hasattr(self, "world"):
            self.world.check()


def _test_case(machine: type[History], count: int, steps: int = 30) -> Any:
    case: Any = machine.TestCase
    case.settings = settings(max_examples=examples(count), stateful_step_count=steps)
    return case


class ShippedPolicies(History):
    """The policies that come with Roost, on zones with the resources and VM types of synthetic ones."""

    shape, policies = STANDARD, ("default", "dense", "spread", "fast")


class MiddlePolicy(History):
    """Rack rules between machine rules, a continuous preference, a full key, one cluster."""

    shape, policies = TINY, (MIDDLE,)


class ColumnsPolicy(History):
    """Rules of one's own, with derived columns and traits."""

    shape, policies, traits = TINY, (COLUMNS,), True


class SmallestZones(History):
    """One resource, one band, one generation, no classes."""

    shape, policies = SINGLE, ("fast",)


TestShippedPoliciesChooseWhatTheOracleDoes = _test_case(ShippedPolicies, 60)
TestRackRulesInTheMiddleChooseWhatTheOracleDoes = _test_case(MiddlePolicy, 60)
TestDerivedColumnsChooseWhatTheOracleDoes = _test_case(ColumnsPolicy, 60)
TestTheSmallestZonesChooseWhatTheOracleDoes = _test_case(SmallestZones, 30)
