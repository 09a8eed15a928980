"""How often a machine failed of late: each failure weighs half as much after three weeks.

    went from ready to down ──▶ weight + 1 ──▶ halves every 21 days ──▶ below a half: forgotten
                                     └── rounded: what rows say, and rules read

A weight that halves in 21 days remembers as much as a window of 30 days does (21 / ln 2), so the rounded weight is the
number of failures of a month; but nothing has to be known of each of them.
"""

from __future__ import annotations

import math

import msgspec

from roost.model.spans import DAY

HALF_LIFE = 21 * DAY


class Failures(msgspec.Struct, frozen=True, gc=False):
    """The failures of a machine that were counted, as of a moment."""

    weight: float = 0.0
    at: float = 0.0  # seconds since 1970

    @property
    def number(self) -> int:
        """What counts."""
        return math.floor(self.weight + 0.5)

    @property
    def fewer_at(self) -> float:
        """When one fewer counts, if none comes."""
        if not self.number:
            return math.inf
        return self.at + HALF_LIFE * math.log2(self.weight / (self.number - 0.5))

    def faded(self, now: float) -> Failures:
        """What is left of them. A clock that went back makes nobody forget, or remember."""
        age = max(0.0, now - self.at)
        return Failures(self.weight * 0.5 ** (age / HALF_LIFE), self.at + age)

    def one_more(self) -> Failures:
        """With another one, just now."""
        return Failures(self.weight + 1.0, self.at)

    @property
    def entry(self) -> str | None:
        """As the registry keeps them; None: there is nothing to keep."""
        return msgspec.json.encode(self).decode() if self.number else None


NONE = Failures()
_read = msgspec.json.Decoder(Failures).decode


def read_entry(value: str | None) -> Failures:
    """What an entry of the registry says; none, or one that makes no sense: no failure was counted."""
    try:
        return NONE if value is None else _read(value)
    except msgspec.MsgspecError:
        return NONE
