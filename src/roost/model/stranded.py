"""What is stranded: left over on a machine in use that is too full for every VM type asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from roost.model.zone import Zone

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Stranding:
    """Tells machines that none of some VM types fits on any more."""

    def __init__(self, zone: Zone, types: Sequence[int]) -> None:
        """`types`: the VM types, by their numbers in the zone, that are asked for."""
        self._smallest = [_smallest(zone, g, types) for g in range(len(zone.generations))]

    def useless(self, free: NDArray[np.int64], generation: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Of machines with so much free, of these generations: those where no type fits."""
        fits = np.zeros(len(free), bool)
        for g, smallest in enumerate(self._smallest):
            here = np.flatnonzero(generation == g)
            fits[here] = np.all(free[here, None, :] >= smallest[None], axis=2).any(axis=1)
        return ~fits


def _smallest(zone: Zone, generation: int, types: Sequence[int]) -> NDArray[np.int64]:
    """What types take that run on a generation, without those that take no less than another in any respect."""
    demands = {tuple(zone.demand[t, generation].tolist()) for t in types if zone.supported[t, generation]}
    kept = [d for d in demands if not any(e != d and all(map(_at_most, e, d)) for e in demands)]
    return np.array(sorted(kept), np.int64).reshape(-1, len(zone.resources))


def _at_most(a: int, b: int) -> bool:
    return a <= b
