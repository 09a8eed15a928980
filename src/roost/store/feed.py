"""The feed of a store, as it is read: what was committed, by transaction, in the order of revisions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property

import msgspec
from msgspec import Raw

from roost.model.change import ENTRIES, Entry

NOT_SAID = Raw(b"")


class BriefVM(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A `PlacedVM` of which nobody has read what it asks for. VMs that ask for the same are written alike."""

    vm: str
    spec: Raw
    machine: str
    since: float = 0.0


class Brief(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """An `Entry` that says which VMs of a tenant come and go, and nothing else, as nearly all do; read in haste."""

    key: str
    by: str = ""
    at: float = 0.0
    tenant: str = ""
    constraints: Raw = NOT_SAID
    before: int = 0
    after: int = 0
    placed: tuple[BriefVM, ...] = ()
    released: tuple[BriefVM, ...] = ()
    versions: dict[str, int] = {}


_briefs = msgspec.json.Decoder(list[Brief]).decode


class FeedRow(msgspec.Struct, frozen=True, eq=False, dict=True):
    """The entries of one transaction; they have the revisions `first` to `last`."""

    first: int
    last: int
    agent: str
    round: int
    told: str | Sequence[Entry]  # the entries, or as they are written

    @cached_property
    def entries(self) -> Sequence[Entry]:
        """Read when asked for: an agent knows its own already."""
        return ENTRIES.decode(self.told) if isinstance(self.told, str) else self.told

    def briefs(self) -> Sequence[Brief | Entry] | None:
        """The entries, read in haste if they are only written; None if one says more than which VMs come and go."""
        if not isinstance(self.told, str):
            return self.told if all(entry.brief for entry in self.told) else None
        try:
            return _briefs(self.told)
        except msgspec.ValidationError:
            return None


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
