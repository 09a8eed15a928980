"""Lists of what happened, from the latest entry of the feed to the first: their pages, and how far is looked."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

from roost.api.problems import Refused
from roost.wire.basics import Seconds

MOST_LISTED = 50_000  # revisions that are looked at for one page
MOST_SUMMED = 500_000  # and for a summary
END = (2**62, 0)  # beyond every revision

PLACE = re.compile(r"([0-9]{1,18})-([0-9]{1,9})\Z", re.ASCII)

FeedPlace = tuple[int, int]  # a revision, and which of the VMs that it is about


def place_of(cursor: str) -> FeedPlace:
    """Where a page begins."""
    if not cursor:
        return END
    if (found := PLACE.match(cursor)) is None:
        raise Refused("roost.invalid_request", "is not the `next` of a page", field="cursor")
    return int(found[1]), int(found[2])


def seconds_of(values: Iterable[float]) -> Seconds:
    """How many, their mean, and the half and the nine tenths of them by nearest rank."""
    ranked = sorted(values)
    if not ranked:
        return Seconds(count=0)

    def rank(share: float) -> float:
        return round(ranked[math.ceil(share * len(ranked)) - 1], 3)

    mean = round(math.fsum(ranked) / len(ranked), 3)
    return Seconds(count=len(ranked), mean=mean, p50=rank(0.5), p90=rank(0.9))
