"""What there is to say about a workload at a glance."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from roost.traces.workload import Workload

QUANTILES = (0.25, 0.5, 0.75, 0.9, 0.99)
TENANT_SIZES = ((1, "1"), (5, "2 to 5"), (20, "6 to 20"), (100, "21 to 100"), (np.inf, "over 100"))  # VMs, up to


@dataclass(frozen=True)
class WorkloadDescription:
    """A workload at a glance. Shares are from 0 to 1; maps go from the most common on, or upwards."""

    name: str
    source: str
    requests: int
    vms: int
    span_s: float
    tenants: int
    vms_per_request: float
    largest_request: int
    constrained_requests: int
    types: Mapping[str, float]  # share of the VMs by type
    cores: Mapping[str, float]  # share of the VMs by cores; empty if the workload does not say
    priorities: Mapping[str, float]  # share of the VMs by priority
    tenant_sizes: Mapping[str, float]  # share of the tenants by their VMs, all requests together
    stay: float  # share of the VMs that never leave
    lifetimes_s: Mapping[str, float]  # quantiles of the others
    peak_vms: int  # at once, if all are placed at once
    peak_cores: float | None  # None: the workload does not say
    skipped: Mapping[str, int]  # rows left out when it was read, by reason


def describe(workload: Workload) -> WorkloadDescription:
    """Look at a workload."""
    known = "cores" in workload.resources and any(each.demand for each in workload.types)
    cores = workload.amounts("cores") if known else np.zeros(workload.vms)
    by_tenant: Counter[str] = Counter()
    for tenant, size in zip(workload.tenants, workload.sizes.tolist(), strict=True):
        by_tenant[tenant] += size
    sizes = np.array(list(by_tenant.values()))
    stay = np.isinf(workload.lifetime)
    leave = workload.lifetime[~stay]
    amounts, counts = np.unique(cores, return_counts=True)
    return WorkloadDescription(
        name=workload.name,
        source=workload.source,
        requests=workload.requests,
        vms=workload.vms,
        span_s=workload.span,
        tenants=len(by_tenant),
        vms_per_request=workload.vms / workload.requests,
        largest_request=int(workload.sizes.max()),
        constrained_requests=sum(bool(each.named) for each in workload.constraints.values()),
        types=_shares(workload.type, [each.name for each in workload.types]),
        cores={f"{a:g}": float(c) / workload.vms for a, c in zip(amounts, counts, strict=True)} if known else {},
        priorities=_shares(workload.priority, [name or "highest" for name in workload.priorities]),
        tenant_sizes={
            label: float(((sizes > low) & (sizes <= high)).mean())
            for (low, _), (high, label) in zip(((0, ""), *TENANT_SIZES), TENANT_SIZES, strict=False)
        },
        stay=float(stay.mean()),
        lifetimes_s={f"p{q * 100:g}": float(np.quantile(leave, q)) for q in QUANTILES} if len(leave) else {},
        peak_vms=round(peak(workload, np.ones(workload.vms))),
        peak_cores=peak(workload, cores) if known else None,
        skipped=workload.skipped,
    )


def peak(workload: Workload, amounts: np.ndarray) -> float:
    """The most of something that VMs hold at once; one that leaves makes room for one that comes at that time."""
    leave = ~np.isinf(workload.lifetime)
    ends = workload.arrival_of_vms[leave] + workload.lifetime[leave]
    times = np.concatenate([ends, workload.arrival_of_vms])
    held = np.concatenate([-amounts[leave], amounts])
    coming = np.concatenate([np.zeros(len(ends)), np.ones(workload.vms)])
    return float(np.cumsum(held[np.lexsort((coming, times))]).max())


def _shares(numbers: np.ndarray, names: list[str]) -> dict[str, float]:
    counts = np.bincount(numbers, minlength=len(names))
    order = np.argsort(-counts, kind="stable").tolist()
    return {names[i]: float(counts[i]) / len(numbers) for i in order if counts[i]}
