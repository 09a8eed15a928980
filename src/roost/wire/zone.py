"""The zone itself, and how much more of each VM type fits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from roost.wire.basics import Wire


class ResourceView(Wire, frozen=True):
    """A resource of the zone: amounts are given in parts of its unit."""

    name: str
    unit: str
    per_unit: int


class VMTypeView(Wire, frozen=True):
    """A VM type and what it takes on each hardware generation."""

    type: str
    demand: Mapping[str, Mapping[str, int]]
    requires: Sequence[str]


class ZoneView(Wire, frozen=True):
    """The zone at a glance."""

    zone: str
    revision: int
    machines: int
    empty_machines: int
    clusters: int
    tenants: int
    vms: int
    utilisation: float
    packing_density: float
    bands: Sequence[str]
    resources: Sequence[ResourceView]
    vm_types: Sequence[VMTypeView]
    policy: str
    agent: str


class TypeCapacity(Wire, frozen=True):
    """How many more VMs of a type fit now, if nothing else came, and where."""

    type: str
    count: int
    machines: int  # that would take one
    clusters: Mapping[str, int]


class CapacityView(Wire, frozen=True):
    """How much more fits, at a revision."""

    revision: int
    priority: str
    types: Sequence[TypeCapacity]
