"""The zone as it was: the tables, and the feed undone back to a revision."""

from __future__ import annotations

from collections.abc import Iterator

from roost.model.change import Entry
from roost.model.errors import InvalidInput
from roost.store.contract import Store
from roost.store.ledger import Ledger


def entries_between(store: Store, since: int, until: int) -> Iterator[tuple[int, Entry]]:
    """The entries after one revision, up to another, each with its own."""
    while since < until:
        feed = store.changes(since)
        if feed.reload or not feed.rows:
            raise InvalidInput("revision", f"{since} is too long ago: the feed was trimmed", "keep more revisions")
        for number, entry in feed.after(since):
            if number <= until:
                yield number, entry
        since = feed.rows[-1].last


def ledger_at(store: Store, revision: int) -> Ledger:
    """Everything as of a revision that the feed still reaches."""
    ledger = store.load()
    if not 0 <= revision <= ledger.revision:
        raise InvalidInput("revision", f"is {revision}", f"the store is at {ledger.revision}")
    for _, entry in reversed(list(entries_between(store, revision, ledger.revision))):
        ledger.undo(entry)
    return ledger
