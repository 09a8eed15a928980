"""Maintenance walks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta

from roost.wire.basics import Asked, FullNames, Wire


class WalkHold(Asked, frozen=True):
    """Somebody walks through the update domains of a zone, and goes on."""

    walk: Annotated[str, Meta(min_length=1, max_length=64, description="Its own name for itself, which no other has.")]
    owner: Annotated[str, Meta(min_length=1, max_length=200, description="Who and where that is, for people.")]
    seconds: Annotated[float, Meta(ge=1, le=3_600, description="It says so more often than this.")] = 60.0
    domain: Annotated[int, Meta(ge=0)] | None = None  # where it is
    machines: FullNames | None = None  # that it has taken out of use by now; as it said before, if left out
    take_over: bool = False  # from another that has ended without a word


class WalkView(Wire, frozen=True):
    """A walk through the update domains of a zone."""

    walk: str
    owner: str
    by: str  # the token that it uses
    since: float  # seconds since 1970
    seconds: float  # that it may be silent
    silent: float  # seconds since it was last heard of
    domain: int | None = None
    machines: Sequence[str] = ()  # that it, or another from which it took over, has taken out of use
