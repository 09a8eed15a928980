"""When requests come: fewer at night and at week-ends (Protean, OSDI'20, Fig. 3), and in spikes (Fig. 4)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from roost.model.spans import DAY, HOUR, WEEK

if TYPE_CHECKING:
    from numpy.typing import NDArray

BUSIEST_HOUR = 14.0
WORKING_DAYS = 5  # a workload begins on a Monday, at midnight
STEP = 300.0  # seconds between the points at which the rate is worked out


@dataclass(frozen=True)
class Spikes:
    """Moments at which many come at once. The highest reaches `peak`; few others come near it."""

    number: int
    peak: float  # requests a second
    seconds: int

    @property
    def heights(self) -> NDArray[np.float64]:
        """Requests a second of each."""
        return self.peak * (np.arange(1, self.number + 1) / max(1, self.number)) ** 2

    @property
    def requests(self) -> float:
        """In all, on average."""
        return float(self.heights.sum()) * self.seconds


def relative_rate(times: NDArray[np.float64], daily: float, weekly: float) -> NDArray[np.float64]:
    """How busy it is; 1 is the mean of a working day."""
    by_hour = 1 + daily * np.cos(2 * np.pi * (times / HOUR - BUSIEST_HOUR) / 24)
    weekend = times % WEEK >= WORKING_DAYS * DAY
    return by_hour * np.where(weekend, 1 - weekly, 1.0)


def draw_arrivals(
    rng: np.random.Generator, count: int, span: float, daily: float, weekly: float, spikes: Spikes
) -> NDArray[np.float64]:
    """So many arrivals within `span` seconds, in order; those in spikes are part of them."""
    starts = rng.integers(0, max(1, int(span) - spikes.seconds + 1), spikes.number)
    sizes = rng.poisson(spikes.heights * spikes.seconds)
    in_spikes = np.repeat(starts, sizes)[:count] + rng.random(min(int(sizes.sum()), count)) * spikes.seconds
    edges = np.linspace(0, span, max(2, round(span / STEP) + 1))
    reached = np.concatenate(([0.0], np.cumsum(relative_rate((edges[1:] + edges[:-1]) / 2, daily, weekly))))
    usual = np.interp(rng.random(count - len(in_spikes)) * reached[-1], reached, edges)
    arrivals = np.concatenate((usual, np.minimum(in_spikes, span)))
    arrivals.sort()
    return arrivals
