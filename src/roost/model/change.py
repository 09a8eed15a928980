"""What the change feed says: each entry is one commit, whole, with all that is needed to undo it again."""

from __future__ import annotations

import msgspec

from roost.model.inventory import MachineSpec
from roost.model.request import UNCONSTRAINED, VM, Constraints


class PlacedVM(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A VM on a machine. The name stands beside the VM, not in it."""

    vm: str
    spec: VM
    machine: str
    since: float = 0.0  # when it was first placed, in seconds since 1970; 0: nobody wrote that down


class Eviction(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Why VMs had to give way: others, of a higher priority, needed their room, or an operator said so."""

    tenant: str  # whose VMs they are; empty: nobody's
    priority: str  # the highest band among those; empty: there are none
    grace: float = 0.0  # seconds that an evicted VM is left to finish before its host stops it


class ConditionChange(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A field of a machine's condition (state, health, failures, versions_behind), before and after."""

    machine: str
    field: str
    before: int
    after: int


class QuarantineChange(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A cluster taken out of use for new VMs, or back."""

    cluster: str
    before: bool
    after: bool


class Registered(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An entry of the zone's registry, before and after; None: there is none."""

    kind: str
    name: str
    before: str | None
    after: str | None


class Entry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """One commit. Entries are numbered by the feed: the number is the revision of the zone after the entry."""

    key: str  # the idempotency key of what was asked for
    by: str = ""  # who asked
    at: float = 0.0  # when it was decided, in seconds since 1970
    tenant: str = ""
    constraints: Constraints = UNCONSTRAINED  # the tenant's
    before: int = 0  # the tenant's stamp before and after this entry; 0: it has no VMs
    after: int = 0
    placed: tuple[PlacedVM, ...] = ()
    released: tuple[PlacedVM, ...] = ()
    conditions: tuple[ConditionChange, ...] = ()
    quarantines: tuple[QuarantineChange, ...] = ()
    added: tuple[MachineSpec, ...] = ()
    removed: tuple[MachineSpec, ...] = ()
    registered: tuple[Registered, ...] = ()
    eviction: Eviction | None = None  # what was released had to give way; `key` is of what was placed instead
    versions: dict[str, int] = {}  # of each machine touched, after this entry

    @property
    def reshapes(self) -> bool:
        """Whether the zone has other machines afterwards."""
        return bool(self.added or self.removed)

    @property
    def brief(self) -> bool:
        """Whether it says which VMs of a tenant come and go, and nothing else."""
        more = self.conditions or self.quarantines or self.added or self.removed or self.registered
        return not (more or self.eviction)


ENTRIES = msgspec.json.Decoder(list[Entry])
