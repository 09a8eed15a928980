"""How many empty machines a cluster keeps, by what a request is for.

    machines without a VM of the highest band
    ──────────────────────────┬─────────────────┬───────────────┬──▶ 0
    everything is admitted   new           scale_out        healing
                              new deployments   scale-outs      healing
                              stop              stop, too       stops, too

In machines, not in utilisation: whether a VM can be healed, or a tenant can grow, depends on machines that are whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Literal

import msgspec

from roost.model.errors import InvalidInput


class Purpose(IntEnum):
    """What a request is for. The later ones may use machines that are kept from the earlier ones."""

    NEW = 0  # the first VMs of a tenant
    SCALE_OUT = 1  # more VMs of a tenant
    HEALING = 2  # VMs that run already, or did until their machine failed


PurposeName = Literal["new", "scale_out", "healing"]  # as fields are called
PURPOSES: tuple[PurposeName, ...] = ("new", "scale_out", "healing")  # by Purpose
WORDS = ("new deployments", "scale-outs", "healing")  # and as people call them


class Thresholds(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """A kind of request stops when a cluster has no more empty machines than this; 0: it never stops for their sake."""

    new: int = 0
    scale_out: int = 0
    healing: int = 0

    def __post_init__(self) -> None:
        for name in PURPOSES:
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 0:
                raise InvalidInput(f"thresholds.{name}", f"is {value!r}", "use a whole number of machines, 0 for none")
        for earlier, later in (("new", "scale_out"), ("scale_out", "healing")):
            first, then = getattr(self, earlier), getattr(self, later)
            if first < then:
                problem = f"is {first}, below {later}, which is {then}"
                remedy = f"{WORDS[PURPOSES.index(earlier)]} stop first: give at least {then}"
                raise InvalidInput(f"thresholds.{earlier}", problem, remedy)

    @property
    def row(self) -> tuple[int, int, int]:
        """By Purpose, as the rows of clusters have it."""
        return self.new, self.scale_out, self.healing

    def reached(self, empty: int) -> tuple[PurposeName, ...]:
        """The kinds of requests that stop at so many empty machines."""
        return tuple(name for name, least in zip(PURPOSES, self.row, strict=True) if least and empty <= least)

    def check_size(self, cluster: str, machines: int) -> None:
        """Refuse to keep more machines than a cluster has."""
        if self.new > machines:  # the largest
            problem = f"is {self.new:,}, and cluster {cluster} has {machines:,} machines"
            raise InvalidInput("thresholds.new", problem, f"keep at most {machines:,}")


NONE = Thresholds()


def of_row(row: Sequence[int]) -> Thresholds:
    """The thresholds in a cluster's row."""
    return Thresholds(new=int(row[0]), scale_out=int(row[1]), healing=int(row[2]))


_read = msgspec.json.Decoder(Thresholds).decode


def read_entry(value: str) -> Thresholds:
    """An entry of the registry."""
    return _read(value)
