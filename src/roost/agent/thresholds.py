"""The empty machines that clusters keep: what the registry says of them, and where each cluster stands."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from roost.agent.allocator import Allocator
from roost.model.errors import InvalidInput
from roost.model.thresholds import KIND, NONE, PurposeName, Thresholds, of_row
from roost.model.zone import Zone

Source = Literal["registry", "zone", "none"]
_read = msgspec.json.Decoder(Thresholds).decode


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """What a cluster keeps, and what it has."""

    cluster: str
    machines: int
    empty: int  # ready machines without a VM of the highest band
    thresholds: Thresholds
    source: Source  # who says so: an operator, the zone file, nobody

    @property
    def reached(self) -> tuple[PurposeName, ...]:
        """The kinds of requests that the cluster takes no more."""
        return self.thresholds.reached(self.empty)


def read_entry(value: str) -> Thresholds:
    """An entry of the registry."""
    return _read(value)


def check_entry(zone: Zone, cluster: str, value: str) -> None:
    """Refuse an entry that makes no sense for a cluster of the zone."""
    machines = int(zone.clusters[zone.cluster(cluster)]["machines"])
    try:
        read_entry(value).check_size(cluster, machines)
    except msgspec.MsgspecError as error:
        raise InvalidInput("thresholds", str(error), "give new, scale_out and healing as whole numbers") from None


def standings(allocator: Allocator, registry: Mapping[tuple[str, str], str]) -> list[Standing]:
    """Where each cluster stands."""
    found = []
    for name, row in zip(allocator.zone.cluster_names, allocator.view.clusters, strict=True):
        kept = of_row(row["thresholds"])
        source: Source = "registry" if (KIND, name) in registry else "zone" if kept != NONE else "none"
        found.append(
            Standing(
                cluster=name, machines=int(row["machines"]), empty=int(row["empty"][0]), thresholds=kept, source=source
            )
        )
    return found
