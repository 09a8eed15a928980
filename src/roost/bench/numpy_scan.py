"""What the engine is compared with: a scan of the whole zone, as well as one would write it in NumPy in an hour."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from roost.engine.shape import Shape
from roost.model.scarcity import SCARCITY
from roost.model.zone import INT32_MAX, Zone

if TYPE_CHECKING:
    from numpy.typing import NDArray

NOWHERE = np.float32(np.inf)  # the score of a machine without room


class NumpyBestFit:
    """Knows a single rule: best fit among machines with room.

    A contiguous column for each band and resource, machines sorted by generation so that what a VM takes is one number
    for a whole slice, buffers made once and changed in place. What a machine has left in all, each resource weighed by
    how scarce it is, is a column, too: to keep it up to date would cost a placement next to nothing.
    """

    def __init__(self, zone: Zone, machines: NDArray[np.void]) -> None:
        """Of a zone in which the machines of a generation are equal."""
        self.order = np.argsort(machines["generation"], kind="stable")
        rows = machines[self.order]
        self.ends = np.searchsorted(rows["generation"], np.arange(len(zone.generations) + 1)).tolist()
        scarce = np.array([SCARCITY.get(resource.name, 0.0) for resource in zone.resources])
        self.weights = scarce / np.maximum([generation.capacity for generation in zone.generations], 1)
        bands, resources = range(len(zone.bands)), range(len(zone.resources))
        self.free = [[np.ascontiguousarray(rows["free"][:, band, r]) for r in resources] for band in bands]
        weights = self.weights[rows["generation"]]
        self.left = [(rows["free"][:, band] * weights).sum(axis=1).astype(np.float32) for band in bands]
        self.full, self.lacking = np.empty(len(rows), np.bool_), np.empty(len(rows), np.bool_)
        self.score = np.empty(len(rows), np.float32)

    def choose(self, shape: Shape) -> int:
        """The machine with room that the VM would leave with the least; -1 if there is none."""
        band, demand = shape.traits["priority"], shape.row["demand"][0]
        for generation, (start, end) in enumerate(pairwise(self.ends)):
            self._look(slice(start, end), band, demand[generation], self.weights[generation])
        best = int(np.argmin(self.score))
        return int(self.order[best]) if self.score[best] < NOWHERE else -1

    def _look(self, here: slice, band: int, need: NDArray[np.int32], weights: NDArray[np.float64]) -> None:
        """Score the machines of a generation."""
        full, lacking, score = self.full[here], self.lacking[here], self.score[here]
        if need[0] == INT32_MAX:  # it does not run there
            score.fill(NOWHERE)
            return
        np.less(self.free[band][0][here], need[0], out=full)
        for r in np.flatnonzero(need[1:]) + 1:
            np.less(self.free[band][r][here], need[r], out=lacking)
            np.logical_or(full, lacking, out=full)
        np.subtract(self.left[band][here], np.float32(weights @ need), out=score)
        np.copyto(score, NOWHERE, where=full)
