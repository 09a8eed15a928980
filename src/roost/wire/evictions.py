"""VMs that had to give way, and those of them that wait to be placed again."""

from __future__ import annotations

from collections.abc import Sequence

from roost.wire.basics import Asked, FullNames, Seconds, Wire


class EvictionView(Wire, frozen=True):
    """A VM that had to give way."""

    revision: int
    at: float  # seconds since 1970
    vm: str
    tenant: str
    type: str
    priority: str
    machine: str
    cause_priority: str  # the highest priority of what was placed instead
    cause: str  # the key of that, and whose it is; empty if that is none of your business
    cause_tenant: str
    grace: float  # seconds that it was left to finish
    ran: float | None  # seconds since it was first placed, if that is known
    requeue: bool  # it wants to be placed again


class EvictionPage(Wire, frozen=True):
    """Evictions, latest first. A page may be short, or empty, while `next` says that there is more to look at."""

    items: Sequence[EvictionView]
    next: str | None = None


class BandEvictions(Wire, frozen=True):
    """The evicted VMs of one priority, and how long they had run."""

    priority: str
    evictions: int
    ran: Seconds


class CauseEvictions(Wire, frozen=True):
    """What VMs of one priority made give way."""

    priority: str
    requests: int
    evictions: int


class EvictionSummary(Wire, frozen=True):
    """Evictions in numbers, as far as the feed is kept, or was looked at."""

    evictions: int
    requests: int  # for which something had to give way
    bands: Sequence[BandEvictions]
    causes: Sequence[CauseEvictions]
    ran: Seconds  # of all of them
    first: float | None  # when the earliest and the latest of them were
    last: float | None
    whole: bool  # nothing that is asked about was left out


class EvictionWish(Asked, frozen=True):
    """VMs that are to be taken off their machines, though nobody needs their room."""

    vms: FullNames


class EvictionDone(Wire, frozen=True):
    """VMs that were taken off their machines."""

    evicted: Sequence[str]
    grace: float = 0.0  # seconds that they are left to finish


class WaitingVM(Wire, frozen=True):
    """A VM that had to give way and waits to be placed again."""

    vm: str
    tenant: str
    type: str
    priority: str
    since: float  # when it had to give way, in seconds since 1970
    cause: str  # the key of what was placed instead; empty if that is none of your business


class WaitingPage(Wire, frozen=True):
    """VMs that wait, by name."""

    items: Sequence[WaitingVM]
    next: str | None = None
