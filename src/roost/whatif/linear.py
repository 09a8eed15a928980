"""Linear programmes, small and dense: the most of c·x with A·x ≤ b and x ≥ 0, where b ≥ 0; and what each row costs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from roost.model.errors import InvariantBroken

if TYPE_CHECKING:
    from numpy.typing import NDArray

TINY = 1e-9
PATIENCE = 50  # pivots per row and column before the careful rule takes over, and as many again before giving up


@dataclass(frozen=True)
class Solution:
    """The best x, and by row what one more of b would be worth."""

    value: float
    x: NDArray[np.float64]
    prices: NDArray[np.float64]


def maximise(c: NDArray[np.float64], a: NDArray[np.float64], b: NDArray[np.float64]) -> Solution:
    """By the simplex method, from x = 0. It must be bounded, as it is where every x uses something up.

    The steepest column enters; should that go on for too long, which only a cycle does, the first one that helps does
    (Bland's rule, which never cycles).
    """
    rows, columns = a.shape
    table = np.zeros((rows + 1, columns + rows + 1))
    table[:rows, :columns], table[:rows, columns:-1], table[:rows, -1] = a, np.eye(rows), b
    table[-1, :columns] = -c
    basis = np.arange(columns, columns + rows)
    patience = PATIENCE * (rows + columns)
    for pivot in range(2 * patience):
        reduced = table[-1, :-1]
        entering = int(reduced.argmin()) if pivot < patience else int(np.argmax(reduced < -TINY))
        if reduced[entering] >= -TINY:
            break
        leaving = _leaving(table, basis, entering)
        table[leaving] /= table[leaving, entering]
        factors = table[:, entering].copy()
        factors[leaving] = 0.0
        used = np.flatnonzero(factors)
        table[used] -= factors[used, None] * table[leaving]
        basis[leaving] = entering
    else:
        raise InvariantBroken("the simplex method does not end")
    x = np.zeros(columns + rows)
    x[basis] = table[:rows, -1]
    return Solution(float(table[-1, -1]), x[:columns], np.maximum(table[-1, columns:-1], 0.0))


def _leaving(table: NDArray[np.float64], basis: NDArray[np.int64], entering: int) -> int:
    """The row that runs out first when a column enters; of several, the one with the lowest column."""
    column, left = table[:-1, entering], table[:-1, -1]
    possible = np.flatnonzero(column > TINY)
    if not len(possible):
        raise InvariantBroken("a linear programme has no bound")
    ratios = left[possible] / column[possible]
    tied = possible[ratios <= ratios.min() + TINY]
    return int(tied[basis[tied].argmin()])
