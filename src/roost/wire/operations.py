"""How the service is."""

from __future__ import annotations

from roost.wire.basics import Wire


class Health(Wire, frozen=True):
    """Whether the process lives, or may be given work; and what of it is not as it was wished."""

    status: str
    detail: str = ""
    problem: str = ""  # why it does not decide by what was activated
