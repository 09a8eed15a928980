"""A request that makes no sense is refused before anything changes."""

from typing import Any

import pytest

from roost import VM, Allocator, AvailabilitySet, Constraints, InvalidInput, Policy, Request, UnknownName, Zone


@pytest.fixture(scope="module")
def allocator() -> Allocator:
    return Allocator(Zone.synthetic(100, seed=1), Policy.named("fast"), seed=1)


request: Any = Request  # without their types, to write down what a type checker would refuse
vm: Any = VM
constraints: Any = Constraints
availability_set: Any = AvailabilitySet


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: request("", [vm("D1")]), ["request.tenant", "must be a name"]),
        (lambda: request("t", []), ["request.vms", "at least one"]),
        (lambda: request("t", "D1"), ["request.vms", "list of VMs"]),
        (lambda: request("t", ["D1"]), ["request.vms[0]", "VM('D4')"]),
        (lambda: vm(""), ["vm.type"]),
        (lambda: vm(4), ["vm.type"]),
        (lambda: vm("D1", traits={"x": "y"}), ["vm.traits.x", "whole number"]),
        (lambda: constraints(max_per_rack=-1), ["constraints.max_per_rack", "-1"]),
        (lambda: constraints(max_per_rack=True), ["constraints.max_per_rack"]),
        (lambda: constraints(colocate="row"), ["constraints.colocate", "rack, cluster or datacenter"]),
        (lambda: constraints(min_fault_domains=3, max_fault_domains=2), ["min_fault_domains", "above"]),
        (lambda: constraints(colocate="rack", min_fault_domains=2), ["constraints.colocate", "drop one"]),
        (lambda: constraints(best_effort=1), ["constraints.best_effort", "true or false"]),
        (
            lambda: constraints(best_effort=True),
            ["constraints.best_effort", "nothing that could be waived", "in the set"],
        ),
        (lambda: constraints(sets=["db"]), ["constraints.sets", "mapping of names"]),
        (
            lambda: constraints(sets={"a b": availability_set(fault_domains=2)}),
            ["constraints.sets", "'a b'", "letters"],
        ),
        (lambda: constraints(sets={"db": 3}), ["constraints.sets.db", "AvailabilitySet"]),
        (lambda: availability_set(), ["set: asks for nothing", "fault_domains, update_domains, or both"]),
        (lambda: availability_set(fault_domains=-1), ["set.fault_domains", "-1"]),
        (lambda: availability_set(update_domains=2.5), ["set.update_domains", "2.5"]),
        (lambda: availability_set(fault_domains=2, best_effort="yes"), ["set.best_effort", "true or false"]),
    ],
)
def test_nonsense_cannot_even_be_written_down(make: Any, words: list[str]) -> None:
    with pytest.raises(InvalidInput) as caught:
        make()
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("vm", "words"),
    [
        (VM("D44"), ["request.vms[0].type", "no VM type is called 'D44'", "D4"]),
        (VM("D1", priority="urgent"), ["request.vms[0].priority", "regular, spot"]),
        (VM("D1", requires=("gpu",)), ["request.vms[0].requires", "hardware feature"]),
        (VM("D1", colocation="loud"), ["request.vms[0].colocation", "disk-heavy"]),
        (VM("D1", cluster="c999"), ["request.vms[0].cluster", "c000"]),
        (VM("D1", datacenter="dc9"), ["request.vms[0].datacenter", "dc1"]),
        (VM("D1", generation="gen7"), ["request.vms[0].generation", "gen"]),
        (VM("D1", traits={"color": 1}), ["request.vms[0].traits", "color"]),
        (VM("D1", set="db"), ["request.vms[0].set", "no availability set of tenant t is called 'db'"]),
    ],
)
def test_a_name_the_zone_does_not_know_is_refused_with_the_nearest(
    allocator: Allocator, vm: VM, words: list[str]
) -> None:
    before = allocator.view.revision
    with pytest.raises(UnknownName) as caught:
        allocator.allocate(Request("t", [vm]))
    assert allocator.view.revision == before
    for word in words:
        assert word in str(caught.value)


def test_a_scale_out_keeps_the_constraints_and_may_not_change_them(allocator: Allocator) -> None:
    wanted = Constraints(max_per_machine=1)
    allocator.allocate(Request("scaled", [VM("D1")], wanted))
    with pytest.raises(InvalidInput, match=r"request\.constraints.*scaled"):
        allocator.allocate(Request("scaled", [VM("D1")], Constraints(max_per_machine=2)))
    grown = allocator.allocate(Request("scaled", [VM("D1")] * 3))
    assert grown.ok
    homes = [vm.machine for vm in allocator.vms.values() if vm.tenant == "scaled"]
    assert len(set(homes)) == 4


def test_a_scale_out_keeps_the_sets_and_may_not_bring_another(allocator: Allocator) -> None:
    sets = {"db": AvailabilitySet(fault_domains=3), "web": AvailabilitySet(update_domains=20)}
    allocator.allocate(Request("shop", [VM("D1", set="db")] * 2, Constraints(sets=sets)))
    with pytest.raises(UnknownName, match=r"request\.vms\[1\]\.set: no availability set .* 'dc'; did you mean db"):
        allocator.allocate(Request("shop", [VM("D1", set="db"), VM("D1", set="dc")]))
    assert allocator.allocate(Request("shop", [VM("D1", set="db"), VM("D1", set="web"), VM("D1")])).ok


@pytest.mark.parametrize(("field", "most"), [("fault_domains", 3), ("update_domains", 20)])
def test_a_set_asks_for_no_more_domains_than_the_zone_allows(allocator: Allocator, field: str, most: int) -> None:
    allowed, above = availability_set(**{field: most}), availability_set(**{field: most + 1})
    assert allocator.allocate(Request(f"most {field}", [VM("D1", set="x")], Constraints(sets={"x": allowed}))).ok
    with pytest.raises(
        InvalidInput, match=rf"constraints\.sets\.x\.{field}: is {most + 1}, .* at most {most}, or raise"
    ):
        allocator.allocate(Request(f"more {field}", [VM("D1", set="x")], Constraints(sets={"x": above})))


def test_a_name_that_is_taken_is_refused(allocator: Allocator) -> None:
    allocator.allocate(Request("named", [VM("D1", name="web")]))
    with pytest.raises(InvalidInput, match="'web' is taken"):
        allocator.allocate(Request("other", [VM("D1", name="web")]))
    with pytest.raises(InvalidInput, match=r"vms\[1\]\.name"):
        allocator.allocate(Request("other", [VM("D1", name="db"), VM("D1", name="db")]))


def test_a_constraint_that_the_policy_has_no_rule_for_is_refused() -> None:
    policy = Policy.parse("name: bare\nmachines:\n  validators: [has_room, evicts_nobody]\n")
    bare = Allocator(Zone.synthetic(100, seed=1), policy)
    with pytest.raises(InvalidInput, match=r"constraints\.max_per_rack: policy bare has no rule for it"):
        bare.allocate(Request("t", [VM("D1")], Constraints(max_per_rack=1)))
    with pytest.raises(InvalidInput, match=r"constraints\.sets\.db: policy bare has no rule for min_fault_domains"):
        bare.allocate(Request("t", [VM("D1")], Constraints(sets={"db": AvailabilitySet(fault_domains=2)})))


@pytest.mark.parametrize(
    ("act", "words"),
    [
        (lambda a: a.release("nobody"), ["no running VM is called 'nobody'"]),
        (lambda a: a.zone.machine("m"), ["no machine is called 'm'"]),
        (lambda a: a.zone.cluster("c77"), ["no cluster is called 'c77'"]),
        (lambda a: a.why_not(Request("t", [VM("D1")]), "m"), ["no machine is called 'm'"]),
        (lambda a: a.explain(Request("t", [VM("D1")]), vm=1), ["the request has VMs 0 to 0"]),
    ],
)
def test_operating_on_what_does_not_exist_is_refused(allocator: Allocator, act: Any, words: list[str]) -> None:
    with pytest.raises(InvalidInput) as caught:
        act(allocator)
    for word in words:
        assert word in str(caught.value)
