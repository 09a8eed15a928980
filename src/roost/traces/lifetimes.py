"""How long VMs run: most for minutes, some for weeks and months, a few for ever (Protean, OSDI'20, Fig. 5).

Protean shows the distribution without its numbers, so these are chosen. Three log-normal parts: jobs and tests that
end within minutes, a working day's VMs, services. With them a zone of 100,000 machines that is asked for two million
VMs a day, as Protean's are, is about four fifths full. In round numbers, if 0.3 % stay:

    share of VMs that have ended   10 %    25 %    50 %     75 %     90 %    95 %    99 %
    within                         2 min   4 min   10 min   40 min   3.6 h   8.5 h   9 d
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from roost.model.spans import DAY, HOUR, MINUTE

if TYPE_CHECKING:
    from numpy.typing import NDArray

SERVICES = 0.012  # share of the VMs that leave which run for days and weeks
# Share of the VMs that leave, median in seconds, spread (sigma of the logarithm); the services are the last.
PARTS = ((0.72, 6 * MINUTE, 1.0), (0.268, 2 * HOUR, 1.3), (SERVICES, 10 * DAY, 1.0))
STEPS = 1_000  # of the integral over a run


def parts_of(services: float) -> tuple[tuple[float, float, float], ...]:
    """The parts, with another share of services."""
    if services == SERVICES:
        return PARTS
    rest = (1 - services) / (1 - SERVICES)
    return (*((share * rest, *part) for share, *part in PARTS[:-1]), (services, *PARTS[-1][1:]))  # type: ignore[arg-type]


def draw_lifetimes(
    rng: np.random.Generator, count: int, stays: float, services: float = SERVICES
) -> NDArray[np.float64]:
    """Seconds that each runs; infinite for the share that stays."""
    shares, medians, sigmas = np.array(parts_of(services)).T
    part = np.searchsorted(np.cumsum(shares)[:-1], rng.random(count), side="right")
    lifetimes: NDArray[np.float64] = medians[part] * np.exp(rng.standard_normal(count) * sigmas[part])
    lifetimes[rng.random(count) < stays] = np.inf
    return lifetimes


def mean_lifetime(stays: float, limit: float, services: float = SERVICES) -> float:
    """Mean seconds, where what runs for longer counts as `limit`."""
    leaving = sum(share * _mean_up_to(limit, median, sigma) for share, median, sigma in parts_of(services))
    return stays * limit + (1 - stays) * leaving


def mean_within(stays: float, span: float, services: float = SERVICES) -> float:
    """Mean seconds that a VM spends within a run of `span` seconds, if it arrives at any moment of it.

    A VM that comes x seconds before the end spends its lifetime, but at most x.
    """
    return sum(mean_lifetime(stays, span * (i + 0.5) / STEPS, services) for i in range(STEPS)) / STEPS


def _mean_up_to(limit: float, median: float, sigma: float) -> float:
    """The mean of min(lifetime, limit) of a log-normal lifetime."""
    at = math.log(limit / median) / sigma
    return median * math.exp(sigma**2 / 2) * _below(at - sigma) + limit * (1 - _below(at))


def _below(x: float) -> float:
    """The share of a normal distribution below x."""
    return 0.5 * (1 + math.erf(x / math.sqrt(2)))
