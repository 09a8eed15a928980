"""What changes no row: a request that was refused, and the question whether a key was answered before."""

from __future__ import annotations

from roost.store.contract import Ask, Committed, Decline, Outcome
from roost.store.settle.rows import Names
from roost.store.settle.settling import Settling


def needs(_proposal: Decline | Ask, _names: Names) -> None:
    """Nothing but what is known of its key, which is read anyway."""


def settle_declined(proposal: Decline, settling: Settling) -> Outcome:
    """Remember it: why a request was refused can be asked for later."""
    settling.decide(proposal, outcome="declined")
    return Committed(changed=False)


def settle_asked(_proposal: Ask, _settling: Settling) -> Outcome:
    """The key was not answered, else it would have been by now."""
    return Committed(changed=False)
