"""The scan that the engine is compared with finds what a plain loop over all machines finds."""

import numpy as np
import pytest

from roost.bench.numpy_scan import NumpyBestFit
from roost.engine.shape import Shape, Shapes
from roost.model.request import VM
from roost.model.scarcity import SCARCITY
from roost.model.zone import INT32_MAX, Zone
from roost.rules.policy import Policy


def left_over(zone: Zone, machine: np.void, shape: Shape) -> float:
    """What a VM would leave of a machine, in shares of what it has, by how scarce each is; infinite without room."""
    need, left = shape.row["demand"][0][machine["generation"]].tolist(), 0.0
    for r, resource in enumerate(zone.resources):
        spare = int(machine["free"][shape.traits["priority"]][r]) - need[r]
        if need[r] == INT32_MAX or spare < 0:
            return float("inf")
        left += SCARCITY[resource.name] * spare / max(1, int(machine["capacity"][r]))
    return left


def half_full(seed: int) -> Zone:
    """A zone whose machines have all sorts of room left, the most for the highest priority."""
    zone, rng = Zone.synthetic(300, seed=1), np.random.default_rng(seed)
    share = np.sort(rng.random((len(zone.machines), len(zone.bands), 1)), axis=1)[:, ::-1]
    zone.machines["free"] = (zone.machines["capacity"][:, None, :] * share).astype(np.int32)
    return zone


@pytest.mark.parametrize("seed", range(3))
def test_the_scan_chooses_what_a_plain_loop_finds_best(seed: int) -> None:
    zone = half_full(seed)
    scan, shapes = NumpyBestFit(zone, zone.machines), Shapes(zone, Policy.named("fast").rules)
    found = 0
    for vm_type in zone.vm_types:
        for band in zone.bands:
            shape = shapes.of(VM(vm_type.name, priority=band), tenant=1)
            scores = [left_over(zone, machine, shape) for machine in zone.machines]
            chosen = scan.choose(shape)
            if chosen < 0:
                assert min(scores) == float("inf"), vm_type.name
            else:
                assert scores[chosen] == pytest.approx(min(scores), abs=1e-5), "the scan has single precision"
                found += 1
    assert found > 20
