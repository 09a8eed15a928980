"""Keys for those who give none: by a key a store knows what it was asked before."""

import os
import time

LENGTH, AT_ONCE = 12, 512  # digits of a lot, and how many lots are drawn at once

_lots: list[str] = []
os.register_at_fork(after_in_child=_lots.clear)  # nobody draws the same


def new_key(namespace: str = "") -> str:
    """A key that nobody else has. Ordered by time: keys at random would touch a page of a store's index each."""
    made = f"{time.time_ns() // 1_000:013x}{_lot()}"
    return f"{namespace}:{made}" if namespace else made


def _lot() -> str:
    """Random digits. They are drawn many at a time: whoever asks the system lets all other threads go first."""
    try:
        return _lots.pop()
    except IndexError:
        drawn = os.urandom(LENGTH // 2 * AT_ONCE).hex()
        first, *rest = [drawn[at : at + LENGTH] for at in range(0, len(drawn), LENGTH)]
        _lots.extend(rest)
        return first
