"""How many machines clusters keep empty."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta

from roost.wire.basics import Amount, Asked, Wire


class ThresholdWish(Asked, frozen=True):
    """How many empty machines a cluster keeps from each kind of request: it stops there. 0: it never stops for that."""

    new: Annotated[Amount, Meta(description="Where new deployments stop; at least `scale_out`.")] = 0
    scale_out: Annotated[Amount, Meta(description="Where scale-outs stop; at least `healing`.")] = 0
    healing: Annotated[Amount, Meta(description="Where healing and moves stop.")] = 0


class ThresholdView(Wire, frozen=True):
    """What a cluster keeps and what it has."""

    cluster: str
    machines: int
    empty: int  # ready machines without a VM of the highest band
    new: int
    scale_out: int
    healing: int
    source: str  # registry (set by an operator), zone (the zone file), or none
    reached: Sequence[str]  # the kinds of requests that it takes no more


class ThresholdList(Wire, frozen=True):
    """The thresholds of all clusters."""

    items: Sequence[ThresholdView]


class ThresholdTargets(Asked, frozen=True):
    """How often healing and scale-outs may fail for want of empty machines, and what history does not tell."""

    # What is wrong with a number is said by `roost.admission.thresholds.Targets`, with what would be right.
    healing: Annotated[
        float, Meta(description="Share of the time in which more machines are down than are kept; above 0, below 1.")
    ] = 0.001
    scale_out: Annotated[
        float, Meta(description="Share of the windows in which tenants grow by more than is kept; above 0, below 1.")
    ] = 0.01
    failures_per_day: Annotated[
        float | None, Meta(description="Of a machine, a day that it is up; as often as was seen, if left out.")
    ] = None
    repair_hours: Annotated[float | None, Meta(description="That it is down; as long as was seen, if left out.")] = None
    window_hours: Annotated[
        float, Meta(description="For which tenants can grow after new deployments have stopped; 0.1 at least.")
    ] = 24.0
    turn_space: Annotated[int, Meta(description="Machines that are kept for moves; 0 at least.")] = 0


class ComputedThresholds(Wire, frozen=True):
    """Thresholds of a cluster that history asks for, and what they rest on."""

    cluster: str
    machines: int
    new: int
    scale_out: int
    healing: int
    takes_new: bool  # false: all of its machines are kept from new deployments, so it would never take one
    for_healing: int  # machines that are kept for it
    for_growth: int
    failures: int  # of machines of this cluster
    failures_per_day: float  # of a machine of this hardware
    repair_hours: float
    windows: int
    most_growth: int  # machines that scale-outs would have filled, in the window with most of them


class ThresholdPlan(Wire, frozen=True):
    """What was computed, from what happened between two times."""

    since: float
    until: float
    scale_outs: int
    refused: int  # of these
    items: Sequence[ComputedThresholds]
