"""Many things of a kind as lists, one for each of their fields: what is done to all of them at once is faster so."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from itertools import compress
from operator import attrgetter, not_
from typing import Any, Protocol, Self

import msgspec

from roost.model.inventory import MachineSpec


class Columns(msgspec.Struct, frozen=True, eq=False):
    """A list for each field, all of them in the same order. Whoever is given some leaves them as they are."""

    @property
    def lists(self) -> tuple[list[Any], ...]:
        """The lists, in the order of the fields."""
        return msgspec.structs.astuple(self)

    def extend(self, *more: Iterable[Any]) -> None:
        """Add to each list; only for whoever is making them."""
        for column, values in zip(self.lists, more, strict=True):
            column.extend(values)

    def take(self, at: Sequence[int]) -> Self:
        """Those at these places, in this order."""
        return type(self)(*([column[i] for i in at] for column in self.lists))

    def parted(self, names: Iterable[str], chosen: Container[str]) -> tuple[Self, Self]:
        """Those that are chosen, and the others; `names` are those of all, in their order."""
        those = [name in chosen for name in names]
        others = list(map(not_, those))
        kind = type(self)
        return (
            kind(*(list(compress(column, those)) for column in self.lists)),
            kind(*(list(compress(column, others)) for column in self.lists)),
        )

    def joined(self, others: Self) -> Self:
        """These, and then others."""
        return type(self)(*([*mine, *theirs] for mine, theirs in zip(self.lists, others.lists, strict=True)))


class Holding(Protocol):
    """What a row of an authority says of a machine."""

    @property
    def spec(self) -> MachineSpec:
        """What it is."""

    @property
    def used(self) -> Sequence[int]:
        """By band, then resource: what VMs of that band take."""

    @property
    def classes(self) -> Sequence[int]:
        """VMs of each anti-colocation class."""

    @property
    def vms(self) -> int:
        """How many it runs."""

    @property
    def owner(self) -> str:
        """The tenant that holds it in isolation."""

    @property
    def version(self) -> int:
        """Another one after every change."""


class MachineColumns(Columns, frozen=True, eq=False):
    """What machines are, what they hold, and how they are: the fields of a `Holding` and of its condition."""

    spec: list[MachineSpec]
    used: list[list[int]]
    classes: list[list[int]]
    vms: list[int]
    owner: list[str]
    state: list[int]
    health: list[int]
    failures: list[int]
    versions_behind: list[int]
    version: list[int]

    @classmethod
    def of(cls, holdings: Sequence[Holding]) -> MachineColumns:
        """These rows of an authority."""
        return cls(*[list(map(value, holdings)) for value in _values])


_values = tuple(map(attrgetter, MachineColumns.__struct_fields__))
