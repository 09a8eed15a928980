"""How the service is."""

from __future__ import annotations

from roost.wire.basics import Wire


class DutyHealth(Wire, frozen=True):
    """How something fares that is seen to beside the requests."""

    name: str
    runs: int
    failures: int
    seconds_ago: float  # that its last step began; 0 if it had none yet
    took_seconds: float  # that step
    period_seconds: float = 0.0  # between two steps at the least; 0: it has its turn all the time
    last_error: str = ""  # what its last step failed with, if it did; the log says more


class Health(Wire, frozen=True):
    """Whether the process lives, or may be given work; and what of it is not as it was wished."""

    status: str
    detail: str = ""
    problem: str = ""  # why it does not decide by what was activated
    duties: tuple[DutyHealth, ...] = ()  # of a service that is ready; one that fails does not make it unready
