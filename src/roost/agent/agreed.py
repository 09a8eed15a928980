"""What those around a store agree on, as a copy of the zone has it and goes by it."""

from __future__ import annotations

from collections.abc import Mapping

from roost.agent.registry import Registry
from roost.agent.relief import Relief
from roost.agent.waiting import WaitingBook
from roost.engine.side_tables import FORESIGHT
from roost.model.change import Registered
from roost.model.foresight import Foresight, table_of
from roost.model.registry import apply_entry
from roost.model.thresholds import Thresholds, of_row
from roost.model.waiting import Waiting
from roost.placing.allocator import Allocator


class Agreed:
    """The registry, the VMs that wait, and what both change in a copy: an `EntryTarget`."""

    def __init__(self, entries: Mapping[tuple[str, str], str], allocator: Allocator, relief: Relief) -> None:
        self._allocator, self._relief = allocator, relief
        self.registry, self.waiting = Registry(entries), WaitingBook()
        for (kind, name), value in entries.items():
            apply_entry(self, kind, name, value)

    def register(self, change: Registered) -> None:
        """An entry of the registry has another value."""
        self.registry.set((change.kind, change.name), change.after)
        apply_entry(self, change.kind, change.name, change.after)

    def foresee(self, foresight: Foresight | None) -> None:
        """This is what is expected to come; None: nothing is known."""
        self._allocator.view.set_table(FORESIGHT, table_of(foresight, self._allocator.zone))

    def wait(self, vm: str, waiting: Waiting | None) -> None:
        """A VM that had to give way waits to be placed again, and its name is kept; None: it waits no longer."""
        self.waiting.note(vm, waiting)
        (self._allocator.reserved.discard if waiting is None else self._allocator.reserved.add)(vm)

    def keep_empty(self, cluster: str, thresholds: Thresholds | None) -> None:
        """A cluster keeps as many empty machines as the registry says, or else the zone. It may be gone by now."""
        zone = self._allocator.zone
        if cluster in zone.cluster_names:
            c = zone.cluster(cluster)
            self._allocator.view.set_thresholds(c, thresholds or of_row(zone.clusters[c]["thresholds"]))
            self._relief.open(c)
