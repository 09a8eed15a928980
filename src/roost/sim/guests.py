"""The books of a run: which VMs there are, and where, by what the store's feed says and nothing else.

    placed ──▶ runs ──── its machine is down ──▶ lost ──▶ healed: it runs elsewhere
                │                                  └────▶ its machine is back: it runs there
                └──── had to give way ──▶ gone, or waits ──▶ placed again

Whoever heals, moves, evicts or places again, an agent or one of its duties, is heard of here in the same way.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from roost.model.change import ConditionChange, Entry
from roost.model.registry import WAITING
from roost.model.request import HOLD
from roost.model.rows import MachineState
from roost.model.zone import Zone
from roost.sim.tracker import Tracker
from roost.sim.virtual import Clock

GuestState = tuple[str, str, int, float | None, bool]  # see `Guest`


class Guest(msgspec.Struct, eq=False, gc=False):
    """A VM, from its first commit until it is gone."""

    name: str
    tenant: str
    machine: int
    lost_at: float | None = None  # when its machine went down, if it is down
    waits: bool = False  # it had to give way, and is to be placed again
    leaving: bool = False  # its time is over, and it is being taken off


class Guests:
    """All VMs of a run."""

    def __init__(self, zone: Zone, clock: Clock, tracker: Tracker) -> None:
        self._clock, self._tracker = clock, tracker
        self._index, self._types, self._top = zone.machine_index, zone.vm_type_index, ("", zone.bands[0])
        self._down = {m for m, state in enumerate(zone.machines["state"].tolist()) if state == MachineState.DOWN}
        self.by_name: dict[str, Guest] = {}

    def hear(self, entry: Entry) -> None:
        """Follow one commit."""
        index, types, top, moved, known = self._index, self._types, self._top, self._tracker.moved, self.by_name
        placed, released = entry.placed, entry.released
        stay = {each.vm for each in placed} if released else ()
        for each in placed:
            machine = index[each.machine]
            moved(machine, types[each.spec.type], each.spec.priority in top, 1)
            if (guest := known.get(each.vm)) is not None:
                self._came_to(guest, machine)
            elif not each.vm.endswith(HOLD):
                guest = known[each.vm] = Guest(each.vm, entry.tenant, machine)
            if guest is not None and machine in self._down:
                self._lose((guest,))
        for each in released:
            moved(index[each.machine], types[each.spec.type], each.spec.priority in top, -1)
            if each.vm not in stay and (guest := known.get(each.vm)) is not None:
                self._left(guest, entry)
        if entry.conditions:
            self._hear_states(entry.conditions)
        if entry.registered:
            for change in entry.registered:
                if change.kind == WAITING and change.after is None and (guest := known.get(change.name)):
                    self._given_up(guest)

    # ------------------------------------------------------------------------------------------- coming and going

    def _came_to(self, guest: Guest, machine: int) -> None:
        """A VM runs on another machine: it was moved, healed, or placed again."""
        guest.machine = machine
        if guest.waits:
            guest.waits = False
            self._tracker.requeued(self._clock.now)
        if guest.lost_at is not None:
            self._tracker.healed(guest.lost_at, self._clock.now)
            guest.lost_at = None

    def _left(self, guest: Guest, entry: Entry) -> None:
        """A VM is on no machine any more."""
        if guest.lost_at is not None:
            guest.lost_at = None
            self._tracker.lost -= 1
        if entry.eviction is not None:
            self._tracker.since["evictions"] += 1
            if any(change.kind == WAITING and change.name == guest.name for change in entry.registered):
                guest.waits = True
                self._tracker.waiting += 1
                return
        del self.by_name[guest.name]

    def _given_up(self, guest: Guest) -> None:
        """A VM that had to give way is not placed again."""
        if guest.waits:
            self._tracker.waiting -= 1
            del self.by_name[guest.name]

    # ------------------------------------------------------------------------------------------------- machines

    def _hear_states(self, conditions: Iterable[ConditionChange]) -> None:
        changed = {self._index[each.machine]: each.after for each in conditions if each.field == "state"}
        failed = {m for m, state in changed.items() if state == MachineState.DOWN} - self._down
        back = self._down & {m for m, state in changed.items() if state != MachineState.DOWN}
        if failed:
            self._down |= failed
            self._lose([guest for guest in self.by_name.values() if guest.machine in failed and not guest.waits])
        if back:
            self._down -= back
            for guest in self.by_name.values():
                if guest.lost_at is not None and guest.machine in back:
                    self._tracker.returned(guest.lost_at)
                    guest.lost_at = None

    def _lose(self, guests: Iterable[Guest]) -> None:
        for guest in guests:
            guest.lost_at = self._clock.now
            self._tracker.displace(self._clock.now)

    # ---------------------------------------------------------------------------------------------- checkpoints

    def state(self) -> list[GuestState]:
        """All of them, as plain data; none is being taken off."""
        return [(g.name, g.tenant, g.machine, g.lost_at, g.waits) for g in self.by_name.values()]

    def restore(self, state: Iterable[GuestState], down: Iterable[int]) -> list[Guest]:
        """Go on with these, in this order; `down`: machines that are, as the store knows."""
        guests = [Guest(*each) for each in state]
        self.by_name = {guest.name: guest for guest in guests}
        self._down = set(down)
        return guests
