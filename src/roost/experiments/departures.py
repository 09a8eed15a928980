"""What a machine can take later, once each VM that it runs may have left: exact, as fractions.

Every VM leaves with the same probability, independently of the others. What is free then is a sum over VMs, so its
distribution is built VM by VM; equal sums are merged, and nothing is rounded.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from math import prod

Size = tuple[int, ...]  # by resource
SizeShares = Mapping[Size, Fraction]  # what may be free, and how likely it is


@dataclass(frozen=True)
class Node:
    """A machine and what its VMs take of it."""

    capacity: Size
    vms: tuple[Size, ...] = ()

    @property
    def free(self) -> Size:
        """What no VM takes."""
        return tuple(whole - sum(taken) for whole, *taken in zip(self.capacity, *self.vms, strict=True))

    def fits(self, vm: Size) -> bool:
        """Whether there is room for a VM now."""
        return fits(self.free, vm)

    def beside(self, vm: Size) -> Node:
        """The same with one VM more."""
        return replace(self, vms=(*self.vms, vm))


def fits(free: Size, vm: Size) -> bool:
    """Whether it is enough in every resource."""
    return all(has >= needs for has, needs in zip(free, vm, strict=True))


def free_later(node: Node, leaving: Fraction) -> SizeShares:
    """What is free once each VM has left with this probability."""
    found: dict[Size, Fraction] = {node.free: Fraction(1)}
    for vm in node.vms:
        then: defaultdict[Size, Fraction] = defaultdict(Fraction)
        for free, likely in found.items():
            then[free] += likely * (1 - leaving)
            then[tuple(map(sum, zip(free, vm, strict=True)))] += likely * leaving
        found = then
    return found


def room(later: SizeShares, vm: Size) -> Fraction:
    """The probability that a machine has room for a VM then."""
    return sum((likely for free, likely in later.items() if fits(free, vm)), Fraction(0))


def some_room(rooms: Iterable[Fraction]) -> Fraction:
    """The probability that at least one machine has room, from that of each: they are independent."""
    return 1 - prod((1 - each for each in rooms), start=Fraction(1))
