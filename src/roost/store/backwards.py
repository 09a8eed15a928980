"""The feed from the latest entry to the first, for whoever asks what happened lately."""

from __future__ import annotations

from collections.abc import Iterator

from roost.model.change import Entry
from roost.store.contract import Store

WINDOW = 2_000  # revisions that are looked at together
ROWS = 64  # transactions that are read at once


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
