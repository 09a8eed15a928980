"""The empty machines that clusters keep: what the registry says of them, and where each cluster stands."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from roost.model.registry import THRESHOLD
from roost.model.thresholds import NONE, PurposeName, Thresholds, of_row
from roost.placing.allocator import Allocator

ThresholdSource = Literal["registry", "zone", "none"]


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """What a cluster keeps, and what it has."""

    cluster: str
    machines: int
    empty: int  # ready machines without a VM of the highest band
    thresholds: Thresholds
    source: ThresholdSource  # who says so: an operator, the zone file, nobody

    @property
    def reached(self) -> tuple[PurposeName, ...]:
        """The kinds of requests that the cluster takes no more."""
        return self.thresholds.reached(self.empty)


def standings(allocator: Allocator, registry: Mapping[tuple[str, str], str]) -> list[Standing]:
    """Where each cluster stands."""
    found = []
    for name, row in zip(allocator.zone.cluster_names, allocator.view.clusters, strict=True):
        kept = of_row(row["thresholds"])
        source: ThresholdSource = "registry" if (THRESHOLD, name) in registry else "zone" if kept != NONE else "none"
        found.append(
            Standing(
                cluster=name, machines=int(row["machines"]), empty=int(row["empty"][0]), thresholds=kept, source=source
            )
        )
    return found
