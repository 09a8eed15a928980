"""What is said when something is refused, and why it was."""

from __future__ import annotations

from collections.abc import Sequence

from roost.wire.basics import Wire


class ReasonView(Wire, frozen=True):
    """Why so many machines are out."""

    text: str
    rule: str
    machines: int


class RemedyView(Wire, frozen=True):
    """A change after which it would fit."""

    kind: str
    text: str
    vms: Sequence[str] = ()
    machine: str | None = None


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
