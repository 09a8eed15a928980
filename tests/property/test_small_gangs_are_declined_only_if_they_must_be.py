"""A few VMs that are to be placed together are declined only if no assignment exists: compared with trying them all."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roost.model.request import VM, Constraints, Request
from roost.model.zone import Zone
from roost.placing.allocator import Allocator
from tests.oracle.brute import Floor
from tests.property.effort import examples
from tests.property.requests import availability_sets, layouts, members, rarely
from tests.property.world import replace_vms
from tests.property.zones import MIDDLE, TINY, build, policy

MOST_MACHINES, MOST_VMS = 8, 4

small_zones = (
    layouts(TINY, clusters=(1, 3), racks=(1, 3), machines=3)
    .filter(lambda plans: sum(size for plan in plans for size in plan.racks) <= MOST_MACHINES)
    .map(lambda plans: build(TINY, plans))
)


@st.composite
def wishes(draw: st.DrawFn, zone: Zone) -> VM:
    """A VM of the one priority that there is in these tests."""

    def sometimes(names: Any) -> str:
        return str(draw(st.sampled_from(list(names)))) if draw(rarely) else ""

    return VM(
        type=draw(st.sampled_from(TINY.asked)),
        isolated=draw(rarely),
        colocation=sometimes(zone.classes),
        datacenter=sometimes(zone.datacenters),
        cluster=sometimes(zone.cluster_names),
        generation=sometimes(g.name for g in zone.generations),
    )


@st.composite
def hard_constraints(draw: st.DrawFn) -> Constraints:
    """Whatever a tenant can insist on."""
    numbers = ("min_fault_domains", "max_fault_domains", "fault_domain_skew", "min_update_domains")
    limits = ("update_domain_skew", "max_per_machine", "max_per_rack")
    names = draw(st.lists(st.sampled_from((*numbers, *limits, "colocate", "sets")), max_size=3, unique=True))
    values: dict[str, Any] = {name: draw(st.integers(1, 3)) for name in names if name in (*numbers, *limits)}
    if "colocate" in names:
        values["colocate"] = draw(st.sampled_from(("rack", "cluster", "datacenter")))
        if values["colocate"] == "rack":
            values.pop("min_fault_domains", None)
    if "min_fault_domains" in values and "max_fault_domains" in values:
        values["max_fault_domains"] = max(values["max_fault_domains"], values["min_fault_domains"])
    if "sets" in names:
        sets = availability_sets.filter(lambda wanted: not wanted.best_effort)
        values["sets"] = draw(st.dictionaries(st.sampled_from(("db", "web")), sets, min_size=1))
    return Constraints(**values)


def floor(allocator: Allocator, tenant: str) -> Floor:
    """What is where, for slow and obvious code."""
    running = allocator.vms.values()
    others = [(each.vm, each.machine) for each in running if each.tenant != tenant]
    return Floor(allocator.zone, others, [(each.vm, each.machine) for each in running if each.tenant == tenant])


def check(allocator: Allocator, tenant: str, vms: tuple[VM, ...], constraints: Constraints) -> bool:
    """Place VMs; whether they were. Declined only if they must be, and placed as they were to be."""
    before = floor(allocator, tenant)
    known = tenant in allocator.tenants
    request = Request(tenant, vms, None if known else constraints)
    vms = tuple(replace_vms(request, constraints).vms)  # where its tenant wants them
    decision = allocator.allocate(request)
    if decision.ok:
        machines = [allocator.zone.machine(placement.machine) for placement in decision.placements]
        assert before.holds(vms, machines, constraints)
    else:
        found = before.assignment(vms, constraints)
        assert found is None, f"declined, although {[allocator.zone.machine_names[m] for m in found or ()]} would do"
    allocator.check_invariants()
    return decision.ok


def try_gangs(data: st.DataObject) -> None:
    zone = data.draw(small_zones)
    allocator = Allocator(zone, policy(MIDDLE), data.draw(st.integers(0, 9)))
    one, held_to = wishes(zone), {}
    for _ in range(data.draw(st.integers(1, 5))):
        tenant = data.draw(st.sampled_from(("a", "b", "c")))
        if tenant not in allocator.tenants:
            held_to[tenant] = data.draw(hard_constraints())
        usual = data.draw(st.lists(one, min_size=1, max_size=2))
        gang = tuple(data.draw(st.lists(st.sampled_from(usual), min_size=1, max_size=MOST_VMS)))
        asked = data.draw(members(gang, held_to[tenant]))
        if check(allocator, tenant, asked, held_to[tenant]):
            held_to[tenant] = allocator.tenants[tenant].constraints


@given(data=st.data())
@settings(max_examples=examples(150))
def test_a_small_gang_is_declined_only_if_no_assignment_exists(data: st.DataObject) -> None:
    try_gangs(data)


@pytest.mark.deep
@given(data=st.data())
@settings(max_examples=examples(4_000))
def test_many_small_gangs_are_declined_only_if_no_assignment_exists(data: st.DataObject) -> None:
    try_gangs(data)
