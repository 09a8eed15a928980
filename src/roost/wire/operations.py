"""How the service is, and what it says when something is refused."""

from __future__ import annotations

from collections.abc import Sequence

from roost.wire.basics import Wire
from roost.wire.decisions import ReasonView, RemedyView


class Seconds(Wire, frozen=True):
    """How long something took, over so many of it."""

    count: int
    mean: float = 0.0
    p50: float = 0.0  # by nearest rank: half of them took no longer
    p90: float = 0.0


class Health(Wire, frozen=True):
    """Whether the process lives, or may be given work; and what of it is not as it was wished."""

    status: str
    detail: str = ""
    problem: str = ""  # why it does not decide by what was activated


class Problem(Wire, frozen=True):
    """What went wrong, after RFC 9457. `code` never changes; `retryable`: the same request may succeed later."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    retryable: bool
    instance: str = ""
    request_id: str = ""
    field: str = ""  # the part of the request that is wrong
    decision: str = ""  # the key of the decision, to explain it by
    reasons: Sequence[ReasonView] = ()
    remedies: Sequence[RemedyView] = ()
    cut_short: bool = False  # there may be more remedies: there was no time to try all
