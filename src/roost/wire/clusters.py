"""Clusters: what is said of them, and how they are."""

from __future__ import annotations

from collections.abc import Sequence

from roost.wire.basics import Asked, Wire


class ClusterChange(Asked, frozen=True):
    """Take a cluster out of use for new VMs, or back."""

    quarantined: bool


class ClusterView(Wire, frozen=True):
    """A cluster and how full it is, by its first resource."""

    cluster: str
    datacenter: str
    hardware: str
    racks: int
    machines: int
    ready: int
    empty: int
    vms: int
    utilisation: float
    quarantined: bool


class Clusters(Wire, frozen=True):
    """All clusters."""

    items: Sequence[ClusterView]
