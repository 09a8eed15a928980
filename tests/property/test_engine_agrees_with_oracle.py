"""Whatever happens to a zone, the engine chooses what slow and obvious code would, and never over-fills a machine.

Each state machine below is one shape of zones (kernels are compiled per shape and policy); Hypothesis makes up layouts
and histories: requests of all kinds, releases, operators' changes, idle refreshes, time passing, explanations.
"""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from roost.engine.selection import CacheLimits
from roost.model.request import VM, Request
from roost.model.rows import MachineState
from roost.model.thresholds import Purpose
from tests.oracle.plain import Wish, ladder
from tests.property.effort import examples
from tests.property.requests import constraints, gangs, layouts, members, often, rarely, thresholds, vms
from tests.property.world import SMALL, World
from tests.property.zones import COLUMNS, MIDDLE, SINGLE, STANDARD, TINY, Shape, build, policy

any_index = st.integers(0, 2**16)
limits = st.sampled_from((SMALL, SMALL, CacheLimits(evaluations=1, rankings=1, columns=1, max_idle=5.0), None))


class History(RuleBasedStateMachine):
    """What may happen to a zone."""

    shape: ClassVar[Shape]
    policies: ClassVar[tuple[str, ...]]
    layout: ClassVar[st.SearchStrategy[Any]]
    traits: ClassVar[bool] = False
    world: World
    one: st.SearchStrategy[VM]
    tenants = 0

    @initialize(data=st.data())
    def open(self, data: st.DataObject) -> None:
        """A zone, empty so far."""
        zone = build(self.shape, data.draw(self.layout), data.draw(st.none() | st.integers(0, 3)))
        chosen = data.draw(st.sampled_from(self.policies))
        self.one = vms(self.shape, zone, self.traits)
        self.one = often(data.draw(st.lists(self.one, min_size=2, max_size=3)), self.one)
        self.world = World(zone, policy(chosen), data.draw(st.integers(0, 5)), data.draw(limits))

    def new_tenant(self) -> str:
        """A tenant nobody has heard of."""
        self.tenants += 1
        return f"t{self.tenants}"

    @rule(data=st.data())
    def allocate_one(self, data: st.DataObject) -> None:
        """A new tenant wants a VM, perhaps in vain."""
        self.world.allocate(Request(self.new_tenant(), (data.draw(self.one),)))

    @rule(data=st.data(), wanted=constraints(fewest=1))
    def allocate_gang(self, data: st.DataObject, wanted: Any) -> None:
        """A new tenant wants VMs under constraints."""
        gang = data.draw(members(data.draw(gangs(self.one)), wanted))
        self.world.allocate(Request(self.new_tenant(), gang, wanted))

    @precondition(lambda self: self.world.allocator.tenants)
    @rule(data=st.data(), which=any_index)
    def scale_out(self, data: st.DataObject, which: int) -> None:
        """A tenant wants more."""
        names = sorted(self.world.allocator.tenants)
        name = names[which % len(names)]
        gang = data.draw(members(data.draw(gangs(self.one, most=3)), self.world.allocator.tenants[name].constraints))
        self.world.allocate(Request(name, gang))

    @precondition(lambda self: self.world.allocator.tenants)
    @rule(data=st.data(), which=any_index)
    def heal(self, data: st.DataObject, which: int) -> None:
        """VMs of a tenant that lost their machine want another one."""
        names = sorted(self.world.allocator.tenants)
        self.world.allocate(Request(names[which % len(names)], (data.draw(self.one),)), healing=True)

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

    @rule(data=st.data(), which=any_index)
    def operate(self, data: st.DataObject, which: int) -> None:
        """An operator drains, loses or regains a machine; learns of its health; closes a cluster; keeps it emptier."""
        machine = which % len(self.world.zone.machines)
        cluster = which % len(self.world.zone.clusters)
        what = data.draw(st.sampled_from(("state", "ready", "health", "quarantine", "thresholds")))
        if what == "state":
            self.world.set_state(machine, data.draw(st.sampled_from(MachineState)))
        elif what == "ready":
            self.world.set_state(machine, MachineState.READY)
        elif what == "health":
            self.world.set_health(machine, data.draw(st.sampled_from((0, 29, 30, 59, 60, 99, 100))))
        elif what == "thresholds":
            self.world.set_thresholds(
                cluster, data.draw(thresholds(int(self.world.zone.clusters["machines"][cluster])))
            )
        else:
            self.world.quarantine(cluster, data.draw(rarely))

    @rule(steps=st.integers(0, 4), seconds=st.sampled_from((0.0, 0.0, 1.0, 4.0, 60.0, 101.0)))
    def idle(self, steps: int, seconds: float) -> None:
        """Time passes, and the allocator refreshes its caches; the twin keeps its own stale."""
        self.world.clock.now += seconds
        revision = self.world.allocator.view.revision
        self.world.allocator.refresh(steps)
        assert self.world.allocator.view.revision == revision

    @rule(data=st.data(), wanted=constraints(), which=any_index)
    def explain(self, data: st.DataObject, wanted: Any, which: int) -> None:
        """Somebody asks for explanations, which must change nothing; the twin is never asked."""
        allocator = self.world.allocator
        names = sorted(allocator.tenants)
        tenant = names[which % len(names)] if names and which % 2 else "somebody"
        known = allocator.tenants.get(tenant)
        gang = data.draw(members(data.draw(gangs(self.one, most=3)), known.constraints if known else wanted))
        request = Request(tenant, gang, None if known else wanted)
        before = (allocator.view.revision, allocator.engine.rng.tolist(), allocator.engine.evaluations.keys())
        str(allocator.explain(request))
        str(allocator.why_not(request, self.world.zone.machine_names[which % len(self.world.zone.machine_names)]))
        allocator.rule_filters()
        assert before == (allocator.view.revision, allocator.engine.rng.tolist(), allocator.engine.evaluations.keys())

    @rule(data=st.data(), top=st.integers(2, 8), which=any_index)
    def draw_top(self, data: st.DataObject, top: int, which: int) -> None:
        """An agent that avoids conflicts draws among the best few, for a tenant that is there or for none."""
        vm = data.draw(self.one)
        tenants = self.world.allocator.tenants
        wish = Wish(vm, "nobody")
        if tenants and which % 2:
            name = sorted(tenants)[which % len(tenants)]
            purpose = Purpose(which % len(Purpose))
            (vm,) = data.draw(members((vm,), tenants[name].constraints))
            held_to = ladder(tenants[name].constraints, vm.set)[0]
            wish = Wish(vm, name, held_to, 1 + which % 3, purpose=purpose)
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

    shape, policies, layout = STANDARD, ("default", "dense", "spread", "fast"), layouts(STANDARD)


class ManyClusters(History):
    """More clusters than a policy looks at."""

    shape, policies, layout = STANDARD, ("fast",), layouts(STANDARD, clusters=(9, 14), racks=(1, 2), machines=2)


class MiddlePolicy(History):
    """Rack rules between machine rules, a continuous preference, a full key, one cluster."""

    shape, policies, layout = TINY, (MIDDLE,), layouts(TINY)


class ColumnsPolicy(History):
    """Rules of one's own, with derived columns and traits."""

    shape, policies, layout, traits = TINY, (COLUMNS,), layouts(TINY), True


class SmallestZones(History):
    """One resource, one band, one generation, no classes."""

    shape, policies, layout = SINGLE, ("fast",), layouts(SINGLE)


@pytest.mark.parametrize(("shape", "rules"), [(STANDARD, "spread"), (TINY, MIDDLE), (TINY, COLUMNS)])
@given(data=st.data(), wanted=constraints(fewest=1))
@settings(max_examples=examples(100))
def test_a_tenant_that_grows_and_shrinks_is_kept_to_its_constraints(
    shape: Shape, rules: str, data: st.DataObject, wanted: Any
) -> None:
    """One tenant with a long life, in a zone with many racks and room to spare."""
    zone = build(shape, data.draw(layouts(shape, clusters=(1, 3), racks=(2, 4), machines=4)))
    world = World(zone, policy(rules), data.draw(st.integers(0, 5)))
    small = VM(shape.asked[0], traits={"x": 1, "y": 0} if rules == COLUMNS else {})
    for which in data.draw(st.lists(st.integers(0, 2**16), min_size=1, max_size=12)):
        if which % 3 == 0 and world.allocator.vms:
            world.release(sorted(world.allocator.vms)[which % len(world.allocator.vms)])
        else:
            gang = data.draw(members((small,) * (1 + which % 4), wanted))
            world.allocate(Request("t", gang, None if world.allocator.tenants else wanted))
        world.check()


TestShippedPoliciesChooseWhatTheOracleDoes = _test_case(ShippedPolicies, 200)
TestManyClustersAreChosenFromAsTheOracleDoes = _test_case(ManyClusters, 60)
TestRackRulesInTheMiddleChooseWhatTheOracleDoes = _test_case(MiddlePolicy, 200)
TestDerivedColumnsChooseWhatTheOracleDoes = _test_case(ColumnsPolicy, 200)
TestTheSmallestZonesChooseWhatTheOracleDoes = _test_case(SmallestZones, 80)
