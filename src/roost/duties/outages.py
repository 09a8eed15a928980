"""When machines went down, as the feed tells: for a healer that begins, and did not see it."""

from __future__ import annotations

from roost.model.rows import MachineState
from roost.model.spans import DAY
from roost.store.backwards import Backwards
from roost.store.contract import Store

MOST = 50_000  # revisions that are looked at: in a busy zone these are less than a day


def outages_of(store: Store, last: int, now: float, most: int = MOST) -> dict[str, list[float]]:
    """How many seconds ago machines went down within the last day, up to a revision, as far as that is looked at.

    A time that is yet to come was written by a clock that went wrong: then it was just now.
    """
    look, found = Backwards(store, last, now - DAY), dict[str, list[float]]()
    for _, entry in look.entries(most):
        for change in entry.conditions:
            if (change.field, change.after) == ("state", MachineState.DOWN) and entry.at >= now - DAY:
                found.setdefault(change.machine, []).append(max(0.0, now - entry.at))
    return found
