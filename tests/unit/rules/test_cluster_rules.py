"""Rules that choose clusters."""

from collections.abc import Callable
from typing import Any

import pytest

from roost.model.thresholds import Purpose
from roost.rules.clusters.below_limit import below_limit
from roost.rules.clusters.emptier_first import emptier_first
from roost.rules.clusters.in_cluster import in_cluster
from roost.rules.clusters.in_datacenter import in_datacenter
from roost.rules.clusters.in_generation import in_generation
from roost.rules.clusters.keep_special_hardware import keep_special_hardware
from roost.rules.clusters.keeps_empty_machines import keeps_empty_machines
from roost.rules.clusters.not_quarantined import not_quarantined
from roost.rules.clusters.older_generation_first import older_generation_first
from roost.rules.clusters.type_supported import type_supported
from tests.unit.rules.rows import GENERATIONS, REGULAR, SPOT, TYPES, allows, cluster, score, vm

PINS = pytest.mark.parametrize(
    ("rule", "wanted", "actual"),
    [
        (in_datacenter, "datacenter", "datacenter"),
        (in_cluster, "cluster", "index"),
        (in_generation, "generation", "generation"),
    ],
)


def test_a_cluster_takes_only_the_types_it_supports() -> None:
    only_type_3 = cluster(supports=tuple(int(t == 3) for t in range(TYPES)))
    assert allows(type_supported, only_type_3, vm(type=3))
    assert not allows(type_supported, only_type_3, vm(type=2))


def test_a_cluster_may_reach_its_limit_but_not_pass_it() -> None:
    half_used = cluster(capacity={"cores": 100}, regular={"cores": 50})
    assert allows(below_limit, half_used, vm(demand={"cores": 47}))
    assert not allows(below_limit, half_used, vm(demand={"cores": 48}))


def test_spot_vms_neither_count_towards_the_limit_nor_heed_it() -> None:
    full_of_spot = cluster(capacity={"cores": 100}, regular={"cores": 50}, spot={"cores": 47})
    assert allows(below_limit, full_of_spot, vm(demand={"cores": 47}, priority=REGULAR))
    assert not allows(below_limit, full_of_spot, vm(demand={"cores": 48}, priority=REGULAR))
    assert allows(below_limit, full_of_spot, vm(demand={"cores": 3}, priority=SPOT))


@pytest.mark.parametrize("purpose", [Purpose.SCALE_OUT, Purpose.HEALING])
def test_what_new_deployments_leave_is_for_growth_and_healing(purpose: Purpose) -> None:
    at_its_limit = cluster(capacity={"cores": 100}, regular={"cores": 97})
    assert not allows(below_limit, at_its_limit, vm(demand={"cores": 1}))
    assert allows(below_limit, at_its_limit, vm(demand={"cores": 3}, purpose=purpose))


def test_the_limit_and_the_resource_it_is_on_are_the_policys() -> None:
    full_of_cores = cluster(capacity={"cores": 100, "memory": 100}, regular={"cores": 100})
    assert allows(below_limit, full_of_cores, vm(demand={"memory": 50}), limit=0.5, resource="memory")
    assert not allows(below_limit, full_of_cores, vm(demand={"memory": 51}), limit=0.5, resource="memory")


def test_the_limit_counts_what_the_vm_takes_on_this_hardware() -> None:
    wide_then_narrow = vm(demand=[{"cores": 100}, {"cores": 90}])
    assert not allows(below_limit, cluster(capacity={"cores": 100}, generation=0), wide_then_narrow)
    assert allows(below_limit, cluster(capacity={"cores": 100}, generation=1), wide_then_narrow)


def test_a_cluster_without_the_resource_is_below_its_limit_for_vms_that_need_none() -> None:
    assert allows(below_limit, cluster(capacity={"ssd": 0}), vm(), resource="ssd")
    assert not allows(below_limit, cluster(capacity={"ssd": 0}), vm(demand={"ssd": 1}), resource="ssd")


@PINS
def test_a_pinned_vm_goes_nowhere_else(rule: Callable[..., Any], wanted: str, actual: str) -> None:
    second: dict[str, Any] = {actual: 2}
    pinned: list[dict[str, Any]] = [{wanted: n} for n in (0, 2)]
    assert [allows(rule, cluster(**second), vm(**pin)) for pin in pinned] == [False, True]


@PINS
def test_a_vm_that_is_not_pinned_goes_anywhere(rule: Callable[..., Any], wanted: str, actual: str) -> None:
    anywhere: list[dict[str, Any]] = [{actual: n} for n in range(3)]
    free: dict[str, Any] = {wanted: -1}
    assert all(allows(rule, cluster(**where), vm(**free)) for where in anywhere)


def test_a_quarantined_cluster_takes_nothing() -> None:
    assert allows(not_quarantined, cluster(quarantined=0), vm())
    assert not allows(not_quarantined, cluster(quarantined=1), vm())


def test_each_kind_of_request_stops_at_its_own_number_of_empty_machines() -> None:
    def stops(empty: int) -> list[bool]:
        left = cluster(thresholds=(3, 2, 1), empty=(empty, empty))
        return [not allows(keeps_empty_machines, left, vm(purpose=purpose)) for purpose in Purpose]

    new, scale_outs, healing = (True, False, False), (True, True, False), (True, True, True)
    assert [tuple(stops(empty)) for empty in (4, 3, 2, 1, 0)] == [(False,) * 3, new, scale_outs, healing, healing]


def test_a_cluster_without_thresholds_may_be_filled_to_the_last_machine() -> None:
    for purpose in Purpose:
        assert allows(keeps_empty_machines, cluster(thresholds=(0, 0, 0), empty=(0, 0)), vm(purpose=purpose))


def test_what_is_kept_are_machines_without_regular_vms_and_spot_vms_may_use_them() -> None:
    two_with_spot_vms = cluster(thresholds=(1, 0, 0), empty=(2, 0))
    assert allows(keeps_empty_machines, two_with_spot_vms, vm(priority=REGULAR))
    one_left = cluster(thresholds=(1, 0, 0), empty=(1, 1))
    assert not allows(keeps_empty_machines, one_left, vm(priority=REGULAR))
    assert allows(keeps_empty_machines, one_left, vm(priority=SPOT))


def test_emptier_clusters_come_first() -> None:
    def with_used(cores: int) -> float:
        return score(emptier_first, cluster(capacity={"cores": 100}, regular={"cores": cores}), vm())

    assert [with_used(0), with_used(25), with_used(100)] == [0.0, 0.25, 1.0]


def test_what_spot_vms_hold_is_empty_only_to_regular_ones() -> None:
    full_of_spot = cluster(capacity={"cores": 100}, spot={"cores": 100})
    assert score(emptier_first, full_of_spot, vm(priority=REGULAR)) == 0.0
    assert score(emptier_first, full_of_spot, vm(priority=SPOT)) == 1.0


def test_a_cluster_without_the_resource_is_never_the_emptier_one() -> None:
    assert score(emptier_first, cluster(capacity={"ssd": 0}), vm(), resource="ssd") == 1.0


def test_older_generations_come_first() -> None:
    scores = [score(older_generation_first, cluster(generation=g), vm()) for g in range(GENERATIONS)]
    assert scores == sorted(scores)
    assert (scores[0], scores[-1]) == (0.0, 1.0)


def test_in_a_zone_of_two_generations_the_newer_is_the_worst() -> None:
    assert score(older_generation_first, cluster(generation=1), vm(supported=(1, 1))) == 1.0


def test_in_a_zone_of_one_generation_none_is_older() -> None:
    assert score(older_generation_first, cluster(generation=0), vm(supported=(1,))) == 0.0


def test_clusters_with_fewer_unwanted_features_come_first() -> None:
    wants_bit_1 = vm(features=0b010)
    assert score(keep_special_hardware, cluster(features=0b010), wants_bit_1) == 0.0
    assert score(keep_special_hardware, cluster(features=0b011), wants_bit_1) == 1 / 31
    assert score(keep_special_hardware, cluster(features=0b111), wants_bit_1) == 2 / 31


def test_a_cluster_with_every_feature_is_worst_for_a_vm_that_wants_none() -> None:
    assert score(keep_special_hardware, cluster(features=2**31 - 1), vm(features=0)) == 1.0
