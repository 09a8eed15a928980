"""What others did, taken into a copy many entries at a time.

An agent repeats what every other one did, so this is what bounds how many can share a zone. Nearly all entries say that
VMs come or go, and nothing else. Those are read in haste (`Brief`): what a VM asks for is looked up by how it is
written. The books change entry by entry; the rows change in one go, when all have been gathered (`flush`), by the
kernel. Nobody may look at rows in between.

    row of the feed ─▶ briefs ─▶ books and versions, at once    ─▶ flush: rows, relief
                 └──▶ something else in it: entry by entry, as the replica does
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from roost.engine.shape import Shape, Shapes, vm_row_type
from roost.model.change import Entry, PlacedVM
from roost.model.request import UNCONSTRAINED, VM, Constraints
from roost.placing.books import RunningVM, Tenant
from roost.store.feed import NOT_SAID, Brief, BriefVM, FeedRow

if TYPE_CHECKING:
    from roost.agent.replica import Replica

MOST_KNOWN = 10_000  # things that VMs ask for, or constraints
_vm = msgspec.json.Decoder(VM).decode
_constraints = msgspec.json.Decoder(Constraints).decode

Known = tuple[VM, Shape, int]  # what a VM asks for, its shape, and that one's place in the table


class InBulk:
    """Gathers what comes and goes."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._constraints: dict[bytes, Constraints] = {}
        # Not in the rows yet: by VM, its machine, its shape's place in the table, whether it comes (1) or goes (-1).
        self._at: list[int] = []
        self._which: list[int] = []
        self._signs: list[int] = []
        self._left: list[int] = []  # machines that something has left
        self._begin(replica.allocator.shapes)

    def _begin(self, shapes: Shapes) -> None:
        """Begin anew with what is known: other rules say what VMs look like, or too much was seen."""
        self._shapes = shapes
        self._written: dict[bytes, Known] = {}  # by how it is written
        self._places: dict[int, tuple[Shape, int]] = {}  # by the shape's identity: its place in the table
        self._table = np.zeros(64, vm_row_type(self._replica.allocator.zone))

    def add_row(self, row: FeedRow) -> bool:
        """Take in what a row of the feed brings, but for rows of machines; False, and nothing is done, if it cannot."""
        replica = self._replica
        if (briefs := row.briefs()) is None:
            return False
        if self._shapes is not replica.allocator.shapes or len(self._places) + len(self._written) > MOST_KNOWN:
            self.flush()
            self._begin(replica.allocator.shapes)
        if not self._know_all(briefs):
            return False
        self._add(briefs)
        return True

    def _know_all(self, briefs: Sequence[Brief | Entry]) -> bool:
        """Whether the shape of each VM that comes is known by now; it is not if it is its tenant's own."""
        written = self._written
        for brief in briefs:
            for each in brief.placed:
                if isinstance(each, PlacedVM):
                    if each.spec.isolated:
                        return False
                elif (text := bytes(each.spec)) not in written:
                    spec = _vm(text)
                    if spec.isolated:
                        return False
                    written[text] = self._known(spec)
        return True

    def _known(self, spec: VM) -> Known:
        shape = self._shapes.of_running(spec, 0)
        return spec, shape, self._place_of(shape)

    def _place_of(self, shape: Shape) -> int:
        """Where a shape stands in the table of those that rows are changed by."""
        known = self._places.get(id(shape))
        if known is None:
            place = len(self._places)
            if place == len(self._table):
                self._table = np.concatenate([self._table, np.zeros_like(self._table)])
            self._table[place] = shape.plain[0]
            known = self._places[id(shape)] = shape, place
        return known[1]

    def _add(self, briefs: Sequence[Brief | Entry]) -> None:
        """The books and versions as they are after these entries.

        One long loop with all that it needs in local names: it turns once for everything that any other agent does.
        """
        replica, written = self._replica, self._written
        allocator, fed, adopted = replica.allocator, replica.fed, replica.adopted
        index, tenants, vms, note_on = allocator.zone.machine_index, allocator.tenants, allocator.vms, allocator.note_on
        at_machine, which, comes = self._at.append, self._which.append, self._signs.append
        for brief in briefs:
            known_by_now: Sequence[int] = ()  # machines whose rows came with a conflict, and had this already
            for machine, version in brief.versions.items():
                at = index[machine]
                if version > fed[at]:
                    fed[at] = version
                if adopted and replica.passes(at, version):
                    known_by_now = (*known_by_now, at)
            name = brief.tenant
            tenant = known = tenants.get(name)
            if brief.released:
                for gone in brief.released:
                    self._release(gone, known_by_now)
                tenant = tenants.get(name)
                if known is not None and brief.placed:
                    tenant = tenants[name] = known  # its only VM has moved: it is the same tenant still
            if brief.placed:
                if tenant is None:
                    tenant = tenants[name] = Tenant(UNCONSTRAINED)
                for each in brief.placed:
                    if isinstance(each, BriefVM):
                        spec, shape, place = written[bytes(each.spec)]
                        placed = PlacedVM(each.vm, spec, each.machine, each.since)
                    else:
                        placed, (_, shape, place) = each, self._known(each.spec)
                    at = index[placed.machine]
                    running = RunningVM(placed, name, at, shape)
                    if placed.vm in vms:  # for a while two tenants may have VMs of the same name
                        replica.enter(running)
                    else:
                        vms[placed.vm] = tenant.vms[placed.vm] = running
                        note_on(running)
                    if at not in known_by_now:
                        at_machine(at)
                        which(place)
                        comes(1)
            if known is not None and known.constraints != UNCONSTRAINED:
                replica.relief.change(name)
            if tenant is not None and brief.after > tenant.stamp:
                tenant.stamp = brief.after
                said = brief.constraints
                tenant.constraints = said if isinstance(said, Constraints) else self._read(said)

    def _read(self, said: msgspec.Raw) -> Constraints:
        """Constraints as they are written; many tenants have the same."""
        if said is NOT_SAID:
            return UNCONSTRAINED
        text = bytes(said)
        known = self._constraints.get(text)
        if known is None:
            if len(self._constraints) >= MOST_KNOWN:
                self._constraints.clear()
            known = self._constraints[text] = _constraints(text)
        return known

    def _release(self, gone: BriefVM | PlacedVM, known_by_now: Sequence[int]) -> None:
        running = self._replica.strike(gone.vm, gone.machine)
        self._left.append(running.machine)
        if not self._replica.has_left(running) and running.machine not in known_by_now:
            self._at.append(running.machine)
            self._which.append(self._place_of(running.shape))
            self._signs.append(-1)

    def flush(self) -> None:
        """Let the rows be as the books."""
        if self._at:
            columns = np.array(self._at), np.array(self._which), np.array(self._signs)
            self._replica.view.place_many(*columns, self._table)
            for each in (self._at, self._which, self._signs):
                each.clear()
        if self._left:
            self._replica.relieve(np.array(self._left))
            self._left.clear()
