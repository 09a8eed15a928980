"""Cases that are rare, each told as the claim that must hold in it."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from roost.engine.choice import MOST_AMONG, AmongBest
from roost.engine.selection import CacheLimits
from roost.model.errors import InvalidInput
from roost.model.request import VM, Constraints, Request
from roost.model.rows import MachineState
from roost.model.zone import MachineGroup, Zone
from roost.placing.allocator import Allocator
from roost.rules.policy import Policy
from tests.property.explained import apply
from tests.property.world import World, changed
from tests.property.zones import COLUMNS, SINGLE, STANDARD, TINY, ClusterPlan, Shape, build, own_policy, policy

FAULTY = own_policy("faulty", "faulty_when_used", module="tests.property.faulty_rules")
CARELESS = own_policy("careless", "trusts_careless", module="tests.property.careless_rules")
SLY = own_policy("sly", "sly", module="tests.property.sly_rules")


# ------------------------------------------------------------------------------------------- rules that are wrong


def test_a_rule_out_of_range_is_named() -> None:
    world = World(build(TINY, (ClusterPlan(0, 0, (1,)),)), policy(FAULTY))
    world.allocate(Request("a", (VM("small"),)))
    with pytest.raises(InvalidInput, match="faulty_when_used"):
        world.allocator.allocate(Request("b", (VM("small"),)))
    with pytest.raises(InvalidInput, match="faulty_when_used"):
        world.allocator.explain(Request("b", (VM("small"),)))


def test_a_rule_out_of_range_is_reported_as_long_as_it_is() -> None:
    """Not only once: afterwards the machine would silently count as invalid."""
    world = World(build(TINY, (ClusterPlan(0, 0, (1, 1)),)), policy(FAULTY))
    world.allocate(Request("a", (VM("small"),)))
    for attempt in ("first", "second"):
        with pytest.raises(InvalidInput, match="faulty_when_used"):
            world.allocator.allocate(Request(f"b-{attempt}", (VM("small"),)))


def test_a_rule_out_of_range_is_reported_when_caches_are_refreshed_and_again_when_it_decides() -> None:
    world = World(build(TINY, (ClusterPlan(0, 0, (1, 1)),)), policy(FAULTY))
    world.allocate(Request("a", (VM("small"),)))
    with pytest.raises(InvalidInput, match="faulty_when_used"):
        world.allocator.refresh(1)
    with pytest.raises(InvalidInput, match="faulty_when_used"):
        world.allocator.allocate(Request("b", (VM("small"),)))


def test_a_rule_out_of_range_in_the_middle_of_a_request_leaves_no_trace() -> None:
    world = World(build(TINY, (ClusterPlan(0, 0, (2,)),)), policy(FAULTY))
    before = world.rows()
    with pytest.raises(InvalidInput, match="faulty_when_used"):
        world.allocator.allocate(Request("a", (VM("small"), VM("small"))))
    assert changed(before, world.rows()) == []
    world.allocator.check_invariants()


def test_a_column_that_depends_on_more_than_it_declares_is_refused_or_kept_apart() -> None:
    try:
        rules = Policy.parse(CARELESS)
    except InvalidInput:
        return
    world = World(build(TINY, (ClusterPlan(0, 0, (3,)),)), rules)
    for i, y in enumerate((0, 1, 0, 1)):
        world.allocate(Request(f"t{i}", (VM("small", traits={"x": 0, "y": y}),)))


def test_a_rule_that_reads_an_undeclared_trait_under_another_name_is_refused_or_kept_apart() -> None:
    try:
        rules = Policy.parse(SLY)
    except InvalidInput:
        return
    world = World(build(TINY, (ClusterPlan(1, 0, (3,)),)), rules)
    for i in range(4):
        world.allocate(Request(f"t{i}", (VM("small", requires=("fast",) if i % 2 else ()),)))


# ------------------------------------------------------------------------------------------------------ draws


def test_a_draw_among_more_than_the_largest_top_is_refused_or_cut_to_it() -> None:
    allocator = Allocator(Zone.synthetic(1_200, seed=0), policy("fast"))
    shape = allocator.shapes.of(VM("A1"), 1)
    try:
        assigned = allocator.engine.assign(shape, AmongBest(MOST_AMONG + 50))
    except InvalidInput:
        return
    assert assigned.tied <= MOST_AMONG


@pytest.mark.parametrize("n", [0, -1])
def test_a_draw_among_none_is_refused(n: int) -> None:
    allocator = Allocator(build(STANDARD, (ClusterPlan(0, 0, (1,)),)), policy("fast"))
    with pytest.raises(InvalidInput, match="choice"):
        allocator.engine.assign(allocator.shapes.of(VM("A1"), 1), AmongBest(n))


# ------------------------------------------------------------------------------------------------------ caches


def test_decisions_do_not_depend_on_how_soon_cached_objects_grow_old() -> None:
    """Even if everything is too old as soon as it is made."""
    world = World(build(TINY, (ClusterPlan(0, 0, (2, 2)), ClusterPlan(1, 0, (2,)))), policy(COLUMNS), limits=None)
    ticks = itertools.count()
    world.allocator = Allocator(
        world.zone, policy(COLUMNS), 0, limits=CacheLimits(max_idle=0.0), clock=lambda: float(next(ticks))
    )
    world._listen()
    for i in range(12):
        world.allocate(Request(f"t{i}", (VM("small", traits={"x": i % 3, "y": i % 2}),)))
    world.check()


# ----------------------------------------------------------------------------------------------------- tenants


def test_a_tenant_may_have_more_vms_than_the_desk_first_has_room_for() -> None:
    world = World(build(TINY, (ClusterPlan(0, 0, (8, 8)), ClusterPlan(1, 0, (9, 9, 4)))), policy(COLUMNS))
    vm = VM("small", traits={"x": 1, "y": 0})
    limits = Constraints(max_per_machine=2, max_per_rack=17, update_domain_skew=30)
    assert world.allocate(Request("t", (vm,) * 60, limits)).decision.ok
    assert world.allocate(Request("t", (vm,) * 8)).decision.ok
    assert not world.allocate(Request("t", (vm,) * 8)).decision.ok  # 2 × 38 machines, less one in each rack of 9
    assert world.allocate(Request("t", (vm,) * 6)).decision.ok
    world.check()


@pytest.mark.parametrize("domain", ["rack", "cluster", "datacenter"])
def test_vms_that_must_stay_together_start_over_elsewhere_when_the_first_place_is_too_small(domain: str) -> None:
    plans = (ClusterPlan(0, 0, (1,)), ClusterPlan(0, 1, (1,)), ClusterPlan(0, 2, (3,)))
    for seed in range(8):
        world = World(build(STANDARD, plans), policy("fast"), seed)
        gang = Request("t", (VM("Full-gen3"),) * 3, Constraints(colocate=domain))  # type: ignore[arg-type]
        checked = world.allocate(gang)
        assert {world.unit(m, domain) for m in checked.decision.trial.machines} == {2}
        world.check()


def zone_with_a_cluster_in_two_datacenters(shape: Shape) -> Zone:
    """One cluster, a rack of it in each of two datacenters."""
    return Zone(
        name="split",
        resources=shape.resources,
        bands=shape.bands,
        generations=shape.generations,
        vm_types=shape.vm_types,
        conflicts=shape.conflicts,
        groups=[
            MachineGroup(
                datacenter=f"dc{i}",
                cluster="c",
                rack=f"r{i}",
                generation=shape.generations[0].name,
                names=[f"r{i}m0", f"r{i}m1"],
                update_domains=[0, 1],
            )
            for i in range(2)
        ],
    )


def test_a_cluster_in_two_datacenters_is_refused_or_served_right() -> None:
    try:
        zone = zone_with_a_cluster_in_two_datacenters(STANDARD)
    except InvalidInput:
        return
    world = World(zone, policy("fast"))
    assert world.allocate(Request("t", (VM("A1"),), Constraints(colocate="datacenter"))).decision.ok
    for _ in range(3):
        world.allocate(Request("t", (VM("Full-gen3"),)))


def test_names_that_roost_makes_up_never_clash_with_names_that_were_given() -> None:
    world = World(build(STANDARD, (ClusterPlan(0, 0, (3,)),)), policy("fast"))
    assert world.allocate(Request("t", (VM("A1", name="t/1"),))).decision.ok
    assert world.allocate(Request("t", (VM("A1"),))).decision.ok


# ------------------------------------------------------------------------------------------------ explanations


def test_fragmented_means_that_no_single_machine_has_room_and_isolation_is_something_else() -> None:
    world = World(build(STANDARD, (ClusterPlan(1, 0, (2,)),)), policy("default"))
    for i in range(2):
        assert world.allocate(Request(f"alone{i}", (VM("A1", isolated=True),))).decision.ok
    refused = world.allocate(Request("t", (VM("A1"),))).decision
    assert [r.rule for r in refused.explanation.reasons] == ["respects_isolation"]
    assert refused.explanation.failure != "fragmented"


def test_fragmented_means_that_no_single_machine_has_room_and_bad_health_is_something_else() -> None:
    world = World(build(STANDARD, (ClusterPlan(1, 0, (2,)),)), policy("default"))
    for machine in range(2):
        world.set_health(machine, 10)
    refused = world.allocate(Request("t", (VM("A1"),))).decision
    assert [r.rule for r in refused.explanation.reasons] == ["healthy_enough"]
    assert refused.explanation.failure != "fragmented"


def test_a_remedy_for_an_isolated_vm_of_a_new_tenant_keeps_it_isolated() -> None:
    world = World(build(STANDARD, (ClusterPlan(0, 0, (1,)),)), policy("fast"))
    for i in range(2):
        assert world.allocate(Request(f"t{i}", (VM("A1"),))).decision.ok
    wanted = Request("alone", (VM("A1", isolated=True),))
    refused = world.allocate(wanted).decision
    assert not refused.ok
    for remedy in refused.explanation.remedies:
        other = world.replayed()
        assert other.allocate(apply(remedy, other, wanted)).ok, f"refused although we would {remedy}"


def test_a_remedy_that_frees_a_vm_of_the_same_tenant_counts_it_out_of_the_tenants_places() -> None:
    """The tenant has three VMs in one rack and one in the other; without that one, the other rack would be uneven."""
    world = World(build(SINGLE, (ClusterPlan(0, 0, (3, 2)),)), policy("fast"))
    wanted = Request("t", (VM("three"),))
    gang = Request("t", (VM("three"),) * 5, Constraints(fault_domain_skew=1))
    for placement in world.allocate(gang).decision.placements:
        if placement.machine == "c0r1m1":
            world.release(placement.vm)
    assert world.allocate(Request("other", (VM("three"),))).decision.ok
    refused = world.allocate(wanted).decision
    assert not refused.ok
    for remedy in refused.explanation.remedies:
        other = world.replayed()
        assert other.allocate(apply(remedy, other, wanted)).ok, f"refused although we would {remedy}"


def test_remedies_are_tried_on_the_zone_as_it_is_without_the_vms_of_the_attempt_that_failed() -> None:
    """One machine is empty, the other is held by somebody who could give way; two VMs want a machine each."""
    world = World(build(SINGLE, (ClusterPlan(0, 0, (2,)),)), policy("fast"))
    assert world.allocate(Request("other", (VM("three"),))).decision.ok
    gang = Request("t", (VM("three"), VM("three")))
    foretold = world.allocator.explain(gang)
    refused = world.allocate(gang).decision
    assert not refused.ok
    assert [remedy.vms for remedy in refused.explanation.remedies] == [("other/0",)]
    assert foretold.remedies == refused.explanation.remedies


def test_a_refused_request_for_more_vms_than_are_remembered_leaves_no_trace() -> None:
    """History is bounded; what a request has placed must come off again however much it is."""
    zone = build(SINGLE, (ClusterPlan(0, 0, (1,)),), wear=0)
    capacity = 65_536 + 4
    zone.set_capacity(np.array([[capacity]], np.int32))
    allocator = Allocator(zone, policy("fast"))
    before = allocator.view.machines.copy()
    assert not allocator.allocate(Request("t", (VM("one"),) * (capacity + 1))).ok
    assert np.array_equal(allocator.view.machines["vms"], before["vms"])
    allocator.check_invariants()


def retried_world() -> tuple[World, Request]:
    """The best rack is too small for a gang that must stay together, so the gang goes to the other one."""
    world = World(build(STANDARD, (ClusterPlan(1, 0, (1, 3)),)), policy("fast"))
    for machine in (1, 2, 3):
        world.set_state(machine, MachineState.DOWN)
    assert world.allocate(Request("t", (VM("A1"),))).decision.trial.machines == (0,)  # preferred: it is not empty
    for machine in (1, 2, 3):
        world.set_state(machine, MachineState.READY)
    return world, Request("gang", (VM("D14"), VM("D14")), Constraints(colocate="rack"))


def test_a_machine_of_a_place_that_was_too_small_is_not_said_to_have_lost_to_a_worse_one() -> None:
    world, gang = retried_world()
    found = world.allocator.why_not(gang, world.zone.machine_names[0])
    checked = world.allocate(gang)
    assert len(checked.attempts) == 2
    assert checked.decision.ok
    assert found.verdict != "lost", str(found)


def test_an_explanation_after_a_place_was_too_small_counts_the_chosen_machine_among_the_best() -> None:
    world, gang = retried_world()
    decision = world.allocate(gang).decision
    found = decision.explanation
    last = [stage for stage in found.funnel if stage.level == "machine"][-1]
    assert found.tied == last.kept == 3, str(found)


def test_a_decision_is_explained_by_the_policy_that_made_it() -> None:
    world = World(build(STANDARD, (ClusterPlan(1, 0, (2, 2)),)), policy("default"))
    decision = world.allocate(Request("t", (VM("A1"),))).decision
    at_once = decision.explanation
    world.switch_policy(policy("fast"))
    assert decision.explanation == at_once
