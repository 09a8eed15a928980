"""Fleets that suit a workload: how many machines, and of what size."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from roost.model.errors import InvalidInput
from roost.sim.experiment import Experiment, Fleet
from roost.sim.fleet import mean_in_use, zone_for
from roost.traces.standing import mean_share_left, standing_population
from roost.traces.workload import ANY, Workload, WorkloadType

LIFETIMES = (10.0, 40.0, 400.0, np.inf)


def workload(*vms: tuple[float, float, float], name: str = "by-hand") -> Workload:
    """VMs by arrival, lifetime and cores, each a request."""
    arrival, lifetime, cores = np.array(vms, np.float64).T
    sizes, kinds = np.unique(cores, return_inverse=True)
    return Workload(
        name=name,
        types=[WorkloadType(f"c{size:g}", {ANY: (float(size), 1.0)}) for size in sizes],
        resources=("cores", "memory"),
        arrival=arrival,
        first=np.arange(len(vms) + 1),
        type=kinds.astype(np.int32),
        lifetime=lifetime,
        tenants=[f"t{i}" for i in range(len(vms))],
        priority=np.zeros(len(vms), np.int8),
    )


def machines(given: Workload, utilisation: float = 0.5, **what: Any) -> int:
    """How many there are of 4 cores."""
    fleet = Fleet(utilisation=utilisation, cores=4)
    return len(zone_for(Experiment(name="x", workload="given", fleet=fleet, **what), given).machines)


def test_what_is_in_use_is_a_mean_over_time() -> None:
    # 8 cores from 0 to 50, 4 from 80 on.
    given = workload((0, 50, 8), (80, np.inf, 4), (100, 1, 1))
    assert mean_in_use(given, "cores", 0, 100) == (8 * 50 + 4 * 20) / 100
    assert mean_in_use(given, "cores", 40, 90) == (8 * 10 + 4 * 10) / 50
    assert mean_in_use(given, "cores", 0, 200) == (8 * 50 + 4 * 120 + 1) / 200


def test_a_fleet_is_sized_to_the_part_of_the_workload_that_counts() -> None:
    # 4 cores until 50, then 16.
    given = workload((0, np.inf, 4), (50, np.inf, 4), (50, np.inf, 4), (50, np.inf, 4), (100, 1, 4))
    assert machines(given) == 5  # 10 of 20 cores
    assert machines(given, until=50) == 2
    assert machines(given, warm_up=50) == 8
    assert machines(given, warm_up=60, until=200) == 9  # the last VM stays a second of the 140
    assert machines(given, until=25, speed=2) == 2
    assert machines(given, warm_up=25, until=50, speed=2) == 8


def test_what_fills_a_fleet_counts_in_its_utilisation() -> None:
    given = workload(*((i, stay, 1) for i in range(200) for stay in LIFETIMES))
    found = standing_population(given, 100_000, seed=1)
    for since, until in ((0, 100), (30, 60), (150, 199)):
        left = np.maximum(np.minimum(found.lifetime, until) - since, 0).mean() / (until - since)
        assert mean_share_left(given, since, until) == pytest.approx(left, rel=0.02)
    alone, filled = machines(given), machines(given, fill=0.2)
    share = mean_share_left(given, 0, given.span)
    assert filled == pytest.approx(alone * 0.5 / (0.5 - 0.2 * share), abs=1)


def test_a_fleet_that_is_filled_beyond_its_utilisation_is_refused() -> None:
    given = workload((0, np.inf, 1), (1, np.inf, 1))
    with pytest.raises(InvalidInput, match=r"fleet.utilisation: is less than what fills"):
        machines(given, utilisation=0.5, fill=0.9)


def test_a_vm_that_fits_no_machine_is_refused_with_its_size() -> None:
    with pytest.raises(InvalidInput, match=r"no machine is large enough for a c5 \(cores 5, memory 1\)"):
        machines(workload((0, 1, 5), (1, 1, 5)))
