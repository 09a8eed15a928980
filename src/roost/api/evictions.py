"""What had to give way, as the feed tells it: latest first, for as long as the feed is kept."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from roost.api.tokens import Principal
from roost.model.change import Entry, Placed
from roost.model.request import HOLD
from roost.store.contract import Store
from roost.wire import BandEvictions, CauseEvictions, EvictionSummary, EvictionView, Seconds

WINDOW = 2_000  # revisions that are looked at together
ROWS = 64  # transactions that are read at once
MOST_LISTED = 50_000  # revisions that are looked at for one page
MOST_SUMMED = 500_000  # and for a summary
END = (2**62, 0)  # beyond every revision

Place = tuple[int, int]  # a revision, and which of the VMs that it evicted


@dataclass(frozen=True)
class Wanted:
    """Whose evictions, since when, and who wants to know."""

    principal: Principal
    tenant: str = ""
    since: float = 0.0

    def __contains__(self, entry: Entry) -> bool:
        if entry.eviction is None or entry.at < self.since or not self.principal.owns(entry.tenant):
            return False
        return not self.tenant or entry.tenant == self.tenant


def page_of(store: Store, wanted: Wanted, before: Place, limit: int) -> tuple[list[EvictionView], Place | None]:
    """The evictions before a place, latest first, and where to go on, if there may be more."""
    found: list[EvictionView] = []
    look = _Backwards(store, before[0], wanted.since)
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


def summary_of(store: Store, wanted: Wanted, bands: Sequence[str], most: int = MOST_SUMMED) -> EvictionSummary:
    """All of them in numbers."""
    look = _Backwards(store, END[0], wanted.since)
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


def seconds_of(values: Iterable[float]) -> Seconds:
    """How many, their mean, and the half and the nine tenths of them by nearest rank."""
    ranked = sorted(values)
    if not ranked:
        return Seconds(count=0)

    def rank(share: float) -> float:
        return round(ranked[math.ceil(share * len(ranked)) - 1], 3)

    mean = round(math.fsum(ranked) / len(ranked), 3)
    return Seconds(count=len(ranked), mean=mean, p50=rank(0.5), p90=rank(0.9))


class _Backwards:
    """The entries of the feed from the last to the first, or to a time: how far it came, and whether that is all."""

    def __init__(self, store: Store, last: int, since: float) -> None:
        store.changes(store.head()[0], 1, patient=True)  # which gives what was committed before its revision
        head, self._trimmed = store.head()
        self._store, self._since = store, since
        self.reached = min(last, head) + 1  # all from here on were looked at
        self.ended = False

    def entries(self, most: int) -> Iterator[tuple[int, Entry]]:
        """Of at most so many revisions."""
        lowest = self.reached - most
        while not self.ended and self.reached > lowest:
            start = max(self._trimmed, self.reached - 1 - WINDOW)
            window = list(self._between(start, self.reached))
            yield from reversed(window)
            self.reached = start + 1
            # Agents have clocks of their own, so that entries are only about in the order of their times.
            self.ended |= start <= self._trimmed or all(entry.at < self._since for _, entry in window)

    def _between(self, start: int, end: int) -> Iterator[tuple[int, Entry]]:
        while start < end - 1:
            feed = self._store.changes(start, ROWS)
            if feed.reload or not feed.rows:  # trimmed just now
                self.ended |= feed.reload
                return
            for number, entry in feed.after(start):
                if number < end:
                    yield number, entry
            start = feed.rows[-1].last


def _evicted(entry: Entry) -> list[Placed]:
    """The VMs that an entry evicts: not room that was held for them, and not those that run elsewhere now."""
    placed = {each.vm for each in entry.placed}
    return [each for each in entry.released if each.vm not in placed and not each.vm.endswith(HOLD)]


def _view(revision: int, entry: Entry, vm: Placed, principal: Principal) -> EvictionView:
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
