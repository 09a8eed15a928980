"""What a verb is: all that an agent, the service and workers have to know of a kind of operation, in one value."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from roost.agent.context import Context
from roost.agent.operation import Operation
from roost.agent.ticket import Ticket
from roost.engine.tenant import NOWHERE
from roost.model.errors import InvalidInput, Outdated, UnknownName
from roost.model.request import Request
from roost.model.thresholds import Purpose
from roost.placing.allocator import Allocator
from roost.placing.books import RunningVM, Tenant
from roost.store.contract import Committed, Conflict, Proposal

O = TypeVar("O", bound=Operation)  # noqa: E741 - an operation
Tenants = Mapping[str, Tenant]


class Wanted(msgspec.Struct, frozen=True, gc=False):
    """What an operation wants to have placed."""

    request: Request
    purpose: Purpose | None = None  # unless it follows from the tenant
    leaving: tuple[RunningVM, ...] = ()  # VMs that leave their machines for it
    aside: NDArray[np.int64] = NOWHERE  # machines that are to have none of it
    requeued: bool = False  # it had to give way, and waited


@dataclass(frozen=True)
class Verb(Generic[O]):
    """A kind of operation. Only how it is decided, and an example, have no default."""

    # What to propose to the store. Raises if the operation makes no sense, or has to wait.
    decide: Callable[[Context, O, Ticket], Proposal]
    # One as somebody may ask for it, to be shown.
    example: O
    # Whose turn it takes: one operation of a tenant is under way at a time. Empty: it is about no tenant.
    tenant: Callable[[O], str] = lambda _: ""
    # How many VMs it is about, as far as the copy knows: what it weighs in the queue.
    size: Callable[[O, Tenants], int] = lambda *_: 1
    # Raises what is wrong with what somebody from outside asks: names that it brings in, or what is not theirs to say.
    check: Callable[[O], None] = lambda _: None
    # Raises if what it is about, now at a generation, is not as whoever asks was told. None: see the tenant's premise.
    check_generation: Callable[[O, int], None] | None = None
    # The generation of what it is about, afterwards.
    generation: Callable[[O, Committed], int] = lambda _, outcome: outcome.stamp
    # What to answer when a race was lost and trying again would not help.
    hopeless: Callable[[Conflict], InvalidInput | None] = lambda _: None
    # What it wants to have placed, if it places VMs: its commits and conflicts are counted, and it can be explained.
    wanted: Callable[[Allocator, O], Wanted] | None = None

    @property
    def places(self) -> bool:
        """Whether it places VMs."""
        return self.wanted is not None

    def check_premise(self, operation: O, tenants: Tenants, now: int) -> None:
        """Raise what is to be answered if what it is about, at a generation, is not as whoever asks was told."""
        if self.check_generation is not None:
            self.check_generation(operation, now)
            return
        tenant, premise = self.tenant(operation), operation.premise
        if premise.existing and not now:
            raise UnknownName("tenant", "tenant with VMs", tenant, (name for name in tenants if name != tenant))
        check_generation(f"tenant {tenant}", premise.generation, now)


AnyVerb = Verb[Any]


def of_tenant(operation: Any) -> str:
    """The tenant of an operation that names it."""
    tenant: str = operation.tenant
    return tenant


def named_vms(operation: Any, _: Tenants) -> int:
    """The VMs that an operation names, at the least one."""
    return max(1, len(operation.vms))


def check_generation(what: str, wanted: int | None, now: int) -> None:
    """Raise unless something is at the generation that whoever asks was told; 0: there is no such thing."""
    if wanted is None or wanted == now:
        return
    if wanted == 0:
        raise Outdated("generation", f"{what} exists", "scale it out, or choose another name")
    state = f"is at generation {now}" if now else "does not exist"
    raise Outdated("generation", f"{what} {state}, not {wanted}", "look again, then decide")
