"""Side tables: what a duty works out beside the rows, for rules to read. Each is one entry of `TABLES`.

    duty ──▶ registry ──▶ View.set_table (one revision, one more version) ──▶ the rules that declare the table

What is worked out for a whole zone, for each cluster or for each machine is in no row, so a new table changes no row
type; and a new version is taken over as a whole: before the next decision everything that rests on the table, and
nothing else, is worked out anew. A rule declares the tables it reads, and gets its row of each after the rows it has.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from roost.model.rows import foresight_type
from roost.model.zone import Zone

Per = Literal["zone", "cluster", "machine"]
PLACES: dict[Per, str] = {"zone": "0", "cluster": "machine.cluster", "machine": "m"}  # of a row, as kernels have it


@dataclass(frozen=True)
class SideTable:
    """What there is to know of a side table."""

    name: str
    per: Per  # what it has a row for
    row_type: Callable[[Zone], np.dtype[np.void]]

    def blank(self, zone: Zone) -> NDArray[np.void]:
        """While nothing was worked out: zeros."""
        rows = {"zone": 1, "cluster": len(zone.clusters), "machine": len(zone.machines)}[self.per]
        return np.zeros(rows, self.row_type(zone))

    def place(self, row: Any, machine: int) -> int:
        """Where the row stands that is about a machine, whose own row is given."""
        return {"zone": 0, "cluster": int(row.cluster), "machine": machine}[self.per]


FORESIGHT = SideTable("foresight", "zone", lambda zone: foresight_type(len(zone.bands), len(zone.vm_types)))
TABLES: tuple[SideTable, ...] = (FORESIGHT,)
