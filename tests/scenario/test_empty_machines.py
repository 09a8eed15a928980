"""Empty machines against utilisation (Azure's VM allocator, "Utilization vs. Empty Nodes"), and who stops when.

two thirds in use, no machine empty       two thirds in use, one machine empty
┌─────┐ ┌─────┐ ┌─────┐                   ┌─────┐ ┌─────┐ ┌─────┐
│     │ │     │ │  b  │                   │  a  │ │  b  │ │     │
│  a  │ │  a  │ │     │                   │  a  │ │  b  │ │     │
│     │ │     │ │  b  │                   │     │ │     │ │     │
└─────┘ └─────┘ └─────┘                   └─────┘ └─────┘ └─────┘
"""

from __future__ import annotations

import pytest

from roost.engine.capacity import room_for
from roost.model.errors import InvalidInput, UnknownName
from roost.model.request import VM, Request
from roost.model.thresholds import Purpose, Thresholds
from roost.model.zone import Generation, MachineGroup, Resource, VMType, Zone
from roost.placing.allocator import Allocator
from roost.placing.decision import Decision
from roost.rules.policy import Policy
from tests.property.operators import set_machine_state, set_thresholds

CORES = 12
MACHINES = ("m0", "m1", "m2")
SIZES = {"third": 4, "half": 6, "two-thirds": 8, "whole": CORES}


def zone(machines: int = 3, thresholds: Thresholds | None = None) -> Zone:
    """One cluster of machines with twelve cores."""
    names = [f"m{i}" for i in range(machines)]
    return Zone(
        name="slides",
        resources=(Resource("cores", "cores", 1),),
        bands=("regular", "spot"),
        generations=(Generation("g", (CORES,)),),
        vm_types=tuple(VMType(name, "v", {"g": (cores,)}) for name, cores in SIZES.items()),
        groups=[
            MachineGroup(
                datacenter="d", cluster="c", rack="r", generation="g", names=names, update_domains=[0] * machines
            )
        ],
        thresholds={"c": thresholds} if thresholds else None,
    )


def filled(**machines: tuple[str, ...]) -> Allocator:
    """A zone in which these VMs run, each on its machine."""
    allocator = Allocator(zone(), Policy.named("fast"))
    for machine, vms in machines.items():
        for other in MACHINES:
            set_machine_state(allocator, other, "ready" if other == machine else "draining")
        for i, kind in enumerate(vms):
            assert allocator.allocate(Request(f"{machine}-{i}", [VM(kind)])).ok
    for machine in MACHINES:
        set_machine_state(allocator, machine, "ready")
    return allocator


def heals(allocator: Allocator, machine: str) -> bool:
    """Whether all VMs of a machine that fails find another one; everything is as it was afterwards."""
    before = allocator.view.attempt()
    lost = [vm for vm in allocator.vms.values() if allocator.zone.machine_names[vm.machine] == machine]
    for vm in lost:
        allocator.release(vm.name)
    set_machine_state(allocator, machine, "down")
    again = [allocator.allocate(Request(vm.tenant, [vm.vm]), purpose=Purpose.HEALING) for vm in lost]
    for decision in again:
        for placement in decision.placements:
            allocator.release(placement.vm)
    allocator.view.rewind(before)
    for vm in lost:
        allocator.enter(vm)
    return all(decision.ok for decision in again)


# Three machines, two thirds of the cores in use. In the first state what runs on m0 fits nowhere else.
SPREAD = {"m0": ("two-thirds",), "m1": ("third", "third"), "m2": ("third", "third")}
PACKED = {"m0": ("whole",), "m1": ("half", "half")}


def test_at_the_same_utilisation_an_empty_machine_decides_what_can_be_healed_and_hosted() -> None:
    spread, packed = filled(**SPREAD), filled(**PACKED)
    assert spread.usage().utilisation == pytest.approx(2 / 3)
    assert packed.usage().utilisation == pytest.approx(2 / 3)
    assert [int(each.view.clusters[0]["empty"][0]) for each in (spread, packed)] == [0, 1]

    assert [heals(spread, machine) for machine in MACHINES] == [False, True, True], "a third cannot be healed"
    assert [heals(packed, machine) for machine in MACHINES] == [True, True, True]

    assert not spread.allocate(Request("full-size", [VM("whole")])).ok
    for size in SIZES:
        decision = packed.allocate(Request("any size", [VM(size)]))
        assert decision.ok
        packed.release(decision.placements[0].vm)


def test_thresholds_keep_what_is_packed_able_to_heal() -> None:
    """What utilisation would have let in, a threshold of one empty machine does not."""
    packed = filled(**PACKED)
    set_thresholds(packed, "c", Thresholds(new=1, scale_out=1))
    assert not packed.allocate(Request("new", [VM("third")])).ok
    assert not packed.allocate(Request("m1-0", [VM("third")])).ok
    assert all(heals(packed, machine) for machine in MACHINES)


# --------------------------------------------------------------------------------------------------- who stops when


def running(thresholds: Thresholds, machines: int = 6) -> Allocator:
    """An empty zone that keeps machines, with a tenant `old` on the first of them."""
    allocator = Allocator(zone(machines, thresholds), Policy.named("fast"))
    assert allocator.allocate(Request("old", [VM("whole")])).ok
    return allocator


def placed_until_refused(allocator: Allocator, tenant: str, purpose: Purpose | None = None) -> tuple[int, Decision]:
    """Fill whole machines until one is refused; how many are empty then, and why."""
    for i in range(100):
        name = f"{tenant}-{i}" if tenant == "new" else tenant
        decision = allocator.allocate(Request(name, [VM("whole")]), purpose=purpose)
        if not decision.ok:
            return int(allocator.view.clusters[0]["empty"][0]), decision
    raise AssertionError("nobody stopped")


def test_new_deployments_stop_first_then_scale_outs_then_healing() -> None:
    allocator = running(Thresholds(new=3, scale_out=2, healing=1))
    left, refused = placed_until_refused(allocator, "new")
    assert (left, refused.purpose) == (3, Purpose.NEW)
    left, refused = placed_until_refused(allocator, "old")
    assert (left, refused.purpose) == (2, Purpose.SCALE_OUT)
    left, refused = placed_until_refused(allocator, "old", Purpose.HEALING)
    assert (left, refused.purpose) == (1, Purpose.HEALING)
    assert allocator.allocate(Request("cheap", [VM("whole", priority="spot")])).ok, "spot VMs run in what is kept"


def test_without_thresholds_the_last_machine_is_filled() -> None:
    allocator = running(Thresholds())
    left, refused = placed_until_refused(allocator, "new")
    assert (left, refused.explanation.failure) == (0, "no_capacity")


def test_a_request_for_several_vms_stops_when_one_of_them_would_go_too_far() -> None:
    allocator = running(Thresholds(new=3))
    assert not allocator.allocate(Request("three", [VM("whole")] * 3)).ok
    assert allocator.allocate(Request("two", [VM("whole")] * 2)).ok


def test_a_refusal_names_the_kind_of_request_and_the_threshold_that_stopped_it() -> None:
    allocator = running(Thresholds(new=3, scale_out=2, healing=1))
    _, refused = placed_until_refused(allocator, "new")
    told = refused.explanation
    assert told.failure == "threshold"
    assert [(r.text, r.rule, r.machines) for r in told.reasons] == [
        ("cluster keeps its empty machines from new deployments", "keeps_empty_machines", 6)
    ]
    (remedy,) = [remedy for remedy in told.remedies if remedy.kind == "threshold"]
    assert (
        str(remedy) == "lower the threshold of cluster c, which has 3 empty machines and keeps 3 from new deployments"
    )
    assert "threshold: machines have room, but their clusters keep their empty machines from such requests" in str(told)
    assert "from scale-outs" in allocator.explain(Request("old", [VM("whole")] * 2)).summary
    _, refused = placed_until_refused(allocator, "old")
    assert "from scale-outs" in refused.explanation.summary
    _, refused = placed_until_refused(allocator, "old", Purpose.HEALING)
    assert "from healing" in refused.explanation.summary
    assert refused.why_not("m5").rule == "keeps_empty_machines"


def test_a_past_refusal_is_explained_by_the_threshold_of_then() -> None:
    allocator = running(Thresholds(new=3))
    _, refused = placed_until_refused(allocator, "new")
    then = refused.explanation.summary
    set_thresholds(allocator, "c", Thresholds())
    assert allocator.allocate(Request("later", [VM("whole")])).ok
    assert refused.explanation.summary == then


def test_a_vm_that_runs_moves_as_healing_does() -> None:
    allocator = running(Thresholds())
    set_thresholds(allocator, "c", Thresholds(new=6, scale_out=6, healing=5))
    (vm,) = allocator.vms.values()
    target = next(m for m in range(6) if m != vm.machine)
    assert allocator.refusal(vm, target, [vm]) is None
    set_thresholds(allocator, "c", Thresholds(new=6, scale_out=6, healing=6))
    assert allocator.refusal(vm, target, [vm]) == (
        "cluster keeps its empty machines from healing (keeps_empty_machines)"
    )


def test_thresholds_that_make_no_sense_are_refused_and_change_nothing() -> None:
    allocator = running(Thresholds(new=3))
    with pytest.raises(InvalidInput, match=r"thresholds.new: is 7, and cluster c has 6 machines; keep at most 6"):
        set_thresholds(allocator, "c", Thresholds(new=7))
    with pytest.raises(UnknownName, match=r"no cluster is called 'd'"):
        set_thresholds(allocator, "d", Thresholds(new=1))
    with pytest.raises(InvalidInput, match=r"thresholds.scale_out: is 1, below healing, which is 2; scale-outs stop"):
        Thresholds(new=3, scale_out=1, healing=2)
    with pytest.raises(InvalidInput, match=r"thresholds.new: is -1; use a whole number of machines, 0 for none"):
        Thresholds(new=-1)
    assert allocator.view.clusters["thresholds"].tolist() == [[3, 0, 0]]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kept", [0, 1, 3, 5, 6])
def test_capacity_counts_what_thresholds_let_in(size: str, kept: int) -> None:
    """As many as really fit when they come one by one."""
    allocator = running(Thresholds())
    set_thresholds(allocator, "c", Thresholds(new=kept))
    assert allocator.allocate(Request("old", [VM("third")])).ok
    counted = room_for(allocator.engine, allocator.shapes.of(VM(size), 0)).total
    came = 0
    while allocator.allocate(Request(f"new-{came}", [VM(size)])).ok:
        came += 1
    assert counted == came


def test_a_machine_that_an_isolated_vm_has_for_itself_is_empty_to_nobody() -> None:
    """Others would have to wait for it, whatever their priority; what gives way takes nothing from the buffers."""
    allocator = Allocator(zone(), Policy.named("fast"))
    assert allocator.allocate(Request("batch", [VM("third", priority="spot")])).ok
    assert allocator.view.clusters[0]["empty"].tolist() == [3, 2]
    alone = allocator.allocate(Request("alone", [VM("third", priority="spot", isolated=True)]))
    assert allocator.view.clusters[0]["empty"].tolist() == [2, 1]
    allocator.release(alone.placements[0].vm)
    assert allocator.view.clusters[0]["empty"].tolist() == [3, 2]
