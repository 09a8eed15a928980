"""What a worker can be asked to do, and what it answers. Each has a JSON form, told apart by `do`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from roost.model.availability import Short, Spread
from roost.model.inventory import MachineSpec
from roost.model.request import Placement, Request
from roost.store.contract import EXISTING, NO_PREMISE, Premise


class _Operation(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, tag_field="do", gc=False):
    """Something to do. What it rests on is checked when it is committed."""

    @property
    def premise(self) -> Premise:
        """What whoever asks was told of the tenant."""
        return NO_PREMISE


class PlaceVMs(_Operation, frozen=True, tag="place"):
    """Place VMs of a tenant: create it, or scale it out."""

    request: Request
    generation: int | None = None  # the tenant must have this one; 0: it must have no VMs
    existing: bool = False  # the tenant must have VMs
    healing: bool = False  # the VMs ran until their machine failed
    requeued: bool = False  # they waited for room since they had to give way; nobody from outside can say so

    @property
    def premise(self) -> Premise:
        """The tenant is new, or has VMs, or is at a generation; or it is all the same."""
        return Premise(self.existing, self.generation)

    def request_now(self, exists: bool) -> Request:
        """What is asked for: VMs that waited go by the constraints that their tenant has now, if it has VMs."""
        return msgspec.structs.replace(self.request, constraints=None) if self.requeued and exists else self.request


class ReleaseVMs(_Operation, frozen=True, tag="release"):
    """Take VMs of a tenant away: scale it in, or, without names, delete it."""

    tenant: str
    vms: tuple[str, ...] = ()
    generation: int | None = None  # the tenant must have this one

    @property
    def premise(self) -> Premise:
        """The tenant has VMs; but it may be deleted when all of them wait to be placed again."""
        return Premise(bool(self.vms) or self.generation is not None, self.generation)


class EvictVMs(_Operation, frozen=True, tag="evict"):
    """Let VMs of a tenant give way to nobody: they are off their machines, and wait if they want to be placed again."""

    tenant: str
    vms: tuple[str, ...]

    @property
    def premise(self) -> Premise:
        """The tenant has VMs."""
        return EXISTING


class Later(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, gc=False):
    """Machines that are yet to be updated: those of some update domains, in one cluster or in all."""

    update_domains: tuple[int, ...]
    cluster: str = ""


class HealVMs(_Operation, frozen=True, tag="heal"):
    """Place VMs of a tenant again whose machines are not ready; all of them, or none."""

    tenant: str
    vms: tuple[str, ...]
    aside: Later | None = None  # none goes to these, and nobody has to give way: it is tried first, then without it

    @property
    def premise(self) -> Premise:
        """The tenant has VMs."""
        return EXISTING


class MoveVM(_Operation, frozen=True, tag="move"):
    """Bring a VM to another machine: at once, or with the target held for it until its memory is copied."""

    tenant: str
    vm: str
    machine: str  # the target, in every step
    step: Literal["hold", "finish", "cancel", "whole"] = "whole"

    @property
    def premise(self) -> Premise:
        """The tenant has VMs."""
        return EXISTING


class SetMachine(_Operation, frozen=True, tag="machine"):
    """Say how a machine is."""

    machine: str
    state: Literal["ready", "draining", "down", "quarantined", ""] = ""
    health: int | None = None
    failures: int | None = None
    versions_behind: int | None = None
    generation: int | None = None  # the machine must have this one


class CountFailures(_Operation, frozen=True, tag="count_failures"):
    """Count the failures of a machine again, as of now: they weigh less as time goes by."""

    machine: str


class SetCluster(_Operation, frozen=True, tag="cluster"):
    """Take a cluster out of use for new VMs, or back."""

    cluster: str
    quarantined: bool


class AddMachines(_Operation, frozen=True, tag="add_machines"):
    """Add machines, and with them racks and clusters."""

    machines: tuple[MachineSpec, ...]
    conditions: Mapping[str, Mapping[str, int]] = {}


class RemoveMachines(_Operation, frozen=True, tag="remove_machines"):
    """Remove machines that run nothing, or a whole cluster of them."""

    machines: tuple[str, ...] = ()
    cluster: str = ""


class SetEntry(_Operation, frozen=True, tag="entry"):
    """Set an entry of the zone's registry: a policy, which of them is in force, a token. No value: remove it."""

    kind: str
    name: str
    value: str | None = None
    new: bool = False  # there must be none of this name yet
    instead_of: str | None = None  # if given, it must be the present value


Operation = (
    PlaceVMs
    | ReleaseVMs
    | EvictVMs
    | HealVMs
    | MoveVM
    | SetMachine
    | CountFailures
    | SetCluster
    | AddMachines
    | RemoveMachines
    | SetEntry
)
Status = Literal["done", "declined", "conflicts", "invalid", "unavailable"]


class Evicted(msgspec.Struct, frozen=True, gc=False):
    """A VM that gave way to what was placed."""

    vm: str
    tenant: str
    type: str
    priority: str
    machine: str


class Answer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """What came of an operation. `done` is durable; anything else changed nothing, unless the store is unavailable."""

    key: str
    status: Status
    placements: tuple[Placement, ...] = ()
    evicted: tuple[Evicted, ...] = ()  # what gave way to them
    short: tuple[Short, ...] = ()  # what best effort could not reach
    spread: tuple[Spread, ...] = ()  # how VMs of the tenant lie that are held to any terms
    detail: str = ""
    code: str = ""  # of the error, if it is invalid
    where: str = ""  # the part of the operation that the error is about
    generation: int = 0  # of the tenant or the machine, afterwards
    replayed: bool = False  # it was done before, under the same key
    retries: int = 0
    waited_us: int = 0  # before the deciding try
    decided_us: int = 0
    committed_us: int = 0  # from the decision to the store's answer

    @property
    def ok(self) -> bool:
        """Whether it was done."""
        return self.status == "done"
