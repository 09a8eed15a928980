"""How a machine is chosen among those that are valid.

    BEST            the best one; among equals it is drawn
    AmongBest(n)    drawn uniformly among the n best, as Protean does it to keep agents apart
    Favourite(n)    of the n best, the one that an agent of this seed likes most: always the same one, until it is full

Another way to choose is another value here, with a code of its own, and a branch in the kernel's `assign`.
"""

from dataclasses import dataclass
from typing import ClassVar

from roost.model.errors import InvalidInput

MOST_AMONG = 1_000  # machines that a choice may be among, or the search for who gives way most cheaply


@dataclass(frozen=True, slots=True)
class Best:
    """The machine with the lowest key; among those that tie, a uniform draw."""

    code: ClassVar[int] = 1  # what the kernel is given


@dataclass(frozen=True, slots=True)
class AmongBest:
    """A uniform draw among the n best; which of those that tie at the border belong to them is drawn, too."""

    n: int

    def __post_init__(self) -> None:
        _check(self.n)

    @property
    def code(self) -> int:
        """What the kernel is given: how many."""
        return self.n


@dataclass(frozen=True, slots=True)
class Favourite:
    """Of the n best, the one that the agent likes most, which its seed says; agents of other seeds like others."""

    n: int

    def __post_init__(self) -> None:
        _check(self.n)

    @property
    def code(self) -> int:
        """What the kernel is given: how many, below zero."""
        return -self.n


Choice = Best | AmongBest | Favourite
BEST = Best()


def _check(n: int) -> None:
    if not 2 <= n <= MOST_AMONG:
        raise InvalidInput("choice", f"is among {n} machines", f"use 2 to {MOST_AMONG:,}, or BEST for the best one")
