"""How many empty machines are enough: against slow and obvious counting, and against chance itself."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roost.admission.buffers import down_at_once, enough_for, machines_for, seen_at_once

targets = st.floats(1e-6, 0.5)


@given(machines=st.integers(1, 60), rate=st.floats(0.0001, 2.0), repair=st.floats(0.01, 5.0), target=targets)
def test_no_fewer_machines_would_do_for_those_that_are_down_at_once(
    machines: int, rate: float, repair: float, target: float
) -> None:
    down = rate * repair / (1 + rate * repair)
    chance = [math.comb(machines, k) * down**k * (1 - down) ** (machines - k) for k in range(machines + 1)]
    beyond = [math.fsum(chance[k + 1 :]) for k in range(machines + 1)]
    enough = next(k for k in range(machines + 1) if beyond[k] <= target)
    found = down_at_once(machines, rate, repair, target)
    assert found == enough or math.isclose(beyond[min(found, enough)], target, rel_tol=1e-6)


def test_machines_that_fail_by_lot_are_down_together_no_more_often_than_was_asked_for() -> None:
    machines, rate, repair, target = 50, 0.02, 1.5, 0.02
    draw, outages, days = random.Random(1), [], 4_000.0
    for _ in range(machines):
        at = draw.expovariate(rate)
        while at < days:
            down = draw.uniform(0.0, 2 * repair)
            outages.append((at, at + down))
            at += down + draw.expovariate(rate)
    enough = down_at_once(machines, rate, repair, target)
    assert seen_at_once(outages, 0.0, days, target) == enough
    assert enough == 4


def test_what_never_fails_needs_no_healing_and_what_is_always_down_needs_all() -> None:
    assert down_at_once(1_000, 0.0, 1.0, 0.001) == 0
    assert down_at_once(5, 1e6, 1e6, 0.001) == 5


def test_a_million_machines_are_no_trouble() -> None:
    assert 1_000 < down_at_once(1_000_000, 0.001, 1.0, 0.001) < 1_200


def test_machines_of_a_rack_that_fail_together_count_as_often_as_they_did() -> None:
    rack = [(10.0, 20.0)] * 4
    assert seen_at_once(rack, 0.0, 100.0, 0.05) == 4, "they were down for a tenth of the time"
    assert seen_at_once(rack, 0.0, 100.0, 0.1) == 0
    assert seen_at_once([*rack, (15.0, 40.0)], 0.0, 100.0, 0.1) == 1
    assert seen_at_once([], 0.0, 100.0, 0.001) == 0


@given(
    outages=st.lists(st.tuples(st.integers(-5, 20), st.integers(1, 10)), max_size=8),
    target=st.sampled_from((0.01, 0.1, 0.24, 0.5)),
)
def test_those_down_at_once_are_counted_as_somebody_would_who_looks_every_moment(
    outages: list[tuple[int, int]], target: float
) -> None:
    spans = [(float(began), float(began + long)) for began, long in outages if began + long > 0]
    counts = [sum(began <= moment < ended for began, ended in spans) for moment in range(20)]
    enough = next(h for h in range(len(spans) + 1) if sum(count > h for count in counts) / 20 <= target + 1e-9)
    assert seen_at_once(spans, 0.0, 20.0, target) == enough


@given(demands=st.lists(st.integers(0, 9), min_size=1, max_size=30), target=targets)
def test_no_fewer_machines_would_do_for_the_windows_that_may_not_fail(demands: list[int], target: float) -> None:
    enough = next(s for s in range(10) if sum(demand > s for demand in demands) <= target * len(demands) + 1e-9)
    assert enough_for(demands, target) == enough


def test_without_a_window_nothing_is_asked_for() -> None:
    assert enough_for([], 0.01) == 0


@pytest.mark.parametrize(
    ("shares", "machines"),
    [
        ([], 0),
        ([1.0], 1),
        ([0.5, 0.5], 1),
        ([0.6, 0.6], 2),
        ([0.6, 0.4, 0.4, 0.6], 2),
        ([0.25] * 9, 3),
        ([0.1] * 10, 1),
    ],
)
def test_vms_fill_as_many_machines_as_they_need(shares: list[float], machines: int) -> None:
    assert machines_for(shares) == machines


@given(shares=st.lists(st.floats(0.01, 1.0), max_size=30))
def test_vms_never_fill_fewer_machines_than_they_add_up_to_nor_twice_as_many(shares: list[float]) -> None:
    found = machines_for(shares)
    assert math.ceil(math.fsum(shares) - 1e-6) <= found <= math.floor(2 * math.fsum(shares)) + 1
