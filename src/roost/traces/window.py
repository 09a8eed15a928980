"""A part of a workload: the requests of some time, or the first ones."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from roost.model.errors import InvalidInput
from roost.traces.workload import Workload


def cut(workload: Workload, start: float = 0.0, end: float = np.inf, first: int | None = None) -> Workload:
    """The requests that arrive from `start` until before `end`, or the first of them; `start` becomes 0.

    VMs that were asked for before are not in it, and lifetimes stay as they are.
    """
    low, high = np.searchsorted(workload.arrival, [start, end]).tolist()
    if first is not None:
        high = min(high, low + first)
    if low >= high:
        problem = f"has no request from {start:,.12g} s until {end:,.12g} s"
        raise InvalidInput(workload.name, problem, f"its requests arrive until {workload.span:,.12g} s")
    vms = slice(int(workload.first[low]), int(workload.first[high]))
    return replace(
        workload,
        arrival=workload.arrival[low:high] - start,
        first=workload.first[low : high + 1] - workload.first[low],
        type=workload.type[vms],
        lifetime=workload.lifetime[vms],
        tenants=workload.tenants[low:high],
        priority=workload.priority[vms],
        constraints={number - low: each for number, each in workload.constraints.items() if low <= number < high},
    )
