"""Tenants and their VMs: what is asked for, and what is answered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

from msgspec import Meta

from roost.model.availability import Short, Spread
from roost.model.request import UNCONSTRAINED, Constraints, Placement
from roost.wire.basics import LONGEST_KEY, MOST_COUNT, Asked, FullName, MoveStepName, TenantName, VMName, Wire, Word
from roost.wire.problems import Problem


class VMWish(Asked, frozen=True):
    """VMs of one type that are wanted, and what they ask of their machines."""

    type: Annotated[str, Meta(min_length=1, max_length=200, description="A VM type of the zone.", examples=["D2"])]
    count: Annotated[int, Meta(ge=1, le=MOST_COUNT)] = 1
    name: VMName = ""
    priority: Word = ""
    isolated: bool = False
    colocation: Word = ""
    requires: Annotated[tuple[Word, ...], Meta(max_length=31)] = ()
    datacenter: Word = ""
    cluster: Word = ""
    generation: Word = ""
    traits: Mapping[Word, Annotated[int, Meta(ge=-(2**53), le=2**53)]] = {}
    requeue: bool = False  # placed again under its name, as soon as there is room, after it had to give way
    set: Word = ""  # the availability set of its tenant that it is in


VMWishes = Annotated[tuple[VMWish, ...], Meta(min_length=1, max_length=10_000)]


class TenantWish(Asked, frozen=True):
    """A tenant to create with its first VMs: all of them, or none."""

    tenant: TenantName
    vms: VMWishes
    constraints: Constraints = UNCONSTRAINED


class ScaleOut(Asked, frozen=True):
    """More VMs for a tenant: all of them, or none. Its constraints stay as they are."""

    vms: VMWishes


class ScaleIn(Asked, frozen=True):
    """VMs of a tenant to release: all of them, or none."""

    vms: Annotated[tuple[FullName, ...], Meta(min_length=1, max_length=10_000)]


class VMMove(Asked, frozen=True):
    """Where a VM is to run: at once (`whole`), or in steps: `hold` room there, then `finish` or `cancel` the move."""

    machine: Annotated[str, Meta(min_length=1, max_length=200, description="The target, in every step.")]
    step: MoveStepName = "whole"


class BatchItem(Asked, frozen=True):
    """One request of a batch: a tenant to create, or, with `scale_out`, to scale out."""

    tenant: TenantName
    vms: VMWishes
    constraints: Constraints = UNCONSTRAINED
    scale_out: bool = False
    key: Annotated[str, Meta(max_length=LONGEST_KEY, description="As the Idempotency-Key of a single request.")] = ""


class Batch(Asked, frozen=True):
    """Many requests in one call. Each is done or not done by itself."""

    requests: Annotated[tuple[BatchItem, ...], Meta(min_length=1, max_length=10_000)]


class EvictedVM(Wire, frozen=True, gc=False):
    """A VM that gave way to others of a higher priority."""

    vm: str
    tenant: str
    type: str
    priority: str
    machine: str


class Placed(Wire, frozen=True):
    """What was placed."""

    tenant: str
    generation: int
    vms: Sequence[Placement]
    decision: str  # its key: explain it by this
    retries: int = 0
    replayed: bool = False  # it was done before, under the same key
    dry_run: bool = False  # nothing was done
    evictions: int = 0  # VMs of lower priority that gave way
    evicted: Sequence[EvictedVM] = ()  # those of them that you may see
    short: Sequence[Short] = ()  # what best effort could not reach
    spread: Sequence[Spread] = ()  # how the tenant's VMs lie now, of those that are held to constraints or a set


class Done(Wire, frozen=True):
    """A change that places nothing is done."""

    decision: str
    generation: int = 0  # of what was changed; 0: it is gone
    replayed: bool = False
    dry_run: bool = False


class BatchResult(Wire, frozen=True):
    """What came of one request of a batch: its status, and what was placed or the problem."""

    status: int
    placed: Placed | None = None
    problem: Problem | None = None


class BatchResults(Wire, frozen=True):
    """In the order of the requests."""

    results: Sequence[BatchResult]
    done: int
    failed: int


class VMView(Wire, frozen=True):
    """A VM that runs."""

    vm: str
    tenant: str
    type: str
    machine: str
    priority: str = ""
    set: str = ""  # its availability set
    since: float = 0.0  # when it was first placed, in seconds since 1970; 0: nobody wrote that down
    lost: bool = False  # its machine is down: it waits to be placed elsewhere, see /v1/healing


class VMDetail(VMView, frozen=True):
    """A VM, and the decision that put it where it is."""

    decision: str = ""  # its key: explain it by this; empty if it is forgotten, or none of your business
    which: int | None = None  # of the VMs of that request it is, from 0


class TenantView(Wire, frozen=True):
    """A tenant with its VMs."""

    tenant: str
    generation: int
    constraints: Constraints
    vms: Sequence[VMView]
    waiting: Sequence[str] = ()  # VMs that had to give way and wait for room, see /v1/waiting


class TenantLine(Wire, frozen=True):
    """A tenant in a list; one of which all VMs wait for room has no generation."""

    tenant: str
    generation: int
    vms: int
    waiting: int = 0  # VMs that had to give way and wait for room, besides


class TenantPage(Wire, frozen=True):
    """Tenants by name; `next` is the cursor of the next page."""

    items: Sequence[TenantLine]
    next: str | None = None


class VMPage(Wire, frozen=True):
    """VMs by name."""

    items: Sequence[VMView]
    next: str | None = None
