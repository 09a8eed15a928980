"""The re-checks of one store that remember rows: one for each that agents hand over."""

from __future__ import annotations

from weakref import WeakKeyDictionary

from roost.store.recheck import Recheck, StandingRecheck


class RememberedRechecks:
    """Finds the re-check that remembers. For whoever commits one group at a time, and gives each row a new version."""

    def __init__(self) -> None:
        self._known: WeakKeyDictionary[Recheck, StandingRecheck] = WeakKeyDictionary()
        self._last: tuple[Recheck | None, StandingRecheck | None] = (None, None)

    def of(self, recheck: Recheck) -> StandingRecheck:
        """The one for a re-check; mostly the same as for the last commit."""
        known, standing = self._last
        if known is not recheck or standing is None:
            standing = self._known.get(recheck)
            if standing is None:
                standing = self._known[recheck] = recheck.standing()
            self._last = recheck, standing
        return standing
