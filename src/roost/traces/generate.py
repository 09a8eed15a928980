"""A workload by seed, with the statistics that Protean (OSDI'20, §2.2) reports for real zones.

- Cores per VM: Table 3, zone 1. Within a number of cores, smaller memory is more common.
- Requests repeat themselves: over 80 % ask for the type that was asked for last (Fig. 2).
- Tenants: 94 % ask for one VM, 99 % for five or fewer, a few for hundreds.
"""

from collections.abc import Iterator

import numpy as np

from roost.model.request import VM, Constraints, Request
from roost.model.zone import Zone

CORE_SHARES = {1: 17.1, 2: 37.4, 4: 32.0, 8: 8.9, 16: 4.3, 32: 0.3}
SAME_TYPE_AGAIN = 0.8
TENANT_SIZES = ((0.94, 1, 1), (0.99, 2, 5), (0.9995, 6, 40), (1.0, 100, 300))  # up to this share: from, to
LOW_PRIORITY = 0.1
SPREAD = 0.5  # of the tenants with several VMs ask for fault domains


def requests(zone: Zone, seed: int) -> Iterator[Request]:
    """An endless stream of requests for VM types of the zone, by seed."""
    rng = np.random.default_rng(seed)
    names, weights = _type_mix(zone)
    last, number = names[0], 0
    while True:
        number += 1
        if rng.random() >= SAME_TYPE_AGAIN:
            last = names[int(rng.choice(len(names), p=weights))]
        priority = zone.bands[-1] if rng.random() < LOW_PRIORITY else zone.bands[0]
        size = _tenant_size(rng)
        constraints = None
        if size > 1 and rng.random() < SPREAD:
            constraints = Constraints(min_fault_domains=min(3, size), max_per_machine=max(1, size // 3))
        yield Request(f"tenant-{number}", (VM(last, priority=priority),) * size, constraints)


def _type_mix(zone: Zone) -> tuple[list[str], np.ndarray]:
    """VM types and how likely each is: by its cores as in Table 3, then falling with its memory."""
    by_cores: dict[int, list[tuple[float, str]]] = {}
    for vm_type in zone.vm_types:
        if vm_type.family == "Full" or not vm_type.demand:
            continue
        largest = max(vm_type.demand.values())
        by_cores.setdefault(min(CORE_SHARES, key=lambda c: abs(c - largest[0] / 1000)), []).append(
            (largest[1] * (1 + 4 * len(vm_type.requires)), vm_type.name)
        )
    names, weights = [], []
    for cores, types in by_cores.items():
        shares = 1.0 / np.arange(1, len(types) + 1)
        for share, (_, name) in zip(shares / shares.sum(), sorted(types), strict=True):
            names.append(name)
            weights.append(CORE_SHARES[cores] * share)
    return names, np.array(weights) / sum(weights)


def _tenant_size(rng: np.random.Generator) -> int:
    draw = rng.random()
    for share, low, high in TENANT_SIZES:
        if draw < share:
            return int(rng.integers(low, high + 1))
    return 1
