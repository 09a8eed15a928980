"""What was placed again as its machine did not work, as the feed tells it: latest first, while the feed is kept."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from roost.api.backwards import END, MOST_LISTED, MOST_SUMMED, FeedPlace, seconds_of
from roost.api.tokens import Principal
from roost.duties.healing import KEY
from roost.model.change import ConditionChange, Entry, PlacedVM
from roost.model.request import HOLD
from roost.model.rows import MachineState
from roost.store.backwards import Backwards
from roost.store.contract import Store
from roost.wire.basics import Seconds
from roost.wire.healing import BandHealings, HealedVM, HealingSummary


def page_of(
    store: Store, principal: Principal, tenant: str, since: float, before: FeedPlace, limit: int
) -> tuple[list[HealedVM], FeedPlace | None]:
    """The healings before a place, latest first, and where to go on, if there may be more."""
    found: list[HealedVM] = []
    look = Backwards(store, before[0], since)
    for revision, entry in look.entries(MOST_LISTED):
        if not _is_wanted(entry, principal, tenant, since):
            continue
        sources = _sources(entry)
        for i in range(len(entry.placed) - 1, -1, -1):
            if (revision, i) < before:
                found.append(_view(revision, entry, entry.placed[i], sources, principal))
                if len(found) == limit:
                    return found, (revision, i)
    return found, None if look.ended else (look.reached, 0)


def summary_of(
    store: Store, since: float, bands: Sequence[str], waiting: int, down: int, doubted: int = 0, most: int = MOST_SUMMED
) -> HealingSummary:
    """All of them in numbers, and how long each took since its machine went down.

    What was placed again while its machine still worked, as for maintenance, is no healing.
    """
    look, losses = Backwards(store, END[0], since), Losses()
    for _, entry in look.entries(most):
        if entry.key.startswith(KEY) and entry.at >= since:
            sources = _sources(entry)
            for vm in entry.placed:
                losses.healed(sources[vm.vm], HealingEvent(entry.at, vm.spec.priority or bands[0]))
        for change in entry.conditions:
            if change.field == "state":
                losses.changed(change, entry.at)
    losses.end(store)
    found = {band: [each for each in losses.found if each.band == band] for band in bands}
    times = [each.at for each in losses.found]
    return HealingSummary(
        waiting=waiting,
        machines_down=down,
        machines_doubted=doubted,
        healed=len(losses.found),
        bands=[BandHealings(priority=band, healed=len(found[band]), took=_took(found[band])) for band in bands],
        took=_took(losses.found),
        first=min(times, default=None),
        last=max(times, default=None),
        whole=look.ended,
    )


def _took(healings: Iterable[HealingEvent]) -> Seconds:
    return seconds_of(each.took for each in healings if each.took is not None)


class HealingEvent(msgspec.Struct, frozen=True):
    """A VM was placed again."""

    at: float
    band: str
    took: float | None = None  # since its machine went down, if that was looked at


class Losses:
    """Which VMs were placed again while their machine was down, and since when it was, told from the last to the first.

    A healing is open until the change of its machine before it is seen: to down, which was the loss, or to another.
    """

    def __init__(self) -> None:
        self.found: list[HealingEvent] = []
        self._open: dict[str, list[HealingEvent]] = {}  # by machine
        self._states: dict[str, int] = {}  # of machines that were changed, before all that was seen of them

    def healed(self, machine: str, healing: HealingEvent) -> None:
        """A VM of this machine was placed again."""
        self._open.setdefault(machine, []).append(healing)

    def changed(self, change: ConditionChange, at: float) -> None:
        """A machine came into another state."""
        self._states[change.machine] = change.before
        healings = self._open.pop(change.machine, ())
        if change.after == MachineState.DOWN:
            self.found += [msgspec.structs.replace(each, took=max(0.0, each.at - at)) for each in healings]

    def end(self, store: Store) -> None:
        """No more is looked at: what is open is a healing if its machine was down all that time."""
        for machine, healings in self._open.items():
            if self._state(store, machine) == MachineState.DOWN:
                self.found += healings

    def _state(self, store: Store, machine: str) -> int:
        """Before all that was seen of it; what is gone by now was down."""
        if machine in self._states:
            return self._states[machine]
        row = store.machine(machine)
        return row.state if row else MachineState.DOWN


def _is_wanted(entry: Entry, principal: Principal, tenant: str, since: float) -> bool:
    if not entry.key.startswith(KEY) or not entry.placed or entry.at < since or not principal.owns(entry.tenant):
        return False
    return not tenant or entry.tenant == tenant


def _sources(entry: Entry) -> dict[str, str]:
    """Where the VMs of an entry were before."""
    return {each.vm: each.machine for each in entry.released if not each.vm.endswith(HOLD)}


def _view(revision: int, entry: Entry, vm: PlacedVM, sources: dict[str, str], principal: Principal) -> HealedVM:
    return HealedVM(
        revision=revision,
        at=entry.at,
        vm=vm.vm,
        tenant=entry.tenant,
        type=vm.spec.type,
        priority=vm.spec.priority,
        source=sources[vm.vm],
        machine=vm.machine,
        key="" if principal.namespace else entry.key,
    )
