"""What was placed again as its machine did not work, as the feed tells it: latest first, while the feed is kept."""

from __future__ import annotations

from collections.abc import Sequence

from roost.agent.healing import KEY
from roost.api.backwards import END, MOST_LISTED, MOST_SUMMED, Backwards, Place, seconds_of
from roost.api.tokens import Principal
from roost.model.change import Entry, Placed
from roost.model.request import HOLD
from roost.model.rows import MachineState
from roost.store.contract import Store
from roost.wire import BandHealings, HealedVM, HealingSummary


def page_of(
    store: Store, principal: Principal, tenant: str, since: float, before: Place, limit: int
) -> tuple[list[HealedVM], Place | None]:
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
    """All of them in numbers, and how long each took since its machine went down."""
    look = Backwards(store, END[0], since)
    healed = dict.fromkeys(bands, 0)
    took: dict[str, list[float]] = {band: [] for band in bands}
    open_: dict[str, list[tuple[float, str]]] = {}  # by machine: when VMs were healed from it, whose loss is to come
    times: list[float] = []
    for _, entry in look.entries(most):
        if entry.key.startswith(KEY) and entry.placed and entry.at >= since:
            times.append(entry.at)
            sources = _sources(entry)
            for vm in entry.placed:
                band = vm.spec.priority or bands[0]
                healed[band] += 1
                open_.setdefault(sources[vm.vm], []).append((entry.at, band))
        for change in entry.conditions:
            if change.field == "state" and change.after == MachineState.DOWN:
                for at, band in open_.pop(change.machine, ()):
                    took[band].append(max(0.0, at - entry.at))
    return HealingSummary(
        waiting=waiting,
        machines_down=down,
        machines_doubted=doubted,
        healed=sum(healed.values()),
        bands=[BandHealings(priority=band, healed=healed[band], took=seconds_of(took[band])) for band in bands],
        took=seconds_of([each for some in took.values() for each in some]),
        first=min(times, default=None),
        last=max(times, default=None),
        whole=look.ended,
    )


def _is_wanted(entry: Entry, principal: Principal, tenant: str, since: float) -> bool:
    if not entry.key.startswith(KEY) or not entry.placed or entry.at < since or not principal.owns(entry.tenant):
        return False
    return not tenant or entry.tenant == tenant


def _sources(entry: Entry) -> dict[str, str]:
    """Where the VMs of an entry were before."""
    return {each.vm: each.machine for each in entry.released if not each.vm.endswith(HOLD)}


def _view(revision: int, entry: Entry, vm: Placed, sources: dict[str, str], principal: Principal) -> HealedVM:
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
