"""Machines and racks: what is said of them, and how they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

import msgspec
from msgspec import Meta

from roost.wire.basics import Amount, Asked, FullName, FullNames, NewName, StateName, UpdateDomain, Wire, Word
from roost.wire.tenants import VMView


class MachineChange(Asked, frozen=True):
    """How a machine is from now on; what is left out stays."""

    state: StateName | None = None
    health: Annotated[int, Meta(ge=0, le=100)] | None = None
    failures: Amount | None = None
    versions_behind: Amount | None = None


class NewMachine(Asked, frozen=True):
    """A machine to add; with it, if they are new, its rack and cluster."""

    name: NewName
    datacenter: NewName
    cluster: NewName
    rack: NewName
    generation: FullName
    update_domain: UpdateDomain = 0
    features: Annotated[tuple[NewName, ...], Meta(max_length=31)] = ()
    state: StateName = "ready"
    capacity: Mapping[Word, Amount] = msgspec.field(default_factory=dict)


class NewMachines(Asked, frozen=True):
    """Machines to add: all of them, or none."""

    machines: Annotated[tuple[NewMachine, ...], Meta(min_length=1, max_length=5_000)]


class MachineLine(Wire, frozen=True):
    """A machine: where it stands, how it is, what it holds. Amounts are in the zone's smallest units."""

    machine: str
    cluster: str
    rack: str
    datacenter: str
    hardware: str
    state: str
    health: int
    vms: int
    update_domain: int
    generation: int
    capacity: Mapping[str, int]
    free: Mapping[str, int]


class MachineView(MachineLine, frozen=True):
    """A machine with its VMs."""

    features: Sequence[str]
    failures: int
    versions_behind: int
    running: Sequence[VMView]


class MachinePage(Wire, frozen=True):
    """Machines by name."""

    items: Sequence[MachineLine]
    next: str | None = None


class Heartbeat(Asked, frozen=True):
    """Machines that are alive."""

    machines: FullNames


class Heard(Wire, frozen=True):
    """Whose heartbeats were heard."""

    heard: int
    unknown: Sequence[str] = ()  # machines that the zone does not have


class RackChange(Asked, frozen=True):
    """How all machines of a rack are."""

    state: StateName


class RackDone(Wire, frozen=True):
    """A rack as it is now."""

    rack: str
    machines: int
    state: str
