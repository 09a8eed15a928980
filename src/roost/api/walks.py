"""One walk through a zone's update domains at a time: who has it, and whether that one is still there.

    hold ──▶ registry: walk ──▶ held again and again ──▶ let go
                  │
                  └── not held again for as long as it said ──▶ another may take over, if it says so

Whether it was held again is told by what the registry says of it changing, and how long ago by a clock of this process
that only goes on: no clock that was set makes anybody lose what it has.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from roost.model.stored import StoredWalk

WALK, MACHINES = "walk", "machines"  # the entries: a `StoredWalk`, and what it took out of use, as JSON


_walk, _machines = msgspec.json.Decoder(StoredWalk).decode, msgspec.json.Decoder(tuple[str, ...]).decode


def walk_of(value: str | None) -> StoredWalk | None:
    """What an entry says."""
    return None if value is None else _walk(value)


def machines_of(value: str | None) -> tuple[str, ...]:
    """What an entry says."""
    return () if value is None else _machines(value)


class WalkWatch:
    """Sees that a walk goes on."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock, self._value, self._at = clock, "", clock()

    def look(self, value: str | None) -> None:
        """What the registry says now; called again and again."""
        if (value or "") != self._value:
            self._value, self._at = value or "", self._clock()

    def silent_for(self, value: str) -> float:
        """For how many seconds the registry has said this, as far as this process has seen."""
        self.look(value)
        return self._clock() - self._at
