"""Policies: their text, which of them decide, what comes of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta

from roost.model.stored import Activated, Shadowed
from roost.wire.basics import Asked, FullName, Wire, Word


class PolicyText(Asked, frozen=True):
    """A policy as YAML. Only rules that come with Roost can be named."""

    text: Annotated[str, Meta(min_length=1, max_length=200_000)]


class PolicyView(Wire, frozen=True):
    """A policy."""

    name: str
    version: int
    digest: str
    description: str
    rules: int
    shipped: bool
    share: float  # of the tenants that it decides for
    text: str = ""
    problem: str = ""  # why the worker that answers cannot decide by it


class Policies(Wire, frozen=True):
    """All policies."""

    items: Sequence[PolicyView]


class Activation(Asked, frozen=True):
    """Which policy decides; with `against`, another one decides for a share of the tenants."""

    policy: FullName
    against: Word = ""
    share: Annotated[float, Meta(ge=0.0, le=1.0)] = 0.0


class Active(Activated, Wire, frozen=True):
    """The policy in force, with its digest; and the one it is compared with."""


class ShadowWish(Asked, frozen=True):
    """A policy to decide beside the one in force, for a share of the tenants, without anything being placed by it."""

    policy: FullName
    share: Annotated[float, Meta(gt=0.0, le=1.0)] = 1.0


class ShadowPolicy(Shadowed, Wire, frozen=True):
    """The policy that decides beside the one in force; the name is empty if there is none."""


class DifferenceView(Wire, frozen=True):
    """A VM for which the other policy would have decided otherwise, and why."""

    at: float
    tenant: str
    vm: int
    vm_type: str
    kind: str
    rule: str
    machine: str
    other_machine: str
    kept_by: str
    text: str


class DifferenceCount(Wire, frozen=True):
    """Decisions that a rule changes."""

    kind: str
    rule: str
    decisions: int


class Differences(Wire, frozen=True):
    """What a policy in the shadow would have decided otherwise, of what the worker that answers decided."""

    shadow: ShadowPolicy
    decisions: int
    changed: int
    skipped: int  # decisions that there was no time to look at
    counts: Sequence[DifferenceCount]
    latest: Sequence[DifferenceView]
    problem: str = ""  # why it is heard no more


class PolicyResultView(Wire, frozen=True):
    """What a policy did since a time."""

    policy: str
    digest: str
    requests: int
    declined: int
    vms: int
    retries: int
    mean_decided_us: float
    p99_decided_us: int


class PolicyResults(Wire, frozen=True):
    """Side by side."""

    since: float
    results: Sequence[PolicyResultView]
