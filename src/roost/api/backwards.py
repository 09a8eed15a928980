"""The feed from the latest entry to the first, for lists of what happened."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator

from roost.api.problems import Refused
from roost.model.change import Entry
from roost.store.contract import Store
from roost.wire.basics import Seconds

WINDOW = 2_000  # revisions that are looked at together
ROWS = 64  # transactions that are read at once
MOST_LISTED = 50_000  # revisions that are looked at for one page
MOST_SUMMED = 500_000  # and for a summary
END = (2**62, 0)  # beyond every revision

PLACE = re.compile(r"([0-9]{1,18})-([0-9]{1,9})\Z", re.ASCII)

FeedPlace = tuple[int, int]  # a revision, and which of the VMs that it is about


def place_of(cursor: str) -> FeedPlace:
    """Where a page begins."""
    if not cursor:
        return END
    if (found := PLACE.match(cursor)) is None:
        raise Refused("roost.invalid_request", "is not the `next` of a page", field="cursor")
    return int(found[1]), int(found[2])


class Backwards:
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


def seconds_of(values: Iterable[float]) -> Seconds:
    """How many, their mean, and the half and the nine tenths of them by nearest rank."""
    ranked = sorted(values)
    if not ranked:
        return Seconds(count=0)

    def rank(share: float) -> float:
        return round(ranked[math.ceil(share * len(ranked)) - 1], 3)

    mean = round(math.fsum(ranked) / len(ranked), 3)
    return Seconds(count=len(ranked), mean=mean, p50=rank(0.5), p90=rank(0.9))
