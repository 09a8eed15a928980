"""What each resource is worth: shadow prices, as weights for the rule best_fit.

How many more VMs of the zone's own mix fit, if VMs could be cut up? The answer is a linear programme, and the price of
a resource is what one more of it would add to the answer. A resource that nothing waits for has the price 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import yaml

from roost.model.errors import InvalidInput
from roost.model.rows import MachineState
from roost.model.scarcity import SCARCITY
from roost.model.zone import Zone
from roost.whatif.linear import Solution, maximise
from roost.whatif.stranding import mean_demand

if TYPE_CHECKING:
    from numpy.typing import NDArray

LEVELS = (6, 4, 3, 2, 1)  # in how many steps free shares are told apart, the finest that leaves few enough groups
MOST_GROUPS = 64
RULE = "best_fit"


class ShadowPrices(msgspec.Struct, frozen=True, kw_only=True):
    """What resources are worth to one zone at one moment."""

    weights: dict[str, float]  # of a whole machine's worth of each; cores are 1, unless they are worth nothing
    more: float  # VMs of the mix that would fit, if they could be cut up: never fewer than really do
    groups: int  # of like machines that were told apart


def shadow_prices(zone: Zone, rows: NDArray[np.void], mix: Mapping[int, int]) -> ShadowPrices:
    """By what the ready machines of a zone have free. `mix`: VMs by type, of which the next ones come."""
    ready = rows[rows["state"] == MachineState.READY]
    group, capacity, free = _groups(ready)
    generation = np.array([ready["generation"][group == k][0] for k in range(len(free))], int)
    types = [t for t in mix if zone.supported[t, generation].any()]
    if not types or not free.any():
        raise InvalidInput("prices", "no ready machine has anything free", "ask about a zone with some room left")
    shares = np.array([mix[t] for t in types], float)
    problem = _Problem(zone, types, shares / shares.sum(), generation, free)
    solved = problem.solve()
    worth = (solved.prices[: free.size].reshape(free.shape) * problem.per_unit * capacity).sum(axis=0)
    cores = worth[zone.cores_at]
    weights = worth / (cores if cores > 0 else max(worth.max(), 1e-300))
    names = [r.name for r in zone.resources]
    return ShadowPrices(
        weights={name: round(float(weights[r]), 4) for r, name in enumerate(names)},
        more=solved.value * problem.scale,
        groups=len(free),
    )


def _groups(rows: NDArray[np.void]) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]:
    """Machines of one generation with about the same free: the group of each; what each group has, and has free."""
    capacity, free = rows["capacity"].astype(float), rows["free"][:, -1].astype(float)
    shares = np.divide(free, capacity, out=np.zeros_like(free), where=capacity > 0)
    group, count = np.zeros(len(rows), np.int64), 1
    for levels in LEVELS:
        keys = np.column_stack([rows["generation"], np.ceil(shares * levels)])
        found, group = np.unique(keys, axis=0, return_inverse=True)
        group, count = group.reshape(-1), len(found)
        if count <= MOST_GROUPS:
            break
    sums = []
    for amounts in (capacity, free):
        total = np.zeros((count, amounts.shape[1]))
        np.add.at(total, group, amounts)
        sums.append(total)
    return group, sums[0], sums[1]


class _Problem:
    """Maximise the VMs of a mix that groups of machines take, in numbers of ordinary size.

    λ times the share of each type, and no more, comes out of what the groups hold of it; a group holds no more than it
    has free. Rows: each resource of each group, then each type. Columns: λ, then each type in each group.
    """

    def __init__(
        self,
        zone: Zone,
        types: list[int],
        shares: NDArray[np.float64],
        generation: NDArray[np.int64],
        free: NDArray[np.float64],
    ) -> None:
        total = np.maximum(free.sum(axis=0), 1.0)
        mean = mean_demand(zone, dict.fromkeys(types, 1)).max(axis=0)
        self.per_unit = 1.0 / total  # one unit of the problem's amounts is all that is free of a resource
        self.scale = float(np.min(total[mean > 0] / mean[mean > 0]))  # one unit of its VMs are so many
        resources = free.shape[1]
        placed = [(k, i) for k in range(len(free)) for i, t in enumerate(types) if zone.supported[t, generation[k]]]
        self._a = np.zeros((free.size + len(types), 1 + len(placed)))
        self._a[free.size :, 0] = shares
        for column, (k, i) in enumerate(placed, 1):
            demand = zone.demand[types[i], generation[k]] * self.per_unit * self.scale
            self._a[k * resources : (k + 1) * resources, column] = demand
            self._a[free.size + i, column] = -1.0
        # A little slack, different for each type: rows that are all 0 at once make the method walk in place.
        slack = 1e-9 * (1.0 + np.arange(len(types)))
        self._b = np.concatenate([(free * self.per_unit).reshape(-1), slack])
        self._c = np.zeros(1 + len(placed))
        self._c[0] = 1.0

    def solve(self) -> Solution:
        """The most of λ."""
        return maximise(self._c, self._a, self._b)


def with_weights(text: str, weights: Mapping[str, float], name: str) -> str:
    """A policy (YAML) whose rule best_fit has these weights, under another name."""
    policy: Any = yaml.safe_load(text)
    preferences = policy.get("machines", {}).get("preferences", [])
    for place, entry in enumerate(preferences):
        if entry == RULE or (isinstance(entry, dict) and entry.get("rule") == RULE):
            known = entry if isinstance(entry, dict) else {"rule": entry}
            preferences[place] = {**known, "weights": dict(weights)}
            break
    else:
        raise InvalidInput("policy", f"has no rule {RULE}", "use one that has")
    policy["name"] = name
    return yaml.safe_dump(policy, sort_keys=False, default_flow_style=None, width=120)


def hand_set(policy_text: str) -> dict[str, float]:
    """The weights that a policy gives best_fit now."""
    for entry in yaml.safe_load(policy_text).get("machines", {}).get("preferences", []):
        if isinstance(entry, dict) and entry.get("rule") == RULE and "weights" in entry:
            return {name: float(weight) for name, weight in entry["weights"].items()}
    return dict(SCARCITY)
