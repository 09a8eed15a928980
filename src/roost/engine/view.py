"""An agent's own copy of the zone: rows, the journal of what changed, and the way back to a recent revision.

Every change goes through here, so that no sum and no journal link is ever forgotten.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from types import ModuleType
from typing import Any

import numpy as np

from roost.engine.shape import Shape
from roost.model.errors import InvariantBroken
from roost.model.rows import MachineState, aligned_copy
from roost.model.zone import Zone

# The journal chains the machines of a cluster in the order they last changed; -1 ends the chain.
LINK_TYPE = np.dtype([("revision", np.int64), ("older", np.int32), ("newer", np.int32)], align=True)


class View:
    """Rows that change, with a revision that only grows."""

    def __init__(self, zone: Zone, kernel: ModuleType, history: int = 65_536) -> None:
        self.zone, self.kernel = zone, kernel
        self.machines, self.racks, self.clusters = map(aligned_copy, (zone.machines, zone.racks, zone.clusters))
        self.links = np.zeros(len(self.machines), LINK_TYPE)
        self.links["older"] = self.links["newer"] = -1
        self.journal = np.zeros(1 + 2 * len(self.clusters), np.int64)
        self.journal[1 : 1 + len(self.clusters)] = -1
        # How to undo each recent change: (revision before it, what, row, value). Oldest changes are forgotten first.
        self._history: deque[tuple[int, str, int, Any]] = deque(maxlen=history)

    @property
    def revision(self) -> int:
        """Grows by one with every change."""
        return int(self.journal[0])

    @property
    def rows(self) -> tuple[Any, ...]:
        """All that changes, as the kernel takes it."""
        return self.machines, self.racks, self.clusters, self.links, self.journal

    def place(self, machine: int, shape: Shape) -> None:
        """Put a VM of this shape on a machine."""
        self.note_placed(machine, shape, self.revision)
        self._move(machine, shape, 1)

    def remove(self, machine: int, shape: Shape) -> None:
        """Take a VM of this shape off a machine."""
        self._history.append((self.revision, "removed", machine, shape))
        self._move(machine, shape, -1)

    def note_placed(self, machine: int, shape: Shape, before: int) -> None:
        """The kernel has put a VM on a machine; `before` was the revision until then."""
        self._history.append((before, "placed", machine, shape))

    def _move(self, machine: int, shape: Shape, sign: int) -> None:
        self.kernel.place(*self.rows, machine, shape.row[0], sign)

    def set_state(self, machine: int, state: MachineState) -> None:
        """Make a machine ready, draining, down or quarantined."""
        self._history.append((self.revision, "state", machine, int(self.machines[machine]["state"])))
        self.kernel.set_state(*self.rows, machine, int(state))

    def set_field(self, machine: int, field: str, value: int) -> None:
        """Change what is known of a machine: its health, failures, or how far behind its host environment is."""
        self._history.append((self.revision, field, machine, int(self.machines[machine][field])))
        self.machines[machine][field] = value
        self.kernel.touch(self.machines, self.links, self.journal, machine)

    def set_quarantine(self, cluster: int, quarantined: bool) -> None:
        """Take a cluster out of use for new VMs, or back."""
        self._history.append((self.revision, "quarantine", cluster, bool(self.clusters[cluster]["quarantined"])))
        self.clusters[cluster]["quarantined"] = quarantined
        self.kernel.touch_cluster(self.journal, cluster)

    def reaches(self, revision: int) -> bool:
        """Whether the state at a revision can still be rebuilt."""
        return revision == self.revision or (bool(self._history) and self._history[0][0] <= revision <= self.revision)

    def at(self, revision: int) -> View:
        """A copy of the zone as it was at a recent revision."""
        past = View.__new__(View)
        past.zone, past.kernel, past._history = self.zone, self.kernel, deque(maxlen=0)
        past.machines, past.racks, past.clusters = map(aligned_copy, (self.machines, self.racks, self.clusters))
        past.links, past.journal = self.links.copy(), self.journal.copy()
        for before, what, row, value in reversed(self._history):
            if before < revision:
                break
            if what == "placed":
                past.remove(row, value)
            elif what == "removed":
                past.place(row, value)
            elif what == "state":
                past.set_state(row, value)
            elif what == "quarantine":
                past.set_quarantine(row, value)
            else:
                past.set_field(row, what, value)
        return past

    def check_invariants(self, vms: Iterable[tuple[int, Shape]]) -> None:
        """Raise unless the rows are exactly what these VMs make of the zone, and nothing is over capacity."""
        fresh = View(self.zone, self.kernel, history=0)
        for field in ("health", "failures", "versions_behind"):
            fresh.machines[field] = self.machines[field]
        fresh.clusters["quarantined"] = self.clusters["quarantined"]
        for i in np.flatnonzero(fresh.machines["state"] != self.machines["state"]):
            fresh.set_state(int(i), MachineState(int(self.machines[i]["state"])))
        for machine, shape in vms:
            fresh.place(machine, shape)
        for name, mine, theirs in (
            ("machine", self.machines, fresh.machines),
            ("rack", self.racks, fresh.racks),
            ("cluster", self.clusters, fresh.clusters),
        ):
            for field in mine.dtype.names or ():
                if not np.array_equal(mine[field], theirs[field]):
                    raise InvariantBroken(f"{name} rows: {field} is not the sum of what runs there")
        if (self.machines["free"] < 0).any():
            m = int(np.flatnonzero((self.machines["free"] < 0).any(axis=(1, 2)))[0])
            raise InvariantBroken(f"machine {self.zone.machine_names[m]} is over capacity")
