"""What all operations have in common, and what is answered. Each has a JSON form, told apart by `do`: see `verbs`."""

from __future__ import annotations

from typing import Literal

import msgspec

from roost.model.availability import Short, Spread
from roost.model.request import Placement
from roost.store.contract import NO_PREMISE, Premise


class Operation(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, tag_field="do", gc=False):
    """Something to do. What it rests on is checked when it is committed."""

    @property
    def premise(self) -> Premise:
        """What whoever asks was told of the tenant."""
        return NO_PREMISE


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
