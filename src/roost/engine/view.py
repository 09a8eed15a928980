"""An agent's own copy of the zone: rows, the journal of what changed, and the way back to a recent revision.

Every change goes through here, so that no sum and no journal link is ever forgotten.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from roost.engine.history import MANY, Change, History
from roost.engine.huge_pages import copy_of, zeros
from roost.engine.kernel.native import Direct
from roost.engine.shape import Shape
from roost.engine.side_tables import TABLES, SideTable
from roost.model.errors import InvariantBroken
from roost.model.rows import MachineState
from roost.model.thresholds import Thresholds
from roost.model.zone import Zone, sum_up

# The journal chains the machines of a cluster in the order they last changed; -1 ends the chain.
# The rack stands here, too, so that a walk can ask for it before the machine's row has arrived.
LINK_TYPE = np.dtype([("revision", np.int64), ("older", np.int32), ("newer", np.int32), ("rack", np.int32)], align=True)

OF_CLUSTERS = ("quarantined", "thresholds")  # fields that operators set


class View:
    """Rows that change, with a revision that only grows."""

    def __init__(self, zone: Zone, kernel: ModuleType, history: int = 65_536) -> None:
        links = zeros((len(zone.machines),), LINK_TYPE)
        links["older"] = links["newer"] = -1
        links["rack"] = zone.machines["rack"]
        journal = np.zeros(1 + 2 * len(zone.clusters), np.int64)
        journal[1 : 1 + len(zone.clusters)] = -1
        rows = (copy_of(zone.machines), copy_of(zone.racks), copy_of(zone.clusters), links, journal)
        self._begin(zone, kernel, rows, tuple(table.blank(zone) for table in TABLES), history)

    def _begin(
        self, zone: Zone, kernel: ModuleType, rows: tuple[Any, ...], tables: tuple[Any, ...], history: int
    ) -> None:
        self.zone, self.kernel, self._put = zone, kernel, Direct(kernel.place)
        # All that changes, as the kernel takes it.
        self.rows = rows
        self.machines, self.racks, self.clusters, self.links, self.journal = rows
        self._history = History(history)
        self._note = self._history.note
        # What was worked out beside the rows, in the order of `TABLES`; its versions; and how often one was replaced.
        self.tables, self.table_versions, self.tables_replaced = tables, [0] * len(tables), 0
        # What the kernel has placed and nobody has noted yet: the machine, and the shape it was asked for. The second
        # number is 1 once something was placed for which VMs of lower priority have to give way.
        self.placing = np.array([-1, 0])
        self.placing_shape: Shape | None = None

    @property
    def revision(self) -> int:
        """Grows by one with every change."""
        return int(self.journal.item(0))

    # ------------------------------------------------------------------------------------------ changes

    def place(self, machine: int, shape: Shape) -> None:
        """Put a VM of this shape on a machine."""
        before = self.journal.item(0)
        self._put.call(*self.rows, machine, shape.plain, 1)
        self._note(before, ("remove", machine, shape))

    def remove(self, machine: int, shape: Shape) -> None:
        """Take a VM of this shape off a machine."""
        before = self.journal.item(0)
        self._put.call(*self.rows, machine, shape.plain, -1)
        self._note(before, ("place", machine, shape))

    def place_many(
        self, machines: NDArray[np.int64], which: NDArray[np.int64], signs: NDArray[np.int64], vms: NDArray[np.void]
    ) -> None:
        """Put VMs on machines (sign 1) or take them off (-1): of each its machine and the row of `vms` that it is."""
        before = int(self.journal[0])
        self._note(before, self._apply(MANY, len(machines), (machines, which, signs, vms)))

    def set_state(self, machine: int, state: MachineState) -> None:
        """Make a machine ready, draining, down or quarantined."""
        self._change("state", machine, int(state))

    def set_field(self, machine: int, field: str, value: int) -> None:
        """Change what is known of a machine: its health, failures, or how far behind its host environment is."""
        self._change(field, machine, value)

    def set_quarantine(self, cluster: int, quarantined: bool) -> None:
        """Take a cluster out of use for new VMs, or back."""
        self._change("quarantined", cluster, quarantined)

    def set_thresholds(self, cluster: int, thresholds: Thresholds) -> None:
        """Keep other numbers of empty machines in a cluster."""
        self._change("thresholds", cluster, thresholds.row)

    def set_table(self, table: SideTable, rows: NDArray[np.void]) -> None:
        """Go by another version of a side table from now on, all of it."""
        self._change("table", TABLES.index(table), rows)

    def adopt(self, machine: int, fresh: NDArray[np.void]) -> None:
        """Believe a fresher row (an array of one) about what a machine holds and how it is."""
        self._change("adopt", machine, fresh)

    def suppose(self, machine: int, shape: Shape, sign: int) -> None:
        """Put a VM on a machine (1) or take it off (-1), only to look: whoever does undoes it, and none is noted."""
        self._put.call(*self.rows, machine, shape.plain, sign)

    def _change(self, what: str, row: int, value: Any) -> None:
        before = int(self.journal[0])
        self._note(before, self._apply(what, row, value))

    def _apply(self, what: str, row: int, value: Any) -> Change:
        """Make a change; returns the one that undoes it."""
        if what in ("place", "remove"):
            sign = 1 if what == "place" else -1
            self._put.call(*self.rows, row, value.plain, sign)
            return "remove" if what == "place" else "place", row, value
        if what == MANY:
            machines, which, signs, vms = value
            self.kernel.place_many(*self.rows, *value)
            return what, row, (machines[::-1].copy(), which[::-1].copy(), -signs[::-1], vms)
        if what in OF_CLUSTERS:
            was = self.clusters[what][row].copy()
            self.clusters[what][row] = value
            self.kernel.touch_cluster(self.journal, row)
            return what, row, was
        if what == "table":  # no row changes; whoever reads the table sees by its version that it is another one
            before = self.tables[row].copy()
            self.tables[row][:] = value
            self.journal[0] += 1
            self.table_versions[row] += 1
            self.tables_replaced += 1
            return what, row, before
        if what == "adopt":
            fresh = self.machines[row : row + 1].copy()
            self.kernel.adopt(*self.rows, row, value[0])
            return what, row, fresh
        old = int(self.machines[row][what])
        if what == "state":
            self.kernel.set_state(*self.rows, row, value)
        else:
            self.machines[row][what] = value
            self.kernel.touch(self.machines, self.links, self.journal, row)
        return what, row, old

    def note_placed(self, machine: int) -> None:
        """Note what the kernel has just placed."""
        self._note(self.journal.item(0) - 1, ("remove", machine, self.placing_shape))
        self.placing[0] = -1

    def restock(self, machines: NDArray[np.void]) -> None:
        """Begin with these machine rows instead of the zone's, which are empty. Only before anything was decided."""
        assert self.revision == 0, "what is cached would not notice"
        self.machines[:] = machines
        sum_up(self.machines, self.racks, self.clusters)

    # -------------------------------------------------------------------------------------- going back

    def reaches(self, revision: int) -> bool:
        """Whether the state at a revision can still be rebuilt."""
        return self._history.reach <= revision <= self.revision

    def at(self, revision: int) -> View:
        """A copy of the zone as it was at a recent revision; it keeps no history of its own."""
        past = View.__new__(View)
        rows, tables = tuple([copy_of(rows) for rows in self.rows]), tuple([table.copy() for table in self.tables])
        past._begin(self.zone, self.kernel, rows, tables, 0)
        for undo in self._history.back_to(revision):
            past._apply(*undo)
        return past

    def attempt(self) -> int:
        """Begin changes that may be undone as a whole; returns the revision to `rewind` to. End with `keep` or that."""
        self._history.attempting = True
        return int(self.journal.item(0))

    def keep(self) -> None:
        """The attempt succeeded."""
        self._history.keep()

    def rewind(self, revision: int) -> None:
        """Undo every change since a revision, last first. The rows are as they were; the revision grows on."""
        if revision < self._history.reach:
            raise InvariantBroken(f"revision {revision} is too long ago to go back to")
        if self.placing[0] >= 0:  # interrupted, before or just after it was noted
            if self._history.last < self.revision - 1:
                self.note_placed(int(self.placing[0]))
            self.placing[0] = -1
        for undo in self._history.taken_back_to(revision):
            self._apply(*undo)
        self.keep()

    def note_overfilled(self) -> None:
        """Something was placed so that others may have to give way."""
        self.placing[1] = 1

    @property
    def perhaps_overfilled(self) -> bool:
        """Whether others may have to give way to something that was placed, as far as can be told without a look."""
        return bool(self.placing.item(1))

    def overfilled(self, machines: Sequence[int]) -> bool:
        """Whether others have to give way on any of these machines, the only ones on which something was placed."""
        noted = bool(self.placing[1])  # perhaps by what was undone
        self.placing[1] = 0
        return noted and bool((self.machines["free"][list(machines), -1] < 0).any())
