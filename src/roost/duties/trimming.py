"""Trimming: the store forgets what is older than it has to be remembered.

Every process does; what another one has trimmed already costs next to nothing to look for.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from roost.duties.duty import Pausing, SimpleDuty
from roost.model.spans import DAY

if TYPE_CHECKING:
    from roost.settings import RetentionSection
    from roost.store.contract import Store

NEVER_SECONDS = 600.0  # between looks whether it was turned on meanwhile


class Trimming(SimpleDuty):
    """Trims a store. What is to be remembered can be set anew while it runs."""

    name = "trimming"

    def __init__(self, store: Store, retention: RetentionSection) -> None:
        self._store, self.retention = store, retention

    @property
    def period(self) -> float:
        """As the settings say."""
        return self.retention.every_seconds or NEVER_SECONDS

    def step(self, now: float) -> Pausing | None:
        """Have the store trimmed, unless that is turned off."""
        del now  # the store knows how old things are
        return self._trim() if self.retention.every_seconds else None

    def _trim(self) -> Pausing:
        kept = self.retention
        yield partial(self._store.trim, kept.revisions, kept.decisions_days * DAY)
