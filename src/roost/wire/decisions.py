"""Decisions, and why they were made: explanations and the questions that ask for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from msgspec import Meta

from roost.model.availability import Short
from roost.model.request import Constraints, Placement
from roost.wire.basics import MOST_COUNT, Asked, FullName, TenantName, Wire
from roost.wire.problems import ReasonView, RemedyView
from roost.wire.tenants import EvictedVM, VMWishes


class Question(Asked, frozen=True):
    """A request to explain, as it would be decided now; nothing is placed."""

    tenant: TenantName
    vms: VMWishes
    constraints: Constraints | None = None
    vm: Annotated[int, Meta(ge=0, le=MOST_COUNT, description="Which VM of the request, from 0.")] | None = None


class WhyNotQuestion(Asked, frozen=True):
    """The same, about one machine."""

    tenant: TenantName
    vms: VMWishes
    machine: FullName
    constraints: Constraints | None = None
    vm: Annotated[int, Meta(ge=0, le=MOST_COUNT)] | None = None


class StageView(Wire, frozen=True):
    """A rule and what it kept."""

    rule: str
    kind: str
    level: str
    entered: int
    kept: int


class ScoreView(Wire, frozen=True):
    """What one preference says: 0 is best."""

    rule: str
    score: float
    bucket: int


class CandidateView(Wire, frozen=True):
    """A machine that could have it."""

    machine: str
    scores: Sequence[ScoreView]


class ExplanationView(Wire, frozen=True):
    """Everything about one choice."""

    summary: str
    text: str  # all of it, for people
    tenant: str
    vm: int
    vm_type: str
    machine: str | None
    machines: int
    valid: int
    funnel: Sequence[StageView]
    reasons: Sequence[ReasonView]
    candidates: Sequence[CandidateView]
    tied: int
    decided_by: str | None
    failure: str | None
    remedies: Sequence[RemedyView]
    evictions: int = 0  # VMs of lower priority that give way on the machine
    victims: Sequence[str] = ()  # those of them that you may see
    as_good: int = 1  # of the best machines, those among which it was chosen by what has to give way there
    set: str = ""  # the VM's availability set
    waived: Sequence[str] = ()  # what it was not held to, by best effort, as no machine would have done
    sought: bool = False  # it is not the best machine for this VM: only so all VMs of the request found one
    cut_short: bool = False  # there may be more remedies: there was no time to try all


class WhyNotView(Wire, frozen=True):
    """Why one machine does not get a VM."""

    machine: str
    verdict: str
    rule: str | None
    reason: str
    winner: str | None


class DecisionView(Wire, frozen=True):
    """What came of a key, and how."""

    key: str
    outcome: str
    at: float
    by: str
    what: Mapping[str, Any]  # the operation
    placed: Sequence[Placement]
    agent: str
    round: int
    policy: str
    retries: int
    hits: int
    updated: int
    waited_us: int
    decided_us: int
    avoided_conflict: bool
    purpose: str  # of a request to place: new, scale_out or healing
    evictions: int = 0  # VMs of lower priority that gave way
    evicted: Sequence[EvictedVM] = ()  # those of them that you may see
    short: Sequence[Short] = ()  # what best effort could not reach


class DecisionPage(Wire, frozen=True):
    """Decisions, latest first."""

    items: Sequence[DecisionView]
    next: str | None = None
