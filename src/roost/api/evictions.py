"""What had to give way, as the feed tells it: latest first, for as long as the feed is kept."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from roost.api.backwards import END, MOST_LISTED, MOST_SUMMED, FeedPlace, seconds_of
from roost.api.tokens import Principal
from roost.model.change import Entry, PlacedVM
from roost.model.request import HOLD
from roost.store.backwards import Backwards
from roost.store.contract import Store
from roost.wire.evictions import BandEvictions, CauseEvictions, EvictionSummary, EvictionView


@dataclass(frozen=True)
class EvictionQuery:
    """Whose evictions, since when, and who wants to know."""

    principal: Principal
    tenant: str = ""
    since: float = 0.0

    def __contains__(self, entry: Entry) -> bool:
        if entry.eviction is None or entry.at < self.since or not self.principal.owns(entry.tenant):
            return False
        return not self.tenant or entry.tenant == self.tenant


def page_of(
    store: Store, wanted: EvictionQuery, before: FeedPlace, limit: int
) -> tuple[list[EvictionView], FeedPlace | None]:
    """The evictions before a place, latest first, and where to go on, if there may be more."""
    found: list[EvictionView] = []
    look = Backwards(store, before[0], wanted.since)
    for revision, entry in look.entries(MOST_LISTED):
        if entry not in wanted:
            continue
        gone = _evicted(entry)
        for i in range(len(gone) - 1, -1, -1):
            if (revision, i) >= before:
                continue
            found.append(_view(revision, entry, gone[i], wanted.principal))
            if len(found) == limit:
                return found, (revision, i)
    return found, None if look.ended else (look.reached, 0)


def summary_of(store: Store, wanted: EvictionQuery, bands: Sequence[str], most: int = MOST_SUMMED) -> EvictionSummary:
    """All of them in numbers."""
    look = Backwards(store, END[0], wanted.since)
    ran: dict[str, list[float]] = {}
    evicted, caused, requests = Counter[str](), Counter[str](), dict[str, set[str]]()
    times: list[float] = []
    for _, entry in look.entries(most):
        if entry not in wanted:
            continue
        assert entry.eviction is not None
        cause, gone = entry.eviction.priority, _evicted(entry)
        times.append(entry.at)
        caused[cause] += len(gone)
        requests.setdefault(cause, set()).add(entry.key)
        for each in gone:
            evicted[each.spec.priority] += 1
            if each.since:
                ran.setdefault(each.spec.priority, []).append(max(0.0, entry.at - each.since))
    return EvictionSummary(
        evictions=evicted.total(),
        requests=sum(map(len, requests.values())),
        bands=[
            BandEvictions(priority=band, evictions=evicted[band], ran=seconds_of(ran.get(band, ())))
            for band in bands
            if evicted[band]
        ],
        causes=[
            CauseEvictions(priority=band, requests=len(requests[band]), evictions=caused[band])
            for band in bands
            if caused[band]
        ],
        ran=seconds_of([each for some in ran.values() for each in some]),
        first=min(times, default=None),
        last=max(times, default=None),
        whole=look.ended,
    )


def _evicted(entry: Entry) -> list[PlacedVM]:
    """The VMs that an entry evicts: not room that was held for them, and not those that run elsewhere now."""
    placed = {each.vm for each in entry.placed}
    return [each for each in entry.released if each.vm not in placed and not each.vm.endswith(HOLD)]


def _view(revision: int, entry: Entry, vm: PlacedVM, principal: Principal) -> EvictionView:
    assert entry.eviction is not None
    shown: Callable[[str], str] = str if principal.owns(entry.eviction.tenant) else lambda _: ""
    return EvictionView(
        revision=revision,
        at=entry.at,
        vm=vm.vm,
        tenant=entry.tenant,
        type=vm.spec.type,
        priority=vm.spec.priority,
        machine=vm.machine,
        cause_priority=entry.eviction.priority,
        cause=shown(entry.key),
        cause_tenant=shown(entry.eviction.tenant),
        grace=entry.eviction.grace,
        ran=round(max(0.0, entry.at - vm.since), 3) if vm.since else None,
        requeue=vm.spec.requeue,
    )
