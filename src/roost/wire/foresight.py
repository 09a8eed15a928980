"""What is expected to come."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

from msgspec import Meta

from roost.wire.basics import Asked, Wire


class ForesightWish(Asked, frozen=True):
    """What comes, as an operator says, instead of what history tells."""

    arrivals: Annotated[
        Mapping[str, Mapping[str, float]],
        Meta(description="By VM type and priority: how many come in an hour. What is left out does not come."),
    ]


class ExpectedType(Wire, frozen=True):
    """VMs of a type that are expected."""

    type: str
    arrivals: Mapping[str, float]  # by priority: how many come in an hour
    ahead: Sequence[float]  # how many find room before machines of each packing, those with least room first


class ForesightView(Wire, frozen=True):
    """What is expected of the zone."""

    source: str  # history, operator, or none: nothing is foreseen
    at: float | None  # when that was worked out, in seconds since 1970
    items: Sequence[ExpectedType]
