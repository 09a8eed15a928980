"""Hard rules on machines."""

import pytest

from roost.model.rows import MachineState
from roost.rules.policy import shipped_rules
from roost.rules.validators.below_vm_limit import below_vm_limit
from roost.rules.validators.evicts_nobody import evicts_nobody
from roost.rules.validators.has_features import has_features
from roost.rules.validators.has_room import first_short, has_room
from roost.rules.validators.healthy_enough import healthy_enough
from roost.rules.validators.is_ready import is_ready, state
from roost.rules.validators.respects_anti_colocation import respects_anti_colocation
from roost.rules.validators.respects_isolation import respects_isolation
from tests.unit.rules.rows import CAPACITY, REGULAR, RESOURCES, SPOT, allows, machine, vm


def test_a_vm_that_fits_exactly_has_room() -> None:
    assert allows(has_room, machine(), vm(demand=CAPACITY))


@pytest.mark.parametrize("resource", RESOURCES)
def test_one_unit_too_little_of_any_resource_is_no_room_and_is_named(resource: str) -> None:
    short = machine(regular={resource: 1})
    assert not allows(has_room, short, vm(demand=CAPACITY))
    assert RESOURCES[first_short(short, vm(demand=CAPACITY))] == resource


def test_the_first_of_several_short_resources_is_named() -> None:
    short = machine(regular={"nic": 1, "memory": 1})
    assert RESOURCES[first_short(short, vm(demand=CAPACITY))] == "memory"


def test_no_resource_is_named_where_there_is_room() -> None:
    assert first_short(machine(), vm(demand=CAPACITY)) == -1


def test_a_machine_without_a_resource_has_room_for_vms_that_need_none() -> None:
    assert allows(has_room, machine(capacity={"ssd": 0}), vm(demand={"cores": 1}))
    assert not allows(has_room, machine(capacity={"ssd": 0}), vm(demand={"ssd": 1}))


def test_spot_vms_make_room_for_regular_ones_but_not_for_spot_ones() -> None:
    full_of_spot = machine(spot=CAPACITY)
    assert allows(has_room, full_of_spot, vm(demand={"cores": 1}, priority=REGULAR))
    assert not allows(has_room, full_of_spot, vm(demand={"cores": 1}, priority=SPOT))
    assert first_short(full_of_spot, vm(demand={"cores": 1}, priority=SPOT)) == RESOURCES.index("cores")


def test_regular_vms_make_room_for_nobody() -> None:
    full = machine(regular=CAPACITY)
    assert not any(allows(has_room, full, vm(demand={"cores": 1}, priority=p)) for p in (REGULAR, SPOT))


def test_room_is_what_the_vm_takes_on_this_hardware() -> None:
    wide_then_narrow = vm(demand=[{"cores": 17}, {"cores": 16}])
    assert not allows(has_room, machine(generation=0), wide_then_narrow)
    assert allows(has_room, machine(generation=1), wide_then_narrow)


def test_a_regular_vm_that_would_evict_a_spot_one_is_refused_where_nobody_is_evicted() -> None:
    half_spot = machine(spot={"cores": 8})
    assert allows(evicts_nobody, half_spot, vm(demand={"cores": 8}, priority=REGULAR))
    assert allows(has_room, half_spot, vm(demand={"cores": 9}, priority=REGULAR))
    assert not allows(evicts_nobody, half_spot, vm(demand={"cores": 9}, priority=REGULAR))


@pytest.mark.parametrize("now", MachineState)
def test_only_a_ready_machine_is_ready_and_another_names_its_state(now: MachineState) -> None:
    assert allows(is_ready, machine(state=int(now)), vm()) == (now is MachineState.READY)
    assert state(machine(state=int(now)), vm()) == now


@pytest.mark.parametrize(
    ("owner", "vms", "isolation", "expected"),
    [
        pytest.param(0, 0, 0, True, id="a shared VM on an empty machine"),
        pytest.param(0, 3, 0, True, id="a shared VM among shared VMs"),
        pytest.param(1, 3, 0, False, id="a shared VM on a machine held in isolation"),
        pytest.param(0, 0, 1, True, id="an isolated VM on an empty machine"),
        pytest.param(1, 3, 1, True, id="an isolated VM on a machine its tenant holds"),
        pytest.param(0, 3, 1, False, id="an isolated VM among shared VMs"),
        pytest.param(2, 3, 1, False, id="an isolated VM on a machine another tenant holds"),
        pytest.param(2, 0, 1, False, id="an isolated VM on an empty machine another tenant still holds"),
    ],
)
def test_nobody_shares_a_machine_held_in_isolation(owner: int, vms: int, isolation: int, expected: bool) -> None:
    assert allows(respects_isolation, machine(owner=owner, vms=vms), vm(isolation=isolation)) == expected


def test_a_machine_needs_each_feature_asked_for_and_may_have_more() -> None:
    assert allows(has_features, machine(features=0b111), vm(features=0b101))
    assert not allows(has_features, machine(features=0b110), vm(features=0b101))
    assert allows(has_features, machine(features=0), vm(features=0))


def test_a_vm_stays_away_from_classes_it_avoids_and_from_no_others() -> None:
    avoids_the_second = vm(colocation=0, avoids=(0, 1, 0))
    assert allows(respects_anti_colocation, machine(classes=(5, 0, 5)), avoids_the_second)
    assert not allows(respects_anti_colocation, machine(classes=(0, 1, 0)), avoids_the_second)


def test_a_class_may_avoid_itself() -> None:
    licensed = vm(colocation=2, avoids=(0, 0, 1))
    assert allows(respects_anti_colocation, machine(classes=(1, 1, 0)), licensed)
    assert not allows(respects_anti_colocation, machine(classes=(0, 0, 1)), licensed)


def test_a_vm_of_no_class_shares_with_all() -> None:
    assert allows(respects_anti_colocation, machine(classes=(9, 9, 9)), vm(colocation=-1))


def test_the_last_vm_of_the_limit_is_allowed_and_the_next_is_not() -> None:
    assert allows(below_vm_limit, machine(vms=63), vm())
    assert not allows(below_vm_limit, machine(vms=64), vm())
    assert not allows(below_vm_limit, machine(vms=2), vm(), max_vms=2)


def test_a_machine_of_the_lowest_accepted_health_is_healthy_enough() -> None:
    assert allows(healthy_enough, machine(health=30), vm())
    assert not allows(healthy_enough, machine(health=29), vm())
    assert allows(healthy_enough, machine(health=0), vm(), min_health=0)


def test_the_store_checks_again_what_another_agent_may_have_changed() -> None:
    rules = {rule for rule in shipped_rules() if rule.kind == "validator" and rule.scope == "machine"}
    assert len(rules) == 8
    assert all(rule.recheck for rule in rules)
