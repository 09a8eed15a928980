"""Soft rules on machines and racks, and the columns they need. Lower is better."""

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings

from roost.rules.columns.failure_risk import failure_risk
from roost.rules.preferences.balanced import balanced
from roost.rules.preferences.best_fit import best_fit
from roost.rules.preferences.current_host_environment import current_host_environment
from roost.rules.preferences.emptiest import emptiest
from roost.rules.preferences.exact_fit import exact_fit
from roost.rules.preferences.fewer_vms import fewer_vms
from roost.rules.preferences.healthy import healthy
from roost.rules.preferences.keep_whole_machines_free import keep_whole_machines_free
from roost.rules.preferences.least_used_rack import least_used_rack
from roost.rules.preferences.nobody_gives_way import nobody_gives_way
from roost.rules.preferences.non_empty import non_empty
from roost.rules.preferences.rack_with_empty_machines import rack_with_empty_machines
from roost.rules.preferences.safest import safest
from roost.rules.preferences.storage_match import storage_match
from roost.rules.preferences.unlikely_to_fail import unlikely_to_fail
from tests.unit.rules.rows import CAPACITY, RANDOM, REGULAR, SPOT, machine, rack, score, vm

CORES_ONLY = {"memory": 0, "disk": 0, "ssd": 0, "nic": 0}
HALF = {name: amount // 2 for name, amount in CAPACITY.items()}


# ------------------------------------------------------------------------------------------------ what shape it is in


def test_healthier_machines_come_first() -> None:
    assert [score(healthy, machine(health=h), vm()) for h in (100, 75, 0)] == [0.0, 0.25, 1.0]


def test_the_latest_host_environment_comes_first_and_the_oldest_are_alike() -> None:
    scores = [score(current_host_environment, machine(versions_behind=v), vm()) for v in (0, 1, 4, 9)]
    assert scores == [0.0, 0.25, 1.0, 1.0]


def test_with_nothing_counted_as_old_only_the_latest_host_environment_is_good() -> None:
    scores = [score(current_host_environment, machine(versions_behind=v), vm(), oldest=0) for v in (0, 1, 2)]
    assert scores == [0.0, 1.0, 1.0]


def test_a_perfect_machine_will_not_fail() -> None:
    assert score(failure_risk, machine(failures=0, health=100), vm()) == 0.0


@pytest.mark.parametrize(("failures", "health", "rate"), [(1, 100, 7 / 30), (0, 0, 0.7), (2, 50, 7 / 30 * 3.5)])
def test_the_risk_of_failing_is_that_of_at_least_one_at_the_expected_rate(
    failures: int, health: int, rate: float
) -> None:
    assert score(failure_risk, machine(failures=failures, health=health), vm()) == pytest.approx(1 - math.exp(-rate))


def test_the_risk_of_failing_grows_with_failures_and_with_lost_health() -> None:
    by_failures = [score(failure_risk, machine(failures=f), vm()) for f in range(5)]
    by_health = [score(failure_risk, machine(health=h), vm()) for h in (100, 90, 50, 0)]
    assert all(a < b for scores in (by_failures, by_health) for a, b in pairwise(scores))


def test_machines_less_likely_to_fail_come_first() -> None:
    shaky = machine(failures=2, health=60)
    assert score(unlikely_to_fail, machine(), vm()) == 0.0
    assert score(unlikely_to_fail, shaky, vm()) == score(failure_risk, shaky, vm()) > 0.0


# -------------------------------------------------------------------------------------------------------- how full


def test_machines_in_use_come_first() -> None:
    assert score(non_empty, machine(), vm()) == 1.0
    assert score(non_empty, machine(regular={"cores": 1}), vm()) == 0.0


def test_a_machine_that_runs_only_what_gives_way_is_empty() -> None:
    spot_only = machine(spot={"cores": 1})
    assert [score(non_empty, spot_only, vm(priority=band)) for band in (REGULAR, SPOT)] == [1.0, 0.0]
    small = {"cores": 1}
    wholes = [score(keep_whole_machines_free, spot_only, vm(demand=small, priority=band)) for band in (REGULAR, SPOT)]
    assert wholes == [1.0, 0.0]


def test_a_vm_that_fills_the_machine_is_the_best_fit() -> None:
    assert score(best_fit, machine(), vm(demand=CAPACITY)) == 0.0
    assert score(best_fit, machine(regular=HALF), vm(demand=HALF)) == 0.0


def test_a_vm_that_takes_nothing_of_an_empty_machine_is_the_worst_fit() -> None:
    assert score(best_fit, machine(), vm()) == 1.0


def test_the_fuller_machine_fits_better() -> None:
    fuller = score(best_fit, machine(regular=HALF), vm(demand={"cores": 2}))
    assert fuller < score(best_fit, machine(), vm(demand={"cores": 2}))


def test_what_is_left_counts_by_its_weight() -> None:
    # left: 8/16 of the cores, 48/64 of the memory
    need = vm(demand={"cores": 8, "memory": 16})
    assert score(best_fit, machine(), need, weights={"cores": 1.0}) == 0.5
    assert score(best_fit, machine(), need, weights={"memory": 2.0}) == 0.75
    assert score(best_fit, machine(), need, weights={"cores": 3.0, "memory": 1.0}) == (3 * 0.5 + 0.75) / 4


def test_cores_are_the_scarcest_by_default() -> None:
    scores = {name: score(best_fit, machine(), vm(demand={name: amount})) for name, amount in CAPACITY.items()}
    assert sorted(scores, key=scores.__getitem__) == ["cores", "memory", "ssd", "nic", "disk"]


def test_resources_a_machine_does_not_have_do_not_count() -> None:
    assert score(best_fit, machine(capacity=CORES_ONLY), vm(demand={"cores": 4})) == 0.75


@pytest.mark.parametrize(("rule", "expected"), [(best_fit, 0.0), (emptiest, 1.0)])
def test_a_machine_with_nothing_that_counts_has_no_room_left(rule: Callable[..., Any], expected: float) -> None:
    assert score(rule, machine(capacity={"ssd": 0}), vm(), weights={"ssd": 1.0}) == expected
    assert score(rule, machine(), vm(), weights={}) == expected


def test_spot_vms_count_as_room_only_to_regular_ones() -> None:
    half_spot = machine(spot=HALF)
    assert score(best_fit, half_spot, vm(priority=REGULAR)) == 1.0
    assert score(best_fit, half_spot, vm(priority=SPOT)) == 0.5


@given(some_machine=RANDOM["machine"], some_vm=RANDOM["vm"])
@settings(deadline=None)
def test_the_emptiest_machine_is_the_worst_fit(some_machine: Any, some_vm: Any) -> None:
    assert score(emptiest, some_machine, some_vm) == 1.0 - score(best_fit, some_machine, some_vm)


def test_the_emptier_machine_comes_first_where_vms_are_spread() -> None:
    emptier = score(emptiest, machine(), vm(demand={"cores": 2}))
    assert emptier < score(emptiest, machine(regular=HALF), vm(demand={"cores": 2}))


def test_a_small_vm_does_not_open_an_empty_machine() -> None:
    assert score(keep_whole_machines_free, machine(), vm(demand={"cores": 7})) == 1.0
    assert score(keep_whole_machines_free, machine(regular={"cores": 1}), vm(demand={"cores": 7})) == 0.0


def test_a_vm_that_takes_the_share_of_any_one_resource_may_open_a_machine() -> None:
    assert score(keep_whole_machines_free, machine(), vm(demand={"cores": 8})) == 0.0
    assert score(keep_whole_machines_free, machine(), vm(demand={"cores": 1, "memory": 32})) == 0.0
    assert score(keep_whole_machines_free, machine(), vm(demand={"cores": 4}), share=0.25) == 0.0


def test_resources_an_empty_machine_does_not_have_do_not_make_a_vm_large() -> None:
    assert score(keep_whole_machines_free, machine(capacity=CORES_ONLY), vm(demand={"cores": 1})) == 1.0


def test_a_vm_that_takes_all_that_is_left_is_an_exact_fit() -> None:
    four_left = machine(regular={"cores": 12})
    assert [score(exact_fit, four_left, vm(demand={"cores": n})) for n in (3, 4, 5)] == [1.0, 0.0, 1.0]


def test_an_exact_fit_may_be_asked_of_another_resource() -> None:
    assert score(exact_fit, machine(regular={"cores": 12}), vm(demand={"memory": 64}), resource="memory") == 0.0


def test_an_exact_fit_is_one_at_the_vms_priority() -> None:
    four_left_to_spot = machine(spot={"cores": 12})
    assert score(exact_fit, four_left_to_spot, vm(demand={"cores": 4}, priority=SPOT)) == 0.0
    assert score(exact_fit, four_left_to_spot, vm(demand={"cores": 4}, priority=REGULAR)) == 1.0


def test_machines_with_fewer_vms_come_first_and_many_are_alike() -> None:
    assert [score(fewer_vms, machine(vms=n), vm()) for n in (0, 16, 64, 100)] == [0.0, 0.25, 1.0, 1.0]
    assert score(fewer_vms, machine(vms=1), vm(), most=0) == 1.0


# --------------------------------------------------------------------------------------------- which resources it uses


def test_a_vm_without_local_storage_prefers_machines_with_none_or_little_unused() -> None:
    assert score(storage_match, machine(capacity={"ssd": 0}), vm(demand={"cores": 1})) == 0.0
    assert score(storage_match, machine(regular={"ssd": 400}), vm(demand={"cores": 1})) == 0.0
    shared = machine(regular={"ssd": 200}, spot={"ssd": 100})
    assert [score(storage_match, shared, vm(demand={"cores": 1}, priority=b)) for b in (REGULAR, SPOT)] == [0.5, 0.25]
    assert score(storage_match, machine(), vm(demand={"cores": 1})) == 1.0


def test_a_vm_with_local_storage_does_not_care_how_much_of_it_is_unused() -> None:
    assert score(storage_match, machine(), vm(demand={"ssd": 1})) == 0.0


def test_another_resource_may_be_kept() -> None:
    assert score(storage_match, machine(capacity={"ssd": 0}), vm(demand={"ssd": 1}), resource="nic") == 1.0


def test_equal_use_of_all_resources_is_balanced() -> None:
    assert score(balanced, machine(), vm()) == 0.0
    assert score(balanced, machine(), vm(demand=HALF)) == pytest.approx(0.0, abs=1e-6)
    assert score(balanced, machine(), vm(demand=CAPACITY)) == pytest.approx(0.0, abs=1e-6)


def test_half_of_the_resources_full_and_the_others_unused_is_least_balanced() -> None:
    assert score(balanced, machine(), vm(demand={"cores": 16, "memory": 64})) == pytest.approx(1.0)
    two_resources = machine(capacity={"disk": 0, "ssd": 0, "nic": 0})
    assert score(balanced, two_resources, vm(demand={"cores": 16})) == pytest.approx(1.0)


def test_balance_is_the_distance_from_equal_use() -> None:
    # uses 1/2 and 1/4: each 1/8 from their mean, where 1/2 is the most
    two_resources = machine(capacity={"disk": 0, "ssd": 0, "nic": 0})
    assert score(balanced, two_resources, vm(demand={"cores": 8, "memory": 16})) == pytest.approx(0.25)


def test_a_vm_that_evens_out_a_machine_is_better_than_one_that_tilts_it_more() -> None:
    heavy_on_cores = machine(regular={"cores": 8})
    evens = score(balanced, heavy_on_cores, vm(demand={"memory": 32}))
    assert evens < score(balanced, heavy_on_cores, vm(demand={"cores": 4}))


def test_a_machine_with_one_resource_or_none_is_always_balanced() -> None:
    assert score(balanced, machine(capacity=CORES_ONLY), vm(demand={"cores": 3})) == 0.0
    assert score(balanced, machine(capacity={**CORES_ONLY, "cores": 0}), vm()) == 0.0


# ------------------------------------------------------------------------------------------------------------- racks


def test_less_used_racks_come_first() -> None:
    scores = [score(least_used_rack, rack(capacity={"cores": 100}, used={"cores": n}), vm()) for n in (0, 25, 100)]
    assert scores == [0.0, 0.25, 1.0]


def test_the_use_of_a_rack_may_be_of_another_resource() -> None:
    assert score(least_used_rack, rack(used={"cores": 16}), vm(), resource="memory") == 0.0


def test_a_rack_without_the_resource_comes_last() -> None:
    assert score(least_used_rack, rack(capacity={"ssd": 0}), vm(), resource="ssd") == 1.0


def test_racks_with_more_empty_machines_come_first() -> None:
    scores = [score(rack_with_empty_machines, rack(machines=4, empty=(n, 0)), vm()) for n in (4, 3, 0)]
    assert scores == [0.0, 0.25, 1.0]


def test_a_rack_without_machines_comes_last() -> None:
    assert score(rack_with_empty_machines, rack(machines=0, empty=(0, 0)), vm()) == 1.0
    assert score(rack_with_empty_machines, rack(machines=1, empty=(1, 1)), vm()) == 0.0


# ------------------------------------------------------------------------------------------------- who has to give way


def test_a_machine_comes_first_if_nobody_has_to_give_way_there() -> None:
    cores, wish = CAPACITY["cores"], {"cores": CAPACITY["cores"] // 2}
    held = [machine(spot={"cores": share * cores // 4}) for share in (0, 2, 3, 4)]
    assert [score(nobody_gives_way, each, vm(demand=wish)) for each in held] == [0.0, 0.0, 1.0, 1.0]


def safety(hours: float, priority: int = SPOT) -> float:
    """The score of a machine where it takes so many hours until something has to give way."""
    return float(safest(machine(), vm(priority=priority), 1.0 / hours))


def test_machines_where_vms_can_stay_longer_come_first_by_factors_not_by_hours() -> None:
    hours = [0.03 * 2**i for i in range(12)]
    scores = [safety(each) for each in hours]
    assert all(a > b for a, b in pairwise(scores))
    steps = [a - b for a, b in pairwise(scores)]
    assert steps == pytest.approx([steps[0]] * len(steps))  # a busy zone is told apart as well as a quiet one
    assert [safety(each) for each in (0.001, 0.02, 200.0, 5_000.0)] == pytest.approx([1.0, 1.0, 0.0, 0.0])


def test_all_machines_are_equally_safe_to_the_highest_priority_or_if_nothing_comes() -> None:
    assert safety(0.5, REGULAR) == safest(machine(), vm(priority=SPOT), 0.0) == 0.0
