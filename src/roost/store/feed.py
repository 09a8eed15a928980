"""The feed of a store, as it is read: what was committed, by transaction, in the order of revisions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property

import msgspec

from roost.model.change import Entry


class FeedRow(msgspec.Struct, frozen=True, eq=False, dict=True):
    """The entries of one transaction; they have the revisions `first` to `last`."""

    first: int
    last: int
    agent: str
    round: int
    read: Callable[[], list[Entry]]

    @cached_property
    def entries(self) -> list[Entry]:
        """Read when asked for: an agent knows its own already."""
        return self.read()


class Feed(msgspec.Struct, frozen=True, eq=False):
    """A stretch of the feed, oldest first."""

    rows: Sequence[FeedRow]
    reload: bool = False  # what comes next has been trimmed away: load the zone anew

    def after(self, revision: int) -> Iterable[tuple[int, Entry]]:
        """Each entry beyond a revision, with its own."""
        for row in self.rows:
            for number, entry in enumerate(row.entries, row.first):
                if number > revision:
                    yield number, entry
