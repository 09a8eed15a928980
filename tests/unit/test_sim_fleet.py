"""The zone of a run: fleets that suit a workload, and zones whose cores are not the first resource."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from roost.model.errors import InvalidInput
from roost.sim.experiment import Experiment, Fleet
from roost.sim.fleet import mean_in_use, zone_for
from roost.sim.simulation import Simulation
from roost.traces.standing import mean_share_left, standing_population
from roost.traces.workload import ANY, Workload, WorkloadType
from roost.wiring import find_policy

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


def test_cores_are_told_from_other_resources_by_name(tmp_path: Path) -> None:
    path = tmp_path / "zone.yaml"
    path.write_text("""
name: z
resources: {memory: {unit: GiB, per_unit: 1024}, cores: {unit: cores, per_unit: 1000}}
generations: {g: {memory: 1000, cores: 10}}
vm_types: {c5: {demand: {memory: 1, cores: 5}, on: [g]}, c1: {demand: {memory: 1, cores: 1}, on: [g]}}
clusters: [{name: c, datacenter: d, generation: g, racks: 1, machines_per_rack: 4}]
""")
    asked = workload((0, np.inf, 5), (1, np.inf, 5))
    experiment = Experiment(name="x", workload="given", zone=str(path), sample=1.0, fill=0.5)
    result = Simulation(experiment, "fast", 1, asked, zone_for(experiment, asked), find_policy).run()
    assert result.facts["cores"] == 40
    assert result.timeline["vms"][0] == 4
    assert result.timeline["utilisation"].to_list() == [vms * 5 / 40 for vms in result.timeline["vms"]]
    assert result.timeline["density"][0] in (4 / 4, 4 / 6, 4 / 8)
