"""The VMs that run already when a workload begins, so that a simulation need not start with an empty zone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from roost.model.errors import InvalidInput
from roost.traces.names import Numbered
from roost.traces.workload import Workload

if TYPE_CHECKING:
    from numpy.typing import NDArray

STAYS_FOR_SPANS = 4  # a VM that stays counts as one that runs four times as long as the workload


def standing_population(workload: Workload, cores: float, seed: int) -> Workload:
    """VMs of the workload that one would find running at a moment, up to so many cores in all, at time 0.

    The longer a VM runs, the likelier it is found, at a uniformly random moment of its lifetime; what is left of that
    is its lifetime here. Each is a tenant of its own, without constraints.
    """
    runs = _runs(workload)
    reached, amounts = np.cumsum(runs), workload.amounts("cores")
    mean = float(amounts @ runs) / float(reached[-1]) if len(runs) and reached[-1] > 0 else 0.0
    if not cores >= 0:
        raise InvalidInput("cores", f"is {cores!r}", "use a number from 0 on")
    if mean <= 0:
        raise InvalidInput(workload.name, "has no VM that runs and takes cores", "fill the zone from another workload")
    rng = np.random.Generator(np.random.PCG64(seed))
    found = np.empty(0, np.int64)
    while (missing := cores - float(amounts[found].sum())) >= 0:
        batch = int(missing / mean * 1.05) + 100
        drawn = np.searchsorted(reached, rng.random(batch) * reached[-1], side="right")
        found = np.concatenate((found, np.minimum(drawn, len(runs) - 1)))
    found = found[: int(np.searchsorted(np.cumsum(amounts[found]), cores, side="right"))]
    return Workload(
        name=f"{workload.name}, standing",
        types=workload.types,
        resources=workload.resources,
        arrival=np.zeros(len(found)),
        first=np.arange(len(found) + 1),
        type=workload.type[found],
        lifetime=runs[found] * rng.random(len(found)),
        tenants=Numbered("standing-", len(found)),
        priority=workload.priority[found],
        priorities=workload.priorities,
        requeue=workload.requeue,
        source=workload.source,
    )


def mean_share_left(workload: Workload, since: float, until: float) -> float:
    """Of the cores that such VMs take at the beginning, the share that they still take, on average over some time.

    A VM that runs for L is found with a chance that grows with L, and is still there after x with the chance 1 - x/L.
    """
    runs, cores = _runs(workload), workload.amounts("cores")
    low, high = np.minimum(since, runs), np.minimum(until, runs)
    left = (high - low) * runs - (high**2 - low**2) / 2
    return float(cores @ left) / (float(cores @ runs) * (until - since))


def _runs(workload: Workload) -> NDArray[np.float64]:
    """How long each VM runs."""
    return np.minimum(workload.lifetime, STAYS_FOR_SPANS * (workload.span or 1.0))
