"""What goes over the wire: the JSON forms of the HTTP API, for the server and for its clients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from roost.model.availability import Short, Spread
from roost.model.names import LONGEST, NAME, NAME_OR_NOTHING, TOKEN_NAME
from roost.model.names import REMEDY as NAMING
from roost.model.request import UNCONSTRAINED, Constraints

KEY = r"^[\x21-\x2e\x30-\x7e]*$"  # no slash: a decision is looked up by its key, in a path
MATCH = r'^(W/)?"?[0-9]{1,19}"?$|^\*$'
EVENT = "^[0-9]*$"
FORMS = {  # what to write, in words
    NAME: f"is no name: {NAMING}",
    NAME_OR_NOTHING: f"is no name: {NAMING}",
    TOKEN_NAME: "is no name: use letters, digits, dots and dashes, a letter or digit first",
    KEY: "use printable ASCII without spaces and slashes",
    MATCH: "send the ETag of a response, or *",
    EVENT: "use a revision: digits alone",
}
MOST_COUNT = 100_000
LONGEST_KEY, LONGEST_NAMESPACE = 150, 60  # characters of what a client sends

TenantName = Annotated[
    str,
    Meta(
        pattern=NAME,
        max_length=100,
        description="Chosen by you. Letters, digits, dots, dashes and underscores.",
        examples=["web"],
    ),
]
VMName = Annotated[str, Meta(pattern=NAME_OR_NOTHING, max_length=60, description="The VM becomes TENANT/NAME.")]
NewName = Annotated[str, Meta(pattern=NAME, max_length=LONGEST)]
FullName = Annotated[str, Meta(min_length=1, max_length=200)]
Word = Annotated[str, Meta(max_length=200)]
Names = Annotated[tuple[FullName, ...], Meta(max_length=100_000)]
UpdateDomain = Annotated[int, Meta(ge=0, le=1_000)]
Amount = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Generation = Annotated[int, Meta(ge=0, le=2**62, description="Another one after every change.")]
MachineState = Literal["ready", "draining", "down", "quarantined"]
MoveStep = Literal["hold", "finish", "cancel", "whole"]
Scope = Literal["read", "allocate", "operate", "admin"]


class Wire(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=False):
    """What is answered."""


class Asked(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """What is asked for. A field that nobody knows is refused."""


# ------------------------------------------------------------------------------------------------ tenants and VMs


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


Wishes = Annotated[tuple[VMWish, ...], Meta(min_length=1, max_length=10_000)]


class TenantWish(Asked, frozen=True):
    """A tenant to create with its first VMs: all of them, or none."""

    tenant: TenantName
    vms: Wishes
    constraints: Constraints = UNCONSTRAINED


class ScaleOut(Asked, frozen=True):
    """More VMs for a tenant: all of them, or none. Its constraints stay as they are."""

    vms: Wishes


class ScaleIn(Asked, frozen=True):
    """VMs of a tenant to release: all of them, or none."""

    vms: Annotated[tuple[FullName, ...], Meta(min_length=1, max_length=10_000)]


class VMMove(Asked, frozen=True):
    """Where a VM is to run: at once (`whole`), or in steps: `hold` room there, then `finish` or `cancel` the move."""

    machine: Annotated[str, Meta(min_length=1, max_length=200, description="The target, in every step.")]
    step: MoveStep = "whole"


class BatchItem(Asked, frozen=True):
    """One request of a batch: a tenant to create, or, with `scale_out`, to scale out."""

    tenant: TenantName
    vms: Wishes
    constraints: Constraints = UNCONSTRAINED
    scale_out: bool = False
    key: Annotated[str, Meta(max_length=LONGEST_KEY, description="As the Idempotency-Key of a single request.")] = ""


class Batch(Asked, frozen=True):
    """Many requests in one call. Each is done or not done by itself."""

    requests: Annotated[tuple[BatchItem, ...], Meta(min_length=1, max_length=10_000)]


class Placement(Wire, frozen=True, gc=False):
    """A VM on a machine."""

    vm: str
    type: str
    machine: str


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


# ------------------------------------------------------------------------------------------- machines and clusters


class MachineChange(Asked, frozen=True):
    """How a machine is from now on; what is left out stays."""

    state: MachineState | None = None
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
    state: MachineState = "ready"
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


class ThresholdWish(Asked, frozen=True):
    """How many empty machines a cluster keeps from each kind of request: it stops there. 0: it never stops for that."""

    new: Annotated[Amount, Meta(description="Where new deployments stop; at least `scale_out`.")] = 0
    scale_out: Annotated[Amount, Meta(description="Where scale-outs stop; at least `healing`.")] = 0
    healing: Annotated[Amount, Meta(description="Where healing and moves stop.")] = 0


class ThresholdView(Wire, frozen=True):
    """What a cluster keeps and what it has."""

    cluster: str
    machines: int
    empty: int  # ready machines without a VM of the highest band
    new: int
    scale_out: int
    healing: int
    source: str  # registry (set by an operator), zone (the zone file), or none
    reached: Sequence[str]  # the kinds of requests that it takes no more


class ThresholdList(Wire, frozen=True):
    """The thresholds of all clusters."""

    items: Sequence[ThresholdView]


class ThresholdTargets(Asked, frozen=True):
    """How often healing and scale-outs may fail for want of empty machines, and what history does not tell."""

    # What is wrong with a number is said by `roost.admission.thresholds.Targets`, with what would be right.
    healing: Annotated[
        float, Meta(description="Share of the time in which more machines are down than are kept; above 0, below 1.")
    ] = 0.001
    scale_out: Annotated[
        float, Meta(description="Share of the windows in which tenants grow by more than is kept; above 0, below 1.")
    ] = 0.01
    failures_per_day: Annotated[
        float | None, Meta(description="Of a machine, a day that it is up; as often as was seen, if left out.")
    ] = None
    repair_hours: Annotated[float | None, Meta(description="That it is down; as long as was seen, if left out.")] = None
    window_hours: Annotated[
        float, Meta(description="For which tenants can grow after new deployments have stopped; 0.1 at least.")
    ] = 24.0
    turn_space: Annotated[int, Meta(description="Machines that are kept for moves; 0 at least.")] = 0


class ComputedThresholds(Wire, frozen=True):
    """Thresholds of a cluster that history asks for, and what they rest on."""

    cluster: str
    machines: int
    new: int
    scale_out: int
    healing: int
    takes_new: bool  # false: all of its machines are kept from new deployments, so it would never take one
    for_healing: int  # machines that are kept for it
    for_growth: int
    failures: int  # of machines of this cluster
    failures_per_day: float  # of a machine of this hardware
    repair_hours: float
    windows: int
    most_growth: int  # machines that scale-outs would have filled, in the window with most of them


class ThresholdPlan(Wire, frozen=True):
    """What was computed, from what happened between two times."""

    since: float
    until: float
    scale_outs: int
    refused: int  # of these
    items: Sequence[ComputedThresholds]


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


# ----------------------------------------------------------------------------------------- capacity, explanations


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


class Question(Asked, frozen=True):
    """A request to explain, as it would be decided now; nothing is placed."""

    tenant: TenantName
    vms: Wishes
    constraints: Constraints | None = None
    vm: Annotated[int, Meta(ge=0, le=MOST_COUNT, description="Which VM of the request, from 0.")] | None = None


class WhyNotQuestion(Asked, frozen=True):
    """The same, about one machine."""

    tenant: TenantName
    vms: Wishes
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


class ReasonView(Wire, frozen=True):
    """Why so many machines are out."""

    text: str
    rule: str
    machines: int


class ScoreView(Wire, frozen=True):
    """What one preference says: 0 is best."""

    rule: str
    score: float
    bucket: int


class CandidateView(Wire, frozen=True):
    """A machine that could have it."""

    machine: str
    scores: Sequence[ScoreView]


class RemedyView(Wire, frozen=True):
    """A change after which it would fit."""

    kind: str
    text: str
    vms: Sequence[str] = ()
    machine: str | None = None


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


# ------------------------------------------------------------------------------------------------------- policies


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


class Active(Wire, frozen=True):
    """The policy in force, with its digest; and the one it is compared with."""

    policy: str
    digest: str
    against: str = ""
    against_digest: str = ""
    share: float = 0.0
    since: float = 0.0
    problem: str = ""  # why the worker that answers does not decide by what was activated


class ShadowWish(Asked, frozen=True):
    """A policy to decide beside the one in force, for a share of the tenants, without anything being placed by it."""

    policy: FullName
    share: Annotated[float, Meta(gt=0.0, le=1.0)] = 1.0


class ShadowPolicy(Wire, frozen=True):
    """The policy that decides beside the one in force; the name is empty if there is none."""

    policy: str = ""
    digest: str = ""
    share: float = 0.0
    since: float = 0.0


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


# ------------------------------------------------------------------------------------------------------ evictions


class ForesightWish(Asked, frozen=True):
    """What comes, as an operator says, instead of what history tells."""

    arrivals: Annotated[
        Mapping[str, Mapping[str, float]],
        Meta(description="By VM type and priority: how many come in an hour. What is left out does not come."),
    ]


class ExpectedType(Wire, frozen=True):
    """VMs of a type that are expected."""

    type: str
    arrivals: Mapping[str, float]  # by priority: how many come in an hour
    ahead: Sequence[float]  # how many find room before machines of each packing, those with least room first


class ForesightView(Wire, frozen=True):
    """What is expected of the zone."""

    source: str  # history, operator, or none: nothing is foreseen
    at: float | None  # when that was worked out, in seconds since 1970
    items: Sequence[ExpectedType]


class Seconds(Wire, frozen=True):
    """How long something took, over so many of it."""

    count: int
    mean: float = 0.0
    p50: float = 0.0  # by nearest rank: half of them took no longer
    p90: float = 0.0


class EvictionView(Wire, frozen=True):
    """A VM that had to give way."""

    revision: int
    at: float  # seconds since 1970
    vm: str
    tenant: str
    type: str
    priority: str
    machine: str
    cause_priority: str  # the highest priority of what was placed instead
    cause: str  # the key of that, and whose it is; empty if that is none of your business
    cause_tenant: str
    grace: float  # seconds that it was left to finish
    ran: float | None  # seconds since it was first placed, if that is known
    requeue: bool  # it wants to be placed again


class EvictionPage(Wire, frozen=True):
    """Evictions, latest first. A page may be short, or empty, while `next` says that there is more to look at."""

    items: Sequence[EvictionView]
    next: str | None = None


class BandEvictions(Wire, frozen=True):
    """The evicted VMs of one priority, and how long they had run."""

    priority: str
    evictions: int
    ran: Seconds


class CauseEvictions(Wire, frozen=True):
    """What VMs of one priority made give way."""

    priority: str
    requests: int
    evictions: int


class EvictionSummary(Wire, frozen=True):
    """Evictions in numbers, as far as the feed is kept, or was looked at."""

    evictions: int
    requests: int  # for which something had to give way
    bands: Sequence[BandEvictions]
    causes: Sequence[CauseEvictions]
    ran: Seconds  # of all of them
    first: float | None  # when the earliest and the latest of them were
    last: float | None
    whole: bool  # nothing that is asked about was left out


class EvictionWish(Asked, frozen=True):
    """VMs that are to be taken off their machines, though nobody needs their room."""

    vms: Names


class EvictionDone(Wire, frozen=True):
    """VMs that were taken off their machines."""

    evicted: Sequence[str]
    grace: float = 0.0  # seconds that they are left to finish


class WaitingVM(Wire, frozen=True):
    """A VM that had to give way and waits to be placed again."""

    vm: str
    tenant: str
    type: str
    priority: str
    since: float  # when it had to give way, in seconds since 1970
    cause: str  # the key of what was placed instead; empty if that is none of your business


class WaitingPage(Wire, frozen=True):
    """VMs that wait, by name."""

    items: Sequence[WaitingVM]
    next: str | None = None


# -------------------------------------------------------------------------------------------------------- healing


class UnhealedVM(Wire, frozen=True):
    """A VM on a machine that does not work, which found no other one yet."""

    vm: str
    tenant: str
    type: str
    priority: str
    machine: str  # where it was
    since: float | None = None  # when that was seen, in seconds since 1970
    why: str = ""  # it is not elsewhere
    decision: str = ""  # the key of the last try: explain it by this; empty if that is none of your business


class HealingPage(Wire, frozen=True):
    """VMs that wait to be healed, by name."""

    items: Sequence[UnhealedVM]
    next: str | None = None


class HealedVM(Wire, frozen=True):
    """A VM that was placed again, as its machine did not work."""

    vm: str
    tenant: str
    type: str
    priority: str
    source: str  # where it was
    machine: str  # where it is
    key: str  # explain it by this; empty if that is none of your business
    revision: int = 0
    at: float = 0.0  # seconds since 1970


class HealedPage(Wire, frozen=True):
    """Healings, latest first. A page may be short, or empty, while `next` says that there is more to look at."""

    items: Sequence[HealedVM]
    next: str | None = None


class BandHealings(Wire, frozen=True):
    """The healed VMs of one priority, and how long that took."""

    priority: str
    healed: int
    took: Seconds


class HealingSummary(Wire, frozen=True):
    """Healing in numbers, as far as the feed is kept, or was looked at."""

    waiting: int  # VMs on machines that are down
    machines_down: int
    healed: int  # VMs that were placed again while their machine was down
    bands: Sequence[BandHealings]
    took: Seconds  # from when a machine went down to when its VM was elsewhere
    first: float | None  # when the earliest and the latest of them were
    last: float | None
    whole: bool  # nothing that is asked about was left out
    machines_doubted: int = 0  # they fell silent, but so many at once that nothing is done about them


class YetToUpdate(Asked, frozen=True):
    """Machines that a walk has yet to update: those of these update domains, in one cluster or in all."""

    update_domains: Annotated[tuple[UpdateDomain, ...], Meta(min_length=1, max_length=1_001)]
    cluster: Word = ""


class HealingWish(Asked, frozen=True):
    """VMs that are to be placed again, by machine, rack or name; none: all of those on machines that are down."""

    machines: Names = ()
    racks: Names = ()
    vms: Names = ()
    later: YetToUpdate | None = None  # machines that get some of these VMs only where no other has room


class HealingResult(Wire, frozen=True):
    """What came of it."""

    healed: Sequence[HealedVM]
    waiting: Sequence[UnhealedVM]  # those that found no machine
    evictions: int = 0  # VMs of lower priority that gave way


class Heartbeat(Asked, frozen=True):
    """Machines that are alive."""

    machines: Names


class Heard(Wire, frozen=True):
    """Whose heartbeats were heard."""

    heard: int
    unknown: Sequence[str] = ()  # machines that the zone does not have


class RackChange(Asked, frozen=True):
    """How all machines of a rack are."""

    state: MachineState


class RackDone(Wire, frozen=True):
    """A rack as it is now."""

    rack: str
    machines: int
    state: str


class WalkHold(Asked, frozen=True):
    """Somebody walks through the update domains of a zone, and goes on."""

    walk: Annotated[str, Meta(min_length=1, max_length=64, description="Its own name for itself, which no other has.")]
    owner: Annotated[str, Meta(min_length=1, max_length=200, description="Who and where that is, for people.")]
    seconds: Annotated[float, Meta(ge=1, le=3_600, description="It says so more often than this.")] = 60.0
    domain: Annotated[int, Meta(ge=0)] | None = None  # where it is
    machines: Names | None = None  # that it has taken out of use by now; as it said before, if left out
    take_over: bool = False  # from another that has ended without a word


class WalkView(Wire, frozen=True):
    """A walk through the update domains of a zone."""

    walk: str
    owner: str
    by: str  # the token that it uses
    since: float  # seconds since 1970
    seconds: float  # that it may be silent
    silent: float  # seconds since it was last heard of
    domain: int | None = None
    machines: Sequence[str] = ()  # that it, or another from which it took over, has taken out of use


# -------------------------------------------------------------------------------------------- changes, tokens, ops


class EvictionReason(Wire, frozen=True):
    """Why VMs had to give way."""

    priority: str  # the highest of what was placed instead
    grace: float  # seconds that they are left to finish
    tenant: str = ""  # whose that is; empty if that is none of your business


class ChangeView(Wire, frozen=True, omit_defaults=True):
    """One commit: its revision, who asked for it and when, and all that it changed."""

    revision: int
    key: str  # empty, like `by`, where others of whom you may not hear made your VMs give way
    by: str = ""
    at: float = 0.0
    tenant: str = ""
    placed: Sequence[Placement] = ()
    released: Sequence[Placement] = ()
    machines: Sequence[Mapping[str, Any]] = ()  # conditions: machine, field, before, after
    clusters: Sequence[Mapping[str, Any]] = ()  # quarantines: cluster, before, after
    added: Sequence[str] = ()
    removed: Sequence[str] = ()
    registered: Sequence[str] = ()  # "set KIND NAME" or "removed KIND NAME"
    eviction: EvictionReason | None = None  # what was released had to give way, and why


class Changes(Wire, frozen=True):
    """Changes after a revision; ask again from `revision`. `head` is the last that there is."""

    items: Sequence[ChangeView]
    revision: int
    head: int


class NewToken(Asked, frozen=True):
    """A token to make."""

    name: Annotated[str, Meta(pattern=TOKEN_NAME, max_length=60)]
    scopes: Annotated[tuple[Scope, ...], Meta(min_length=1, max_length=4)]
    namespace: Annotated[str, Meta(pattern=NAME_OR_NOTHING, max_length=LONGEST_NAMESPACE)] = ""
    days: Annotated[float, Meta(ge=0.0, le=36_500, description="Until it expires; 0: never.")] = 0.0


class TokenView(Wire, frozen=True):
    """A token, without its secret."""

    name: str
    scopes: Sequence[str]
    namespace: str
    created: float
    expires: float  # 0: never
    created_by: str


class TokenMade(Wire, frozen=True):
    """A token with its secret, which is shown this once."""

    token: str
    name: str
    scopes: Sequence[str]
    namespace: str
    expires: float


class Tokens(Wire, frozen=True):
    """All tokens."""

    items: Sequence[TokenView]


class Health(Wire, frozen=True):
    """Whether the process lives, or may be given work; and what of it is not as it was wished."""

    status: str
    detail: str = ""
    problem: str = ""  # why it does not decide by what was activated


class Problem(Wire, frozen=True):
    """What went wrong, after RFC 9457. `code` never changes; `retryable`: the same request may succeed later."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    retryable: bool
    instance: str = ""
    request_id: str = ""
    field: str = ""  # the part of the request that is wrong
    decision: str = ""  # the key of the decision, to explain it by
    reasons: Sequence[ReasonView] = ()
    remedies: Sequence[RemedyView] = ()
    cut_short: bool = False  # there may be more remedies: there was no time to try all
