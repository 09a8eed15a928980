"""Where a tenant wants its VMs holds for later ones, too; and wishes that promise nothing are refused."""

from __future__ import annotations

import msgspec
import pytest

from roost.model.availability import AvailabilitySet
from roost.model.errors import InvalidInput
from roost.model.request import ANY, VM, Constraints, Request, check_promises, heeding
from roost.placing.allocator import Allocator
from tests.property.zones import MIDDLE, TINY, ClusterPlan, build, policy

# Two datacenters, and so little room in the second that nobody would go there by himself.
ZONE = build(TINY, (ClusterPlan(0, 0, (3, 3)), ClusterPlan(0, 1, (1, 1, 1))))


@pytest.fixture(params=range(5))
def allocator(request: pytest.FixtureRequest) -> Allocator:
    return Allocator(ZONE, policy(MIDDLE), request.param)


def where(allocator: Allocator, pin: str = "datacenter") -> set[str]:
    """The datacenters, or clusters, of all VMs."""
    names = {"datacenter": ZONE.datacenters, "cluster": ZONE.cluster_names}[pin]
    return {names[ZONE.machines[vm.machine][pin]] for vm in allocator.vms.values()}


@pytest.mark.parametrize("pin", ["datacenter", "cluster"])
def test_a_scale_out_stays_where_the_first_vms_were_asked_for(allocator: Allocator, pin: str) -> None:
    there = {"datacenter": "dc1", "cluster": "c1"}[pin]
    assert allocator.allocate(Request("t", (msgspec.structs.replace(VM("small"), **{pin: there}),) * 2)).ok
    for _ in range(5):
        assert allocator.allocate(Request("t", (VM("small"),))).ok
    assert where(allocator, pin) == {there}
    assert allocator.tenants["t"].constraints.pins == {pin: there}


def test_a_scale_out_is_declined_rather_than_placed_elsewhere(allocator: Allocator) -> None:
    assert allocator.allocate(Request("t", (VM("whole", datacenter="dc1"),) * 3)).ok
    declined = allocator.allocate(Request("t", (VM("whole"),)))
    assert not declined.ok
    assert "take any datacenter, not only dc1" in [str(remedy) for remedy in declined.explanation.remedies]


@pytest.mark.parametrize("elsewhere", ["dc0", ANY])
def test_a_vm_that_says_otherwise_goes_there_and_the_next_one_does_not(allocator: Allocator, elsewhere: str) -> None:
    assert allocator.allocate(Request("t", (VM("whole", datacenter="dc1"),) * 3)).ok
    assert allocator.allocate(Request("t", (VM("whole", datacenter=elsewhere),))).ok
    assert where(allocator) == {"dc0", "dc1"}
    assert not allocator.allocate(Request("t", (VM("whole"),))).ok


@pytest.mark.parametrize(
    ("first", "later"),
    [
        (VM("small", cluster="c1"), VM("small", datacenter="dc0")),
        (VM("small", datacenter="dc1"), VM("small", cluster="c0")),
        (VM("small", datacenter="dc1", cluster="c1"), VM("small", cluster="c0")),
    ],
)
def test_a_vm_that_names_one_of_datacenter_and_cluster_is_not_held_to_the_other(
    allocator: Allocator, first: VM, later: VM
) -> None:
    assert allocator.allocate(Request("t", (first,))).ok
    assert allocator.allocate(Request("t", (later,))).ok
    assert where(allocator) == {"dc0", "dc1"}


def test_any_cluster_is_any_of_the_datacenter_that_the_tenant_wants(allocator: Allocator) -> None:
    assert allocator.allocate(Request("t", (VM("whole", datacenter="dc1", cluster="c1"),) * 3)).ok
    assert not allocator.allocate(Request("t", (VM("whole", cluster=ANY),))).ok


def test_no_remedy_forgets_where_the_tenant_wants_its_vms(allocator: Allocator) -> None:
    assert allocator.allocate(Request("t", (VM("whole", datacenter="dc1"),) * 3)).ok
    declined = allocator.allocate(Request("t", (VM("whole", cluster="c1"),)))
    assert "pin" not in {remedy.kind for remedy in declined.explanation.remedies}  # any cluster of dc1 is full as well
    assert not allocator.allocate(Request("t", (VM("whole", cluster=ANY),))).ok


def test_vms_that_ask_for_different_places_say_nothing_of_later_ones(allocator: Allocator) -> None:
    assert allocator.allocate(Request("t", (VM("small", datacenter="dc0"), VM("small", datacenter="dc1")))).ok
    assert allocator.tenants["t"].constraints.pins == {}


def test_a_place_may_be_asked_for_as_a_constraint_and_is_kept_with_others(allocator: Allocator) -> None:
    wanted = Constraints(datacenter="dc1", max_per_machine=1)
    assert allocator.allocate(Request("t", (VM("small"),) * 2, wanted)).ok
    assert allocator.allocate(Request("t", (VM("small"),), wanted)).ok
    assert where(allocator) == {"dc1"}


def test_constraints_that_come_again_need_not_say_what_the_first_vms_said(allocator: Allocator) -> None:
    spread = Constraints(max_per_machine=2)
    assert allocator.allocate(Request("t", (VM("small", datacenter="dc1"),), spread)).ok
    assert allocator.allocate(Request("t", (VM("small"),), spread)).ok
    with pytest.raises(InvalidInput, match="differ from those that tenant t has"):
        allocator.allocate(Request("t", (VM("small"),), Constraints(max_per_machine=2, datacenter="dc0")))


def test_vms_that_lost_their_machine_and_vms_that_move_stay_where_their_tenant_wants_them(allocator: Allocator) -> None:
    assert allocator.allocate(Request("t", (VM("whole", datacenter="dc1"),))).ok
    assert allocator.allocate(Request("t", (VM("whole"),))).ok
    (_, later) = allocator.tenants["t"].vms.values()
    away = ZONE.machine("c0r0m0")
    assert "(in_datacenter)" in str(allocator.refusal(later, away, (later,)))
    lost = Request("t", (msgspec.structs.replace(later.vm, name=later.name),))
    assert allocator.decide(lost, leaving=(later,)).ok
    assert where(allocator) == {"dc1"}


def test_places_are_kept_as_older_versions_can_be_read() -> None:
    old = msgspec.json.decode(b'{"min_fault_domains":2}', type=Constraints)
    assert old == Constraints(min_fault_domains=2)
    new = Constraints(datacenter="d", cluster="c")
    assert msgspec.json.decode(msgspec.json.encode(new), type=Constraints) == new
    assert hash(new) != hash(Constraints(datacenter="d"))


def test_a_request_of_a_tenant_that_wants_nothing_is_left_as_it_is() -> None:
    request = Request("t", (VM("small"),))
    assert heeding(request, Constraints(max_per_rack=1)) is request


@pytest.mark.parametrize("value", [ANY, 3])
def test_a_tenant_names_a_place_or_none(value: object) -> None:
    with pytest.raises(InvalidInput, match=r"constraints\.datacenter"):
        Constraints(datacenter=value)  # type: ignore[arg-type]


DB = {"db": AvailabilitySet(fault_domains=3)}


@pytest.mark.parametrize(
    ("vms", "constraints", "said"),
    [
        ((VM("small"),), Constraints(sets=DB), r"constraints\.sets\.db: no VM of the request is in it; put VMs in it"),
        (
            (VM("small"),) * 3,
            Constraints(min_fault_domains=5),
            r"min_fault_domains: is 5, for 3 VMs; ask for at most 3",
        ),
        ((VM("small"),), Constraints(min_update_domains=2), r"min_update_domains: is 2, for 1 VM; ask for at most 1"),
        (
            (VM("small", set="db"),) * 3,
            Constraints(sets=DB, min_fault_domains=2),
            "is 2, for 0 VMs in no set; leave it out",
        ),
    ],
)
def test_what_would_promise_nothing_is_refused(vms: tuple[VM, ...], constraints: Constraints, said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        check_promises(Request("t", vms, constraints))


@pytest.mark.parametrize(
    ("vms", "constraints"),
    [
        ((VM("small"),) * 3, Constraints(min_fault_domains=3, max_per_machine=9)),
        ((VM("small", set="db"),) * 2, Constraints(sets=DB)),  # a set grows into its domains
        ((VM("small"),), None),
    ],
)
def test_what_promises_something_is_not(vms: tuple[VM, ...], constraints: Constraints | None) -> None:
    check_promises(Request("t", vms, constraints))


def test_a_decision_tells_how_the_vms_of_a_tenant_lie() -> None:
    allocator = Allocator(ZONE, policy(MIDDLE))
    wanted = Constraints(min_fault_domains=3)
    decision = allocator.allocate(Request("t", (VM("small"),) * 6, wanted))
    (spread,) = decision.spread
    homes = [vm.machine for vm in allocator.vms.values()]
    racks = [int(ZONE.machines[m]["rack"]) for m in homes]
    assert (spread.vms, spread.fault_domains) == (6, len(set(racks)))
    assert spread.most_on_machine == max(homes.count(m) for m in homes)
    assert spread.most_in_fault_domain == max(racks.count(r) for r in racks)
    assert f"6 VMs in {spread.fault_domains} fault domains (at most {spread.most_in_fault_domain} in" in str(spread)
    assert allocator.allocate(Request("free", (VM("small"),) * 2)).spread == ()
