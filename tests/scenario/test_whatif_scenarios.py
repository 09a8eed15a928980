"""What-if questions: what is answered is what the real agents do to a copy, and the zone itself stays as it is."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from roost.agent.operation import Operation
from roost.agent.verbs.entry import SetEntry
from roost.agent.verbs.machine import SetMachine
from roost.agent.verbs.place import PlaceVMs
from roost.model.errors import InvalidInput
from roost.model.inventory import MachineSpec
from roost.model.registry import THRESHOLD
from roost.model.request import VM, Constraints, Request
from roost.model.zone import Zone
from roost.placing.allocator import Allocator
from roost.rules.policy import Policy
from roost.store.audit import audit
from roost.store.ledger import Ledger
from roost.store.snapshot import encode_snapshot
from roost.whatif.scenario import (
    add_racks,
    lose,
    machines_where,
    more,
    remove,
    repack,
    replace_racks,
    share_of_machines,
)
from roost.whatif.trial_zone import TrialZone, unspread
from roost.wiring import open_agent, open_store
from tests.oracle.moves import broken
from tests.oracle.plain import ladder
from tests.property.zones import TINY, ClusterPlan, build
from tests.scenario.fragmented import MIXED, fragmented, ledger_from

DEFAULT, FAST = Policy.named("default"), Policy.named("fast")


@pytest.fixture(scope="module")
def zone() -> Ledger:
    """A fragmented zone with all sorts of VMs and wishes."""
    return fragmented(100, mix=MIXED, fussy=0.4)


@pytest.fixture(autouse=True)
def unchanged(zone: Ledger) -> Iterator[None]:
    """No question changes the zone that it is about."""
    before = encode_snapshot(zone)
    yield
    assert encode_snapshot(zone) == before


def vms_on(zone: Ledger, machines: list[str]) -> set[str]:
    """The VMs of some machines."""
    return {name for name, vm in zone.vms.items() if vm.machine in machines}


def test_a_rack_is_lost_and_its_vms_run_elsewhere_or_are_named(zone: Ledger) -> None:
    machines = machines_where(zone, rack="c001-r00")
    found = lose(zone, DEFAULT, machines, "rack c001-r00")
    assert found.displaced == len(vms_on(zone, machines)) > 0
    assert found.after.vms == found.before.vms - len(found.homeless) - found.gave_way
    assert f"of {found.displaced} VMs {found.healed} find another machine" in found.answer
    assert found.after.room["A1"] < found.before.room["A1"]
    then = found.after
    assert (then.machines, then.machines_down) == (found.before.machines, len(machines))
    assert then.empty_machines == then.machines - then.machines_down - then.machines_in_use
    if not found.homeless:
        assert then.utilisation > found.before.utilisation, "as much runs, and on fewer machines"


def test_after_a_loss_all_that_runs_is_in_order_and_what_waits_is_where_it_was(zone: Ledger) -> None:
    machines = share_of_machines(zone, 0.5, seed=2)
    trial = TrialZone(zone, DEFAULT)
    gone = trial.vms_on(machines)
    assert set(gone) == vms_on(zone, machines)
    trial.do(*(SetMachine(machine, state="down") for machine in machines))
    trial.rest()
    homeless = {vm.vm for vm in trial.homeless(gone)}
    ledger = trial.store.load()
    assert audit_findings(ledger) == []
    assert len(trial.gave_way) > 0
    assert {zone.vms[name].spec.priority for name in trial.gave_way} == {"spot"}
    assert not trial.gave_way & set(gone), "the highest priority is placed first, so nobody who was healed gives way"
    assert set(ledger.vms) == set(zone.vms) - trial.gave_way
    assert vms_on(ledger, machines) == homeless
    for name, vm in ledger.vms.items():
        assert vm.spec == zone.vms[name].spec
        assert (name in gone and name not in homeless) == (vm.machine != zone.vms[name].machine)


def test_a_trial_begins_at_a_time_of_day_by_which_all_in_it_goes(zone: Ledger) -> None:
    stage = TrialZone(zone, DEFAULT, began=2_000_000_000.0)
    (answer,) = stage.do(PlaceVMs(Request("late", [VM("A1")])))
    assert answer.ok
    assert [vm.since for vm in stage.store.load().vms.values() if vm.tenant == "late"] == [2_000_000_000.0]
    stage.do(SetMachine(answer.placements[0].machine, state="down"))
    stage.rest()
    last = stage.store.head()[0]
    assert 0.0 <= stage.store.changes(last - 1).rows[-1].entries[-1].at - 2_000_000_000.0 < 60.0


def audit_findings(ledger: Ledger) -> list[str]:
    """What contradicts itself."""
    return [finding.what for finding in ledger.check_invariants()]


def test_the_highest_priority_is_healed_first() -> None:
    allocator = Allocator(Zone.synthetic(100), DEFAULT)
    for number in range(280):
        assert allocator.allocate(Request(f"t{number}", [VM("D3")])).ok
    number = 0
    while allocator.allocate(Request(f"s{number}", [VM("D3", priority="spot")])).ok:
        number += 1
    ledger = ledger_from(allocator)
    found = lose(ledger, DEFAULT, share_of_machines(ledger, 0.3, seed=1), "some")
    assert found.healed > 0
    assert found.gave_way > 0
    assert found.after.vms == found.before.vms - len(found.homeless) - found.gave_way
    assert f"{found.gave_way} VMs of a lower priority give way" in found.answer
    assert {vm.priority for vm in found.homeless} == {"spot"}
    assert all("machines are available" in vm.why for vm in found.homeless)


def test_tenants_that_are_spread_too_little_are_those_that_the_oracle_finds(zone: Ledger) -> None:
    homes: dict[tuple[str, str], list[MachineSpec]] = {}
    for vm in zone.vms.values():
        homes.setdefault((vm.tenant, vm.spec.set), []).append(zone.machines[vm.machine].spec)
    expected = {
        tenant
        for (tenant, of_set), machines in homes.items()
        if "min_fault_domains" in broken(ladder(zone.tenants[tenant].constraints, of_set)[0], machines)
    }
    assert unspread(zone) == expected


def test_tenants_whose_fault_domains_break_are_named() -> None:
    allocator = Allocator(Zone.synthetic(100), DEFAULT)
    wish = Constraints(min_fault_domains=2, max_fault_domains=2)
    assert allocator.allocate(Request("trio", [VM("Full-gen4")] * 3, wish)).ok
    ledger = ledger_from(allocator)
    racks = [ledger.machines[vm.machine].spec.rack for vm in ledger.vms.values()]
    home = max(racks, key=racks.count)
    lost = [m for m in machines_where(ledger, generation="gen4") if ledger.machines[m].spec.rack != home]
    found = lose(ledger, DEFAULT, lost, "all racks of gen4 but one")
    assert (found.displaced, len(found.homeless), found.unspread) == (1, 1, ("trio",))


def test_racks_are_added_like_those_that_are_there(zone: Ledger) -> None:
    found = add_racks(zone, DEFAULT, "c001", 2)
    assert found.after.machines == found.before.machines + 20
    assert found.after.vms == found.before.vms
    assert found.after.room["D2"] > found.before.room["D2"]
    assert found.displaced == 0


def test_a_rack_is_removed_and_its_vms_go_elsewhere(zone: Ledger) -> None:
    machines = machines_where(zone, rack="c001-r01")
    found = remove(zone, DEFAULT, machines, "c001-r01")
    assert found.after.machines == found.before.machines - len(machines)
    assert found.displaced == len(vms_on(zone, machines))
    assert found.after.vms + len(found.homeless) + found.gave_way == found.before.vms


def test_a_rack_gives_way_to_another_generation(zone: Ledger) -> None:
    found = replace_racks(zone, DEFAULT, "c001", 1, "gen6")
    assert found.after.machines == found.before.machines
    assert found.after.room["Full-gen6"] > found.before.room["Full-gen6"]
    with pytest.raises(InvalidInput, match="has 1 to"):
        replace_racks(zone, DEFAULT, "c001", 99, "gen6")
    with pytest.raises(InvalidInput, match="no generation is called 'gen7'"):
        replace_racks(zone, DEFAULT, "c001", 1, "gen7")


@pytest.mark.parametrize("vm_type", ["D4", "G3"])
def test_as_many_of_a_type_as_fit_are_exactly_so_many(zone: Ledger, vm_type: str) -> None:
    found = more(zone, DEFAULT, vm_type, None)
    assert found.placed - found.gave_way == found.after.vms - found.before.vms
    assert f", if {found.gave_way} VMs of a lower priority give way" in found.answer
    assert found.after.room[vm_type] == 0
    assert "machines are available" in found.stopped_by
    again = more(zone, DEFAULT, vm_type, found.placed)
    assert (again.placed, again.stopped_by) == (found.placed, "")
    beyond = more(zone, DEFAULT, vm_type, found.placed + 5)
    assert beyond.placed == found.placed
    assert beyond.stopped_by


def test_all_tenants_are_placed_anew_in_the_order_of_the_seed(zone: Ledger) -> None:
    first, again, other = (repack(zone, DEFAULT, seed) for seed in (1, 1, 2))
    assert first == again
    assert first.measures != other.measures
    for each in (first, other):
        assert each.measures.vms + each.refused == len(zone.vms)
        assert each.measures.density > 0.7


def test_what_makes_no_sense_is_refused(zone: Ledger) -> None:
    with pytest.raises(InvalidInput, match="no rack is called 'c9'"):
        machines_where(zone, rack="c9")
    with pytest.raises(InvalidInput, match=r"share: is 1\.5"):
        share_of_machines(zone, 1.5, 1)
    with pytest.raises(InvalidInput, match="no VM type is called 'D22'"):
        more(zone, DEFAULT, "D22", 1)
    with pytest.raises(InvalidInput, match="racks: is 0"):
        add_racks(zone, DEFAULT, "c001", 0)
    with pytest.raises(InvalidInput, match="are all that the zone has"):
        remove(zone, DEFAULT, list(zone.machines), "everything")


def test_the_store_of_a_stage_agrees_with_itself(zone: Ledger) -> None:
    trial = TrialZone(zone, DEFAULT)
    trial.clear(machines_where(zone, cluster="c001"))
    trial.rest()
    assert audit(trial.store).clean


# -------------------------------------------------------------------------------------------------- as a service has it


def two_racks(*operations: Operation) -> Ledger:
    """Two racks of four machines, each of which a VM of type `whole` fills, after some operations."""
    store = open_store("memory:", create=build(TINY, (ClusterPlan(0, 0, (4, 4)),)))
    agent = open_agent(store, FAST, "history")
    for operation in operations:
        (answer,) = agent.run(agent.submit(operation))
        assert answer.ok, answer
    return store.load()


def test_more_are_as_many_as_new_tenants_get_and_not_as_one_that_grows() -> None:
    ledger = two_racks(SetEntry(THRESHOLD, "c0", '{"new": 4, "scale_out": 2}'))
    found = more(ledger, FAST, "whole", None)
    assert found.placed == found.before.room["whole"] == 4
    assert found.stopped_by.startswith("4 machines of c0 are kept empty for scale-outs and healing; 0/8 machines")


def test_vms_that_must_stay_together_are_not_healed_one_by_one() -> None:
    together = PlaceVMs(Request("four", [VM("whole")] * 4, Constraints(colocate="rack")))
    ledger = two_racks(PlaceVMs(Request("one", [VM("whole")])), together)
    rack = ledger.machines[ledger.vms["four/0"].machine].spec.rack
    found = lose(ledger, FAST, machines_where(ledger, rack=rack), f"rack {rack}")
    assert (found.displaced, found.healed) == (4, 0)
    assert [vm.why for vm in found.homeless] == [
        "0/8 machines are available: 4 machine down, 3 away from the tenant's rack, 1 insufficient cores"
    ] * 4


def test_what_was_lost_before_is_no_part_of_a_loss_and_not_in_use() -> None:
    ledger = two_racks(*(PlaceVMs(Request(f"t{i}", [VM("whole")])) for i in range(8)), SetMachine("c0r0m0", "down"))
    found = lose(ledger, FAST, ["c0r0m0", "c0r0m1"], "two machines")
    assert (found.displaced, found.healed) == (1, 0)
    assert (found.before.vms, found.before.machines_in_use, found.before.machines_down) == (7, 7, 1)
    assert (found.after.vms, found.after.machines_in_use, found.after.machines_down) == (6, 6, 2)
    assert found.after.density == found.after.utilisation == 1.0


def test_vms_that_gave_way_and_come_back_are_told() -> None:
    *others, last = (f"c0r{rack}m{machine}" for rack in range(2) for machine in range(4))
    ledger = two_racks(
        *(SetMachine(machine, "draining") for machine in others),
        PlaceVMs(Request("spot", [VM("small", priority="low", requeue=True)])),
        *(SetMachine(machine, "ready") for machine in others),
        SetMachine(last, "draining"),
        *(PlaceVMs(Request(f"t{i}", [VM("whole")])) for i in range(6)),
        PlaceVMs(Request("most", [VM("big")])),  # which leaves room for a small one
        SetMachine(last, "ready"),
    )
    lost = ledger.vms["t0/0"].machine
    found = lose(ledger, FAST, [lost], lost)
    assert (found.healed, found.gave_way, found.came_back) == (1, 1, 1)
    assert found.after.vms == found.before.vms
    assert "1 VM of a lower priority gives way (1 of 1 to another machine)" in found.answer


def test_machines_are_removed_when_they_were_drained_and_what_cannot_move_is_gone_with_them() -> None:
    together = PlaceVMs(Request("two", [VM("whole")] * 2, Constraints(colocate="rack")))
    ledger = two_racks(together, *(PlaceVMs(Request(f"t{i}", [VM("whole")])) for i in range(4)))
    rack = ledger.machines[ledger.vms["two/0"].machine].spec.rack
    found = remove(ledger, FAST, machines_where(ledger, rack=rack), rack)
    there = [vm for vm in ledger.vms.values() if ledger.machines[vm.machine].spec.rack == rack]
    assert found.displaced == len(there)
    assert found.after.machines == 4
    assert found.after.vms == found.before.vms - len(found.homeless)
    assert all("machine draining" in vm.why for vm in found.homeless)
