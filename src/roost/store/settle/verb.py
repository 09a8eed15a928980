"""What a store verb is: the rows that its proposals need, and how one of them is settled.

    needs(proposal, names)       puts the names of all rows that the proposal may read or change with those of its group
    settle(proposal, settling)   changes the rows, or raises and changes none

`settle` raises `LostRace` if what the proposal rests on has changed, and `InvalidInput` if it can never be done. What
it puts on machines it has admitted (`settling.admit`), once all else holds and before it changes a row. Then it tells
the feed (`settling.enter`), remembers the key (`settling.decide`), and says what came of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from roost.store.contract import Outcome
from roost.store.settle.rows import Names
from roost.store.settle.settling import Settling


class StoreVerb(msgspec.Struct, frozen=True):
    """Something that a store can be asked to do. A module of this package each, and a line of the table."""

    summary: str
    needs: Callable[[Any, Names], None]
    settle: Callable[[Any, Settling], Outcome]
