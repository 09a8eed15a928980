"""VMs in any order become a workload: requests in the order of their arrival, each with its VMs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from roost.model.request import Constraints
from roost.traces.workload import Workload, WorkloadType

if TYPE_CHECKING:
    from numpy.typing import NDArray


def assemble(
    name: str,
    *,
    types: Sequence[WorkloadType],
    resources: Sequence[str],
    request: NDArray[np.int64],
    time: NDArray[np.float64],
    tenant: Sequence[str],
    type: NDArray[np.int64],  # noqa: A002 - as in `Workload`
    lifetime: NDArray[np.float64],
    priority: NDArray[np.int64] | None = None,
    priorities: Sequence[str] = ("",),
    constraints: Mapping[int, Constraints] | None = None,
    source: str = "",
    skipped: Mapping[str, int] | None = None,
    notice: str = "",
) -> Workload:
    """The workload of VMs; all but the types and names are by VM.

    `request` is the first VM that is of the same request; that one says when it arrives and from whom, and
    `constraints` are by its number. Requests of the same time stay in the order of their first VMs.
    """
    firsts, number = np.unique(request, return_inverse=True)
    order = np.argsort(time[firsts], kind="stable")
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    vms = np.argsort(rank[number], kind="stable")
    sizes = np.bincount(number, minlength=len(firsts))[order]
    leaders = firsts[order].tolist()
    ranks = dict(zip(firsts.tolist(), rank.tolist(), strict=True)) if constraints else {}
    return Workload(
        name=name,
        types=tuple(types),
        resources=tuple(resources),
        arrival=time[firsts][order],
        first=np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64),
        type=type[vms].astype(np.int32),
        lifetime=lifetime[vms],
        tenants=[tenant[leader] for leader in leaders],
        priority=np.zeros(len(vms), np.int8) if priority is None else priority[vms].astype(np.int8),
        priorities=tuple(priorities),
        constraints={
            ranks[first]: each for first, each in sorted((constraints or {}).items(), key=lambda x: ranks[x[0]])
        },
        source=source,
        skipped=dict(skipped or {}),
        notice=notice,
    )
