"""How many empty machines are enough, for a rate of failures that one can live with. Numbers in, numbers out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from math import exp, lgamma, log, log1p

Interval = tuple[float, float]


def down_at_once(machines: int, failures_per_day: float, repair_days: float, target: float) -> int:
    """The fewest machines such that more are down at once for a share `target` of the time at most.

    Each fails by itself, so often while it is up, and is down for so long on average: it is down for a share of the
    time that no other property of failures and repairs changes, and how many are down is binomial.
    """
    load = failures_per_day * repair_days
    if load <= 0:
        return 0
    down = load / (1 + load)
    most = 0
    within = exp(machines * log1p(-down))  # the share of the time in which no more than `most` are down
    while most < machines and 1 - within > target:
        most += 1
        ways = lgamma(machines + 1) - lgamma(most + 1) - lgamma(machines - most + 1)
        within += exp(ways + most * log(down) + (machines - most) * log1p(-down))
    return most


def seen_at_once(outages: Sequence[Interval], since: float, until: float, target: float) -> int:
    """The same as it was seen: failures that come together, as those of a rack, count as often as they did."""
    steps = [(max(began, since), 1) for began, _ in outages] + [(min(ended, until), -1) for _, ended in outages]
    times = sorted([(since, 0), *steps, (until, 0)])
    shares: dict[int, float] = {}
    down = 0
    for (at, step), (later, _) in pairwise(times):
        down += step
        shares[down] = shares.get(down, 0.0) + (later - at) / (until - since)
    return fewest([(number, share) for number, share in shares.items() if share > 0], target)


def fewest(weighted: Iterable[tuple[int, float]], target: float) -> int:
    """The smallest number that is exceeded with a weight of `target` at most, of numbers whose weights add up to 1."""
    beyond = 0.0
    for number, weight in sorted(weighted, reverse=True):
        beyond += weight
        if beyond > target + 1e-12:  # weights are sums of fractions
            return number
    return 0


def enough_for(demands: Sequence[int], target: float) -> int:
    """The fewest machines that no more than a share `target` of the windows asks more than."""
    return fewest([(demand, 1 / len(demands)) for demand in demands], target) if demands else 0


def machines_for(shares: Iterable[float]) -> int:
    """How many empty machines VMs fill, each of which takes a share of one: the largest first, each where it fits."""
    left: list[float] = []
    for share in sorted(shares, reverse=True):
        at = next((i for i, room in enumerate(left) if share <= room + 1e-9), None)
        if at is None:
            left.append(1.0 - share)
        else:
            left[at] -= share
    return len(left)
