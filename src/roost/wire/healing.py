"""VMs whose machine is down, and those that were placed elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta

from roost.wire.basics import Asked, FullNames, Seconds, UpdateDomain, Wire, Word


class UnhealedVM(Wire, frozen=True):
    """A VM on a machine that does not work, which found no other one yet."""

    vm: str
    tenant: str
    type: str
    priority: str
    machine: str  # where it was
    since: float | None = None  # when that was seen, in seconds since 1970
    why: str = ""  # it is not elsewhere
    decision: str = ""  # the key of the last try: explain it by this; empty if that is none of your business


class HealingPage(Wire, frozen=True):
    """VMs that wait to be healed, by name."""

    items: Sequence[UnhealedVM]
    next: str | None = None


class HealedVM(Wire, frozen=True):
    """A VM that was placed again, as its machine did not work."""

    vm: str
    tenant: str
    type: str
    priority: str
    source: str  # where it was
    machine: str  # where it is
    key: str  # explain it by this; empty if that is none of your business
    revision: int = 0
    at: float = 0.0  # seconds since 1970


class HealedPage(Wire, frozen=True):
    """Healings, latest first. A page may be short, or empty, while `next` says that there is more to look at."""

    items: Sequence[HealedVM]
    next: str | None = None


class BandHealings(Wire, frozen=True):
    """The healed VMs of one priority, and how long that took."""

    priority: str
    healed: int
    took: Seconds


class HealingSummary(Wire, frozen=True):
    """Healing in numbers, as far as the feed is kept, or was looked at."""

    waiting: int  # VMs on machines that are down
    machines_down: int
    healed: int  # VMs that were placed again while their machine was down
    bands: Sequence[BandHealings]
    took: Seconds  # from when a machine went down to when its VM was elsewhere
    first: float | None  # when the earliest and the latest of them were
    last: float | None
    whole: bool  # nothing that is asked about was left out
    machines_doubted: int = 0  # they fell silent, but so many at once that nothing is done about them


class YetToUpdate(Asked, frozen=True):
    """Machines that a walk has yet to update: those of these update domains, in one cluster or in all."""

    update_domains: Annotated[tuple[UpdateDomain, ...], Meta(min_length=1, max_length=1_001)]
    cluster: Word = ""


class HealingWish(Asked, frozen=True):
    """VMs that are to be placed again, by machine, rack or name; none: all of those on machines that are down."""

    machines: FullNames = ()
    racks: FullNames = ()
    vms: FullNames = ()
    later: YetToUpdate | None = None  # machines that get some of these VMs only where no other has room


class HealingResult(Wire, frozen=True):
    """What came of it."""

    healed: Sequence[HealedVM]
    waiting: Sequence[UnhealedVM]  # those that found no machine
    evictions: int = 0  # VMs of lower priority that gave way
