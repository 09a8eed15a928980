"""Protean's Algorithm 1 over a store: decide on the agent's own copy, propose, commit, and lose races gracefully.

    submit ─▶ queue ─▶ round: decide each on the copy, ahead of the feed ─▶ courier ─▶ store
                ▲                                                              │
                └── retry ◀── conflict: take back, believe the fresh rows ◀────┤
              answer ◀── committed: durable ◀──────────────────────────────────┘

A round is what is decided between two looks at the store's answers and feed, so all of it saw the same revision. The
next round is decided while the last one is being committed.
"""

from __future__ import annotations

import time
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Protocol, TypedDict

import msgspec
import numpy as np
from numpy.typing import NDArray

from roost.agent.avoidance import Avoidance, AvoidanceMemory
from roost.agent.courier import Courier, Delivery, Group
from roost.agent.lines import Lines
from roost.agent.moving import held_for, moving, refused
from roost.agent.operation import (
    AddMachines,
    Answer,
    CountFailures,
    Evicted,
    EvictVMs,
    HealVMs,
    MoveVM,
    Operation,
    PlaceVMs,
    ReleaseVMs,
    RemoveMachines,
    SetCluster,
    SetEntry,
    SetMachine,
    Status,
)
from roost.agent.replica import Replica, RoundAhead
from roost.agent.verbs.healable import set_aside, to_heal
from roost.engine.choice import BEST, Choice
from roost.engine.explain import Explanation, WhyNot
from roost.engine.recheck import Recheck
from roost.engine.ruleset import PolicySplit, RulePolicy
from roost.engine.selection import CacheLimits
from roost.engine.steps import Steps
from roost.engine.tenant import NOWHERE
from roost.model.availability import Short, Spread
from roost.model.change import Eviction, Placed
from roost.model.errors import InvalidInput, Outdated, RoostError, StoreUnavailable, Taken, UnknownName
from roost.model.request import HOLD, Placement, Request
from roost.model.rows import MachineState
from roost.model.thresholds import KIND as THRESHOLD
from roost.model.thresholds import PURPOSES, Purpose, check_entry
from roost.model.zone import MOST_FEATURES
from roost.placing.allocator import Allocator
from roost.placing.books import RunningVM, Tenant
from roost.placing.decision import Decision
from roost.placing.search import IN_ALL, IN_VAIN, Search
from roost.placing.victims import MustWait, going_with
from roost.store import contract as store
from roost.store.contract import (
    BEHIND,
    Committed,
    Conflict,
    FeedRow,
    Outcome,
    Proposal,
    Record,
    Rejected,
    Replayed,
    Round,
    Store,
)
from roost.store.ledger import Ledger

LONGEST_WHOLE_KEY = 250  # a key that somebody chose, and before it the namespace that it is in
LARGE = 32  # VMs of an operation, above which it takes turns with smaller ones
ROUND_SECONDS = 0.01  # for which a round decides at the most; then the one that it is at is its last
MUCH = 256  # VMs answered for and entries taken in, after which a step ends
FOLLOWED = 1_000  # entries of the feed that are taken in before others have their turn

_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True)
class AgentSettings:
    """How an agent works."""

    retries: int = 20  # after a conflict, before a request is given up
    group: int = 128  # requests that may be decided and committed together
    group_vms: int = 512  # and their VMs, unless one asks for more
    pipeline: int = 2  # rounds that may be under way: 2 decides one while the other is committed, 1 waits
    top: int = 100  # machines that a conflict-avoiding choice is among; 1: never avoid
    favourites: bool = True  # avoid conflicts by keeping to machines of one's own; else by random draws (Protean)
    window: int = 50  # commits over which the conflict ratio is taken
    strict: bool = False  # refuse what was decided on an outdated machine, even if it fits

    def __post_init__(self) -> None:
        limits = {"retries": (0, 1_000), "group": (1, store.LARGEST_GROUP), "group_vms": (1, 100_000)}
        for name, (low, high) in {**limits, "pipeline": (1, 8), "window": (1, 100_000)}.items():
            if not low <= getattr(self, name) <= high:
                raise InvalidInput(f"agent.{name}", f"is {getattr(self, name)}", f"use {low} to {high:,}")
        if self.strict and self.pipeline > 1:
            raise InvalidInput("agent.strict", "needs an agent that waits", "set agent.pipeline to 1")


class Ticket(msgspec.Struct, eq=False):
    """An operation on its way."""

    key: str
    operation: Operation
    request: bytes
    submitted: float
    done: Callable[[Answer], None] | None = None
    by: str = ""  # who asks
    duty: bool = False  # the agent asks for it itself
    dry: bool = False  # nothing of it is to be done
    answer: Answer | None = None
    retries: int = 0
    started: float = 0.0  # the last try
    decided: float = 0.0
    decision: Decision | None = None
    refusal: str = ""  # why a move is declined
    # The store has not done it before, the copy has all that was committed until it said so, and nothing that was done
    # under the same key since then.
    asked: bool = False
    asking: bool = False  # it is being asked just now
    generation: int = 0  # of what it changed, once it is committed
    search: Search | None = None  # for a way to place several VMs, if it takes several turns

    @property
    def unfinished(self) -> bool:
        """Whether the search has more to try, and may."""
        return self.search is not None and self.search.goes_on


class _Unfinished(Exception):
    """A request has used up its turn: others come first, then it goes on."""


class _Common(TypedDict):
    """What every proposal says."""

    key: str
    request: bytes
    record: Record


@dataclass(slots=True)
class Counters:
    """What an agent did since it began."""

    commits: int = 0  # attempts to place
    conflicts: int = 0
    placed_vms: int = 0
    done: int = 0
    declined: int = 0
    gave_up: int = 0
    rounds: int = 0
    followed: int = 0  # entries of the feed
    reloads: int = 0
    reasons: dict[str, int] = field(default_factory=dict)  # of conflicts


class AgentMemory(msgspec.Struct, frozen=True):
    """What distinguishes an agent that has worked from a new one, besides what is in the store."""

    number: int  # of its last round
    lots: list[list[int]]  # the state of the random numbers of each policy
    avoidance: AvoidanceMemory


class Watcher(Protocol):
    """Looks at decisions."""

    def look(self, decision: Decision) -> None:
        """One was made just now. All must be left as it is."""


@dataclass(frozen=True)
class Loaded:
    """A fresh copy of a zone, and what was to decide on it."""

    replica: Replica
    split: PolicySplit


class Agent:
    """Decides on its own copy of a zone and commits to a store. Not for several threads: one calls `step`."""

    def __init__(
        self,
        store_: Store,
        courier: Courier,
        policy: RulePolicy | PolicySplit,
        name: str = "",
        *,
        seed: int = 0,
        settings: AgentSettings | None = None,
        limits: CacheLimits | None = None,
        background: Callable[[Callable[[], Loaded]], Future[Loaded]] | None = None,
        prepare: Callable[[Ledger], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        """`name` must be this agent's alone, also over restarts; made up when empty.

        `background` runs what takes long (to load the zone anew) where nobody has to wait for it. `prepare` is shown
        what the store holds, before the first copy of it is made.
        """
        self.store, self.courier, self.seed = store_, courier, seed
        self.split = policy if isinstance(policy, PolicySplit) else PolicySplit(policy)
        self.name = name or f"agent-{uuid.uuid4().hex[:12]}"
        self.settings = settings or AgentSettings()
        self._limits, self._clock, self._now = limits, clock, now
        self.avoidance = Avoidance(self.settings.top, self.settings.window, seed, favourites=self.settings.favourites)
        self.counters = Counters()
        self._lines = Lines(clock, self.settings.group)
        self._held: deque[Ticket] = deque()  # wait for their tenant, or for the feed
        self._rounds: dict[int, list[Ticket]] = {}  # under way
        self._busy: set[str] = set()  # tenants with something under way
        self._unfed: dict[int, list[Ticket]] = {}  # by round: committed, to be answered when the copy has it
        self._watched: dict[
            str, list[Ticket]
        ] = {}  # by key: those of which the store has said that it has not done them
        self._backlog: deque[FeedRow] = deque()
        self._behind = False  # more of it can be followed at once
        self._outdated = False  # the copy must be loaded anew
        self.commit_seconds: deque[float] = deque(maxlen=10_000)  # that the store took, lately
        self._number = 0
        self.shadow: Watcher | None = None
        self._background, self._loading = background or _at_once, None
        self._begin(self._load(prepare))

    _loading: Future[Loaded] | None  # a fresh copy, if one is being made

    def _load(self, prepare: Callable[[Ledger], None] = lambda _: None) -> Loaded:
        """A fresh copy of everything."""
        split, ledger = self.split, self.store.load()
        prepare(ledger)
        replica = Replica(ledger, split, self.seed, limits=self._limits, clock=self._clock)
        return Loaded(replica, split)

    def _begin(self, loaded: Loaded) -> None:
        self.replica = loaded.replica
        for key in list(self._watched):
            self._forget_asked(key)  # for all that is known
        for ticket in (*self._lines, *self._held):
            ticket.search = None  # machines have other rows by now
        self.courier.follow(self.replica.revision)
        if loaded.split is self.split:
            self.recheck = self.make_recheck()
        else:
            self.switch(self.split)

    def switch(self, policy: RulePolicy | PolicySplit) -> None:
        """Decide by another policy, or by two, from now on; one that does not work is refused."""
        split = policy if isinstance(policy, PolicySplit) else PolicySplit(policy)
        self.replica.allocator.switch_policy(split)
        self.split = split
        self.recheck = self.make_recheck()

    @property
    def allocator(self) -> Allocator:
        """What decides, on the agent's own copy."""
        return self.replica.allocator

    # ------------------------------------------------------------------------------------------------- asking

    def submit(
        self,
        operation: Operation,
        key: str = "",
        done: Callable[[Answer], None] | None = None,
        by: str = "",
        *,
        duty: bool = False,
    ) -> Ticket:
        """Queue an operation. The same key is never done twice; one is made up when empty.

        `by`: who asks. `duty`: nobody does, but the agent itself, which may have much to ask for at once.
        """
        ticket = self._ticket(operation, key, done, by)
        ticket.duty = duty
        self._queue(ticket)
        return ticket

    def _queue(self, ticket: Ticket, *, first: bool = False) -> None:
        """Let an operation wait for its turn; `first`: it has waited before."""
        operation = ticket.operation
        size = size_of(operation)
        if isinstance(operation, ReleaseVMs) and not operation.vms:
            known = self.replica.allocator.tenants.get(operation.tenant)
            size = len(known.vms) if known else 1
        self._lines.join(ticket, large=size > LARGE or ticket.unfinished, first=first)

    def _ticket(self, operation: Operation, key: str, done: Callable[[Answer], None] | None, by: str) -> Ticket:
        if not isinstance(key, str) or len(key) > LONGEST_WHOLE_KEY:
            raise InvalidInput("key", f"is {key!r}", f"use a text of up to {LONGEST_WHOLE_KEY} characters")
        key, request = key or uuid.uuid4().hex, _encode(operation)
        if "\0" in key or b"\\u0000" in request:
            raise InvalidInput("operation", "has a NUL character in a text", "leave it out")
        return Ticket(key, operation, request, self._clock(), done, by)

    def rehearse(
        self, operation: Operation, key: str = "", by: str = "", retries: int = 0, search: Search | None = None
    ) -> tuple[Ticket, Proposal | None]:
        """Decide an operation as if it were to be done, and take it back at once.

        The proposal is for a dry commit, whose outcome `conclude` makes an answer of; there is none if the operation
        makes no sense, or has to wait. A ticket without an answer lost a race: rehearse it again, so often as it says,
        once the feed has brought more. One that is unfinished was declined for want of time: go on with its `search`.
        """
        ticket = self._ticket(operation, key, None, by)
        ticket.dry, ticket.retries, ticket.search = True, retries, search
        self._number += 1
        replica, number = self.replica, self._number
        replica.ahead[number] = RoundAhead()
        try:
            return ticket, self._decide(ticket, number, 0)
        except MustWait:
            self._lost(ticket, Conflict("victims", "what would have to give way is on its way to somewhere"))
            return ticket, None
        except RoostError as error:
            self._answer(ticket, "invalid", error=error)
            return ticket, None
        finally:
            for position in list(replica.ahead[number].placed):
                replica.take_back(number, position)
            del replica.ahead[number]

    def conclude(self, ticket: Ticket, outcome: Outcome) -> None:
        """Answer what would have come of a rehearsed operation, unless it is to be tried again."""
        self._conclude(ticket, outcome, -1, 0, 0, fed=True)

    def explaining(self, request: Request, vm: int | None = None) -> Steps[Explanation]:
        """Why a request would be placed as it would be now, who would give way to it, or why it finds no room."""
        return self.allocator.explaining(request, vm, at=self._now(), fixed=self.replica.unclear)

    def telling_why_not(self, request: Request, machine: str, vm: int | None = None) -> Steps[WhyNot]:
        """Why a machine would not get a VM of a request now."""
        return self.allocator.telling_why_not(request, machine, vm, self._now(), self.replica.unclear)

    def make_recheck(self) -> Recheck:
        """The validators to re-check at a commit. One of these serves one thread at a time."""
        rules = [policy.rules for policy in self.split.policies]
        return Recheck(self.replica.allocator.zone, *rules, arm_of=self.split.arm_of)

    def run(self, *tickets: Ticket, seconds: float = 60.0) -> list[Answer]:
        """Work until these are answered."""
        deadline = self._clock() + seconds
        while any(ticket.answer is None for ticket in tickets):
            self.step(0.05)
            if self._clock() > deadline:
                raise TimeoutError(f"no answer after {seconds} s")
        return [ticket.answer for ticket in tickets if ticket.answer]

    @property
    def full(self) -> bool:
        """Whether as many rounds are under way as may be."""
        return len(self._rounds) >= self.settings.pipeline

    @property
    def can_decide(self) -> bool:
        """Whether a step would decide something now."""
        return not (self._outdated or self._behind or self.full) and bool(self._lines.turn()[0])

    @property
    def waiting(self) -> int:
        """Operations that are queued."""
        return len(self._lines) + len(self._held)

    @property
    def needs_news(self) -> bool:
        """Whether something waits for the feed, or for what is under way."""
        return bool(self._held or self._unfed)

    @property
    def idle(self) -> bool:
        """Nothing is queued or under way."""
        return not (self._lines or self._held or self._rounds or self._unfed)

    def close(self) -> None:
        """Stop the courier; what was not answered stays unanswered."""
        self.courier.close()

    # ------------------------------------------------------------------------------------------------ working

    def step(self, wait: float = 0.0) -> bool:
        """One turn: take in answers and news, then decide a round. Waits up to `wait` s if there is nothing to do."""
        blocked = not self._behind and (self.full or self._outdated or not self._lines.turn()[0])
        deliveries = self.courier.receive(wait if blocked else 0.0)
        placed, followed = self.counters.placed_vms, self.counters.followed
        for delivery in deliveries:
            self._take_in(delivery)
        self._follow()
        if self._outdated and not self._rounds:
            self._reload()
        if self._held:
            self._release_held()
        decided = False
        if self.counters.placed_vms - placed + self.counters.followed - followed > MUCH:
            return True  # let others have their turn before more is decided
        if self.can_decide:
            decided = self._decide_round()
        elif not (self._lines or deliveries or self._behind):
            self.replica.allocator.refresh(1)
        return decided or self._behind or bool(deliveries)

    def _decide_round(self) -> bool:
        """Decide what is queued, up to a group, and send it off."""
        self._number += 1
        replica, number = self.replica, self._number
        beyond, adopted = replica.beyond(), replica.adopted_rows()
        ahead = replica.ahead[number] = RoundAhead()
        tickets: list[Ticket] = []
        proposals: list[Proposal] = []
        line, most = self._lines.turn()
        vms, started = 0, self._clock()
        while line and len(tickets) < most and vms < self.settings.group_vms:
            if tickets and self._clock() > started + ROUND_SECONDS:
                break
            ticket = line.popleft()
            if self._must_wait(ticket):
                self._held.append(ticket)
                continue
            try:
                proposal = self._decide(ticket, number, len(tickets))
            except MustWait:
                self._held.append(ticket)
                continue
            except _Unfinished:
                self._queue(ticket)
                self._lines.rest(started)
                break
            except RoostError as error:
                if ticket.asked:
                    self._answer(ticket, "invalid", error=error)
                    continue
                # Unless it was done before, which is why it makes no sense any more, or is news to this copy.
                self._note_asked(ticket)
                ticket.asking = True
                proposal = store.Ask(key=ticket.key, request=ticket.request)
            tickets.append(ticket)
            proposals.append(proposal)
            self._busy.add(_tenant_of(ticket.operation))
            if isinstance(proposal, store.Place):
                vms += len(proposal.placed)
                ahead.plain &= not (proposal.victims or proposal.leaving or proposal.requeued)
            elif not isinstance(proposal, store.Decline | store.Ask):
                vms += len(proposal.released) if isinstance(proposal, store.Release) else 0
                ahead.plain = False
        self._lines.had(line, number if tickets else None, started)
        if not tickets:
            del replica.ahead[number]
            return False
        placed = tuple((p.tenant, p.placed) if isinstance(p, store.Place) else ("", ()) for p in proposals)
        victims = {i: p.victims for i, p in enumerate(proposals) if isinstance(p, store.Place) and p.victims}
        self.counters.rounds += 1
        self._rounds[number] = tickets
        seen = Round(
            agent=self.name,
            number=number,
            revision=replica.revision,
            seed=self.seed,
            ahead=beyond,
            adopted=adopted,
            placed=placed,
            victims=victims,
        )
        self.courier.send(Group(seen, proposals, self.recheck, self.settings.strict))
        return True

    def _note_asked(self, ticket: Ticket) -> None:
        """The store has not done it before, or is about to say so; from now on the feed is watched for its key."""
        ticket.asked = True
        self._watched.setdefault(ticket.key, []).append(ticket)

    def _forget_asked(self, key: str) -> None:
        """Something was done under a key: whoever waits here with the same one has to ask the store again."""
        for ticket in self._watched.pop(key, ()):
            ticket.asked = False

    def _must_wait(self, ticket: Ticket) -> bool:
        """Whether something of the same tenant is under way."""
        tenant = _tenant_of(ticket.operation)
        return bool(tenant) and tenant in self._busy

    def _release_held(self) -> None:
        """Look at what waited again, before what came later."""
        for ticket in reversed(self._held):
            self._queue(ticket, first=True)
        self._held.clear()

    # ----------------------------------------------------------------------------------------------- deciding

    def _decide(self, ticket: Ticket, round_: int, position: int) -> Proposal:
        """What to propose for an operation; raises if it makes no sense."""
        ticket.started, ticket.asking, ticket.refusal = self._clock(), False, ""
        operation = ticket.operation
        if tenant := _tenant_of(operation):
            known = self.replica.allocator.tenants.get(tenant)
            self._check_premise(operation, known.stamp if known else 0)
        if isinstance(operation, PlaceVMs):
            return self._place(ticket, operation, round_, position)
        if isinstance(operation, HealVMs):
            return self._heal(ticket, operation, round_, position)
        record = self._record(ticket, round_, position)
        common: _Common = {"key": ticket.key, "request": ticket.request, "record": record}
        if isinstance(operation, ReleaseVMs):
            return self._release(ticket, operation, common)
        if isinstance(operation, EvictVMs):
            return self._evict(operation, common)
        if isinstance(operation, MoveVM):
            return self._move(ticket, operation, common)
        if isinstance(operation, SetMachine):
            version = self._version_of(operation)
            return store.SetCondition(
                machine=operation.machine, condition=_condition(operation), version=version, **common
            )
        if isinstance(operation, CountFailures):
            return store.SetCondition(machine=operation.machine, condition={}, **common)
        if isinstance(operation, SetEntry):
            if operation.kind == THRESHOLD and operation.value is not None:
                zone = self.replica.allocator.zone
                machines = int(zone.clusters[zone.cluster(operation.name)]["machines"])
                check_entry(operation.name, machines, operation.value)
            return store.Register(
                kind=operation.kind,
                name=operation.name,
                value=operation.value,
                expected=operation.instead_of,
                guarded=operation.new or operation.instead_of is not None,
                **common,
            )
        if isinstance(operation, SetCluster):
            return store.SetQuarantine(cluster=operation.cluster, quarantined=operation.quarantined, **common)
        if isinstance(operation, AddMachines):
            self._check_features(operation)
            return store.AddMachines(machines=operation.machines, conditions=operation.conditions, **common)
        return store.RemoveMachines(machines=self._removing(operation), **common)

    def _place(self, ticket: Ticket, operation: PlaceVMs, round_: int, position: int) -> Proposal:
        replica, request = self.replica, operation.request
        choice = self.avoidance.draw()
        known = replica.allocator.tenants.get(request.tenant)
        if operation.requeued:
            request = operation.request_now(known is not None)
        purpose = Purpose.HEALING if operation.healing else None
        return self._propose(ticket, request, round_, position, known.stamp if known else 0, choice, purpose)

    def _heal(self, ticket: Ticket, operation: HealVMs, round_: int, position: int) -> Proposal:
        """VMs that are still on machines that are not ready are placed again; if all are well, that is said."""
        allocator = self.replica.allocator
        lost, held = to_heal(allocator, operation)
        wishes = tuple([msgspec.structs.replace(vm.vm, name=vm.name) for vm in lost])
        stamp = allocator.tenants[operation.tenant].stamp
        choice = self.avoidance.draw()
        request, leaving = Request(operation.tenant, wishes), (*lost, *held)
        aside = set_aside(allocator.zone, operation.aside)
        return self._propose(ticket, request, round_, position, stamp, choice, Purpose.HEALING, leaving, aside)

    def _propose(
        self,
        ticket: Ticket,
        request: Request,
        round_: int,
        position: int,
        stamp: int,
        choice: Choice,
        purpose: Purpose | None,
        leaving: Sequence[RunningVM] = (),
        aside: NDArray[np.int64] = NOWHERE,
    ) -> Proposal:
        """Decide where VMs are to run; the proposal, or that it is declined."""
        replica, at = self.replica, self._now()
        ticket.search = ticket.search or self._search(request)
        decision = ticket.decision = replica.place(
            request, round_, position, choice, at, purpose, leaving, ticket.search, aside
        )
        ticket.decided = self._clock()
        if not decision.ok and ticket.unfinished and not ticket.dry:
            raise _Unfinished
        if (
            self.shadow is not None
            and decision.trial.choice == BEST
            and not (decision.trial.sought or len(aside) or ticket.dry)
        ):  # what avoids conflicts, or machines, or was sought for the sake of other VMs, is no policy's choice
            self.shadow.look(decision)
        arm = replica.allocator.arm_of(request.tenant)
        trial, names = decision.trial, replica.allocator.zone.machine_names
        order = trial.order
        record = Record(
            agent=self.name,
            round=round_,
            position=position,
            at=at,
            by=ticket.by,
            policy=arm.recorded,
            retries=ticket.retries,
            hits=trial.hits,
            updated=trial.updated,
            waited_us=int((ticket.started - ticket.submitted) * 1e6),
            decided_us=int((ticket.decided - ticket.started) * 1e6),
            constraints=decision.constraints,
            order=() if len(order) == 1 or order == tuple(range(len(order))) else order,
            found=() if decision.ok else tuple([names[m] for m in trial.machines]),
            refused=trial.tried,
            rungs=trial.rungs,
            short=decision.short,
            spread=decision.spread,
            sought=trial.sought,
            victims=replica.victims(round_, position) if decision.victims else (),
            lots=int(arm.engine.rng[0]),
            avoiding=trial.choice != BEST,
            purpose=PURPOSES[decision.purpose],
        )
        if not decision.ok:
            return store.Decline(key=ticket.key, request=ticket.request, record=record)
        placed = replica.placed(round_, position)
        seen = store.NOTHING
        if self.settings.strict:
            index = replica.allocator.zone.machine_index
            seen = {each.machine: replica.seen(index[each.machine]) for each in placed}
        return store.Place(
            key=ticket.key,
            request=ticket.request,
            record=record,
            tenant=request.tenant,
            premise=ticket.operation.premise,
            constraints=decision.constraints,
            stamp=stamp,
            placed=placed,
            leaving=tuple([replica.running(vm) for vm in leaving]),
            victims=record.victims,
            grace=arm.policy.rules.evictions.grace,
            requeued=isinstance(ticket.operation, PlaceVMs) and ticket.operation.requeued,
            seen=seen,
        )

    def _search(self, request: Request) -> Search | None:
        """For a way to place all VMs of a request, if there are several."""
        return Search(IN_VAIN, IN_ALL, self._clock, ROUND_SECONDS) if len(request.vms) > 1 else None

    def _evict(self, operation: EvictVMs, common: _Common) -> Proposal:
        """VMs go that are not of the highest priority, and those that have to go with them."""
        allocator = self.replica.allocator
        tenant = allocator.tenants[operation.tenant]
        gone: dict[str, Placed] = {}
        for i, name in enumerate(self._leaving(operation, tenant)):
            vm = tenant.vms[name]
            if not vm.shape.traits["priority"]:
                remedy = "name VMs of lower ones: only those give way"
                raise InvalidInput(f"vms[{i}]", f"{name} is of the highest priority", remedy)
            gone.update((other.name, self.replica.running(other)) for other in going_with(allocator, vm))
        grace = allocator.arm_of(operation.tenant).policy.rules.evictions.grace
        return store.Release(
            tenant=operation.tenant,
            premise=operation.premise,
            released=tuple(gone.values()),
            stamp=tenant.stamp if tenant.constraints.evict_together else None,
            eviction=Eviction(tenant="", priority="", grace=grace),
            **common,
        )

    def _move(self, ticket: Ticket, operation: MoveVM, common: _Common) -> Proposal:
        """What a step of a move asks of the store: what the target would refuse is declined."""
        replica, allocator = self.replica, self.replica.allocator
        move = moving(allocator, operation)
        if why := refused(allocator, operation.step, move):
            ticket.refusal = f"machine {operation.machine} cannot have {operation.vm}: {why}"
            return store.Decline(**common)
        cancel = operation.step == "cancel"
        if cancel and move.hold is not None:
            held = (replica.running(move.hold),)
            return store.Release(tenant=operation.tenant, premise=operation.premise, released=held, **common)
        tenant, vm = allocator.tenants[operation.tenant], replica.running(move.vm)
        return store.Move(
            tenant=operation.tenant,
            premise=operation.premise,
            constraints=tenant.constraints,
            stamp=tenant.stamp,
            vm=vm,
            machine=vm.machine if cancel else operation.machine,  # nothing is held: it stays where it is
            held=move.hold is not None,
            hold=operation.step == "hold",
            seen={operation.machine: replica.seen(move.target)} if self.settings.strict else store.NOTHING,
            **common,
        )

    def _record(self, ticket: Ticket, round_: int, position: int) -> Record:
        waited = int((ticket.started - ticket.submitted) * 1e6)
        return Record(
            agent=self.name,
            round=round_,
            position=position,
            at=self._now(),
            by=ticket.by,
            retries=ticket.retries,
            waited_us=waited,
        )

    def _version_of(self, operation: SetMachine) -> int | None:
        """The version that a machine must have, if the caller says which it saw."""
        if operation.generation is None:
            return None
        machine = self.replica.allocator.zone.machine(operation.machine)
        self._check_premise(operation, self.replica.seen(machine))
        return operation.generation

    def _check_premise(self, operation: Operation, now: int) -> None:
        """Raise what is to be answered if a tenant or machine at this generation is not as whoever asks was told."""
        if isinstance(operation, SetMachine):
            _check_generation(f"machine {operation.machine}", operation.generation, now)
            return
        tenant, premise, tenants = _tenant_of(operation), operation.premise, self.replica.allocator.tenants
        if premise.existing and not now:
            raise UnknownName("tenant", "tenant with VMs", tenant, (name for name in tenants if name != tenant))
        _check_generation(f"tenant {tenant}", premise.generation, now)

    def _release(self, ticket: Ticket, operation: ReleaseVMs, common: _Common) -> Proposal:
        """A tenant is deleted with all of its VMs that wait to be placed again, if need be nothing but those."""
        replica, name = self.replica, operation.tenant
        waiting = () if operation.vms else replica.waiting_of(name)
        if (tenant := replica.allocator.tenants.get(name)) is None:
            # Nothing runs that has a stamp: only a copy that has just heard everything knows of all that waits.
            if not waiting or not (ticket.asked or ticket.dry):
                raise UnknownName("tenant", "tenant with VMs", name, replica.allocator.tenants)
            return store.Release(tenant=name, released=(), waiting=waiting, **common)
        released = tuple([replica.running(tenant.vms[vm]) for vm in self._leaving(operation, tenant)])
        stamp = None if operation.vms else tenant.stamp
        return store.Release(
            tenant=name, premise=operation.premise, released=released, stamp=stamp, waiting=waiting, **common
        )

    def _leaving(self, operation: ReleaseVMs | EvictVMs, tenant: Tenant) -> Sequence[str]:
        """The names of the VMs to release, with what is held for them."""
        if not operation.vms:
            return list(tenant.vms)
        named: set[str] = set()
        for i, name in enumerate(operation.vms):
            if name not in tenant.vms:
                raise UnknownName(f"vms[{i}]", f"VM of tenant {operation.tenant}", name, tenant.vms)
            if name in named:
                raise InvalidInput(f"vms[{i}]", f"{name} is named twice", "name each once")
            named.add(name)
        return [*operation.vms, *held_for(operation.vms, tenant)]

    def _check_features(self, operation: AddMachines) -> None:
        known = set(self.replica.allocator.zone.features)
        known.update(feature for machine in operation.machines for feature in machine.features)
        if len(known) > MOST_FEATURES:
            raise InvalidInput("add_machines", f"brings the zone to {len(known)} features", f"at most {MOST_FEATURES}")

    def _removing(self, operation: RemoveMachines) -> tuple[str, ...]:
        if not operation.cluster:
            return operation.machines
        zone = self.replica.allocator.zone
        if operation.machines:
            raise InvalidInput("remove_machines", "names machines and a cluster", "name one or the other")
        row = zone.clusters[zone.cluster(operation.cluster)]
        return zone.machine_names[int(row["first"]) : int(row["first"] + row["machines"])]

    # -------------------------------------------------------------------------------------------- taking in

    def _take_in(self, delivery: Delivery) -> None:
        """Answers first: what the feed says of the agent's own commits is then known."""
        if delivery.round is not None:
            tickets = self._rounds.pop(delivery.round)
            self._lines.answered(delivery.round)
            self.commit_seconds.append(delivery.seconds)
            for ticket in tickets:
                self._busy.discard(_tenant_of(ticket.operation))
            if delivery.error is not None:
                self._give_back(delivery.round, tickets, delivery.error)
            else:
                self._settle(delivery.round, tickets, delivery.outcomes, delivery.seconds)
            if delivery.behind:
                for ticket in tickets:
                    ticket.asked = False
        if delivery.feed is not None:
            self._outdated |= delivery.feed.reload
            self._backlog.extend(delivery.feed.rows)

    def _follow(self) -> None:
        """Take in what the feed brought, so much of it at a time; until all of it is, nothing is decided."""
        last, self._behind = self.counters.followed + FOLLOWED, False
        while self._backlog and not self._outdated:
            if self.counters.followed >= last:
                self._behind = True
                return
            if not self.replica.follow(self._backlog[0], self.name):
                return  # what it rests on is still on its way
            row = self._backlog.popleft()
            if self._watched:
                for entry in row.entries:
                    self._forget_asked(entry.key)
            self.counters.followed += row.last - row.first + 1
            if row.agent == self.name:
                self._answer_fed(row.round)
            self._outdated |= self.replica.reshaped

    def _reload(self) -> None:
        """Begin with a fresh copy: the feed was trimmed, or the zone has other machines."""
        if self._loading is None:
            self._loading = self._background(self._load)
        if not self._loading.done():
            return
        loading, self._loading = self._loading, None
        try:
            self._begin(loading.result())
        except StoreUnavailable:
            return  # try again at the next step
        self._outdated = False
        self.counters.reloads += 1
        for number in list(self._unfed):
            self._answer_fed(number)

    def _give_back(self, round_: int, tickets: Sequence[Ticket], error: RoostError) -> None:
        """Nobody knows what came of a round: take it back here; if it was committed, the feed will bring it."""
        replica = self.replica
        for position in list(replica.ahead[round_].placed):
            replica.take_back(round_, position)
        del replica.ahead[round_]
        for ticket in tickets:
            self._answer(ticket, "unavailable", f"{error}; ask again with the same key")

    def _settle(self, round_: int, tickets: Sequence[Ticket], outcomes: Sequence[Outcome], seconds: float) -> None:
        """Keep what was committed, take back the rest, believe the fresh rows, answer or try again."""
        replica, ahead = self.replica, self.replica.ahead[round_]
        for position, outcome in enumerate(outcomes):
            if position not in ahead.placed:
                continue
            mine = isinstance(outcome, Replayed) and _is_of(outcome, self.name, round_, position)
            if isinstance(outcome, Committed):
                replica.keep(round_, position, outcome.versions, outcome.before, outcome.stamp)
            elif mine:  # the store was away after it had done it
                ahead.plain = False
            else:
                replica.take_back(round_, position)
            self.counters.commits += 1
            self.avoidance.note(isinstance(outcome, Conflict) and outcome.reason != "premise")
        for outcome in outcomes:
            if isinstance(outcome, Conflict):
                replica.adopt(outcome.machines, round_)
        if ahead.placed:
            ahead.settled = True
        else:
            del replica.ahead[round_]
        took = int(seconds * 1e6)
        for position, (ticket, outcome) in enumerate(zip(tickets, outcomes, strict=True)):
            self._conclude(ticket, outcome, round_, position, took)

    def _conclude(
        self, ticket: Ticket, outcome: Outcome, round_: int, position: int, took: int, *, fed: bool = False
    ) -> None:
        """Answer what came of a ticket. `fed`: do not wait for the feed to bring it."""
        if isinstance(outcome, Conflict):
            self._lost(ticket, outcome)
        elif isinstance(outcome, Rejected):
            self._answer(ticket, "invalid", error=outcome.error, took=took)
        elif isinstance(outcome, Replayed):
            mine = _is_of(outcome, self.name, round_, position)
            decided = outcome.decided
            record = decided.record
            self._answer(
                ticket,
                "done",
                placed=decided.placed,
                evicted=evicted_of(record.victims),
                short=record.short,
                spread=record.spread,
                generation=record.generation,
                replayed=not mine,
                took=took,
            )
        elif ticket.asking:
            self._queue(ticket, first=True)  # and look again: the feed since then comes with this answer
        elif ticket.refusal:
            self._answer(ticket, "declined", ticket.refusal, took=took)
        elif ticket.decision is not None and not ticket.decision.ok:
            detail = f"no machine for VM {ticket.decision.trial.failed_vm} of the request"
            if ticket.search and ticket.search.unfinished:
                detail += f" (cut short: {ticket.search.unfinished})"
            self._answer(ticket, "declined", detail, took=took)
        elif ticket.decision is not None:
            decision, running = ticket.decision, self.replica.running
            evicted = evicted_of([store.Victim(vm.tenant, running(vm)) for vm in decision.victims])
            self._answer(
                ticket,
                "done",
                placements=decision.placements,
                evicted=evicted,
                short=decision.short,
                spread=decision.spread,
                generation=outcome.stamp,
                took=took,
            )
        elif outcome.changed and not fed:
            ticket.generation = _generation_of(ticket.operation, outcome)
            self._unfed.setdefault(round_, []).append(ticket)
        else:
            self._answer(ticket, "done", generation=_generation_of(ticket.operation, outcome), took=took)

    def _answer_fed(self, round_: int) -> None:
        for ticket in self._unfed.pop(round_, ()):
            self._answer(ticket, "done", generation=ticket.generation)

    def _lost(self, ticket: Ticket, conflict: Conflict) -> None:
        """Try again, on what is known now, or give up."""
        if not ticket.dry:
            reasons = self.counters.reasons
            reasons[conflict.reason] = reasons.get(conflict.reason, 0) + 1
            self.counters.conflicts += isinstance(ticket.operation, PlaceVMs)
        if conflict.reason == "premise":
            self._answer(ticket, "invalid", error=self._broken(ticket.operation, conflict))
        elif conflict.reason == "gone" and isinstance(ticket.operation, PlaceVMs):  # what waited waits no longer
            self._answer(ticket, "invalid", error=Outdated("vms", conflict.detail, "look again at what runs"))
        elif conflict.reason == "registry":
            self._answer(ticket, "invalid", error=Taken("name", conflict.detail, "choose another"))
        elif ticket.retries >= self.settings.retries:
            self._answer(ticket, "conflicts", f"{conflict.detail} ({ticket.retries} retries)")
        else:
            ticket.retries += 1
            ticket.decision, ticket.search, ticket.asked = None, None, False
            if conflict.reason in BEHIND:
                self._note_asked(ticket)
            if not ticket.dry:
                self._queue(ticket, first=True)

    def _broken(self, operation: Operation, conflict: Conflict) -> InvalidInput:
        """What is to be answered where the store says that something is not as whoever asks was told."""
        try:
            self._check_premise(operation, conflict.stamp or 0)
        except InvalidInput as error:
            return error
        raise AssertionError("unreachable")

    def _answer(
        self,
        ticket: Ticket,
        status: Status,
        detail: str = "",
        *,
        error: RoostError | None = None,
        generation: int = 0,
        placements: tuple[Placement, ...] = (),
        placed: Sequence[Placed] = (),
        evicted: tuple[Evicted, ...] = (),
        short: tuple[Short, ...] = (),
        spread: tuple[Spread, ...] = (),
        replayed: bool = False,
        took: int = 0,
    ) -> None:
        placements = placements or tuple(Placement(each.vm, each.spec.type, each.machine) for each in placed)
        if not ticket.dry:
            self._count(status, 0 if replayed else len(placements))
        self._forget_asked(ticket.key)
        decided = ticket.decided or ticket.started or ticket.submitted
        started = ticket.started or ticket.submitted
        ticket.answer = answer = Answer(
            key=ticket.key,
            status=status,
            placements=placements,
            evicted=evicted,
            short=short,
            spread=spread,
            detail=str(error) if error else detail,
            code=error.code if error else "",
            where=error.where if isinstance(error, InvalidInput) else "",
            generation=generation,
            replayed=replayed,
            retries=ticket.retries,
            waited_us=int((started - ticket.submitted) * 1e6),
            decided_us=int((decided - started) * 1e6),
            committed_us=took,
        )
        if ticket.done is not None:
            ticket.done(answer)

    def _count(self, status: Status, placed: int) -> None:
        counters = self.counters
        counters.done += status == "done"
        counters.declined += status == "declined"
        counters.gave_up += status == "conflicts"
        counters.placed_vms += placed if status == "done" else 0

    # -------------------------------------------------------------------------------------------- going on

    def memory(self) -> AgentMemory:
        """What an idle agent has to remember for one on the same store to go on exactly as it would."""
        assert self.idle
        return AgentMemory(
            number=self._number,
            lots=[[int(each) for each in arm.engine.rng] for arm in self.replica.allocator.arms],
            avoidance=self.avoidance.memory(),
        )

    def recall(self, memory: AgentMemory) -> None:
        """Go on where another agent of this name stopped."""
        self._number = memory.number
        for arm, lots in zip(self.replica.allocator.arms, memory.lots, strict=True):
            arm.engine.rng[:] = lots
        self.avoidance.recall(memory.avoidance)

    # --------------------------------------------------------------------------------------------- checking

    def check_invariants(self) -> None:
        """Raise unless the copy is consistent, and, when nothing is under way, what the store holds."""
        self.replica.check_invariants()
        if self.idle and not self.replica.ahead and not self.replica.adopted:
            ledger = self.store.load()
            if ledger.revision == self.replica.revision:
                self.replica.check_against(ledger)


def _tenant_of(operation: Operation) -> str:
    if isinstance(operation, PlaceVMs):
        return operation.request.tenant
    return operation.tenant if isinstance(operation, ReleaseVMs | EvictVMs | HealVMs | MoveVM) else ""


def size_of(operation: Operation) -> int:
    """How many VMs it speaks of, at the least one."""
    if isinstance(operation, PlaceVMs):
        return len(operation.request.vms)
    return max(1, len(operation.vms)) if isinstance(operation, ReleaseVMs | EvictVMs | HealVMs) else 1


def evicted_of(victims: Sequence[store.Victim]) -> tuple[Evicted, ...]:
    """The VMs among those that gave way; room that was held for them is none."""
    found = [
        Evicted(each.vm.vm, each.tenant, each.vm.spec.type, each.vm.spec.priority, each.vm.machine)
        for each in victims
        if not each.vm.vm.endswith(HOLD)
    ]
    return tuple(found)


def _check_generation(what: str, wanted: int | None, now: int) -> None:
    if wanted is None or wanted == now:
        return
    if wanted == 0:
        raise Outdated("generation", f"{what} exists", "scale it out, or choose another name")
    state = f"is at generation {now}" if now else "does not exist"
    raise Outdated("generation", f"{what} {state}, not {wanted}", "look again, then decide")


def _generation_of(operation: Operation, outcome: Committed) -> int:
    """Of the machine, or of the tenant: 0 if it has no VMs any more."""
    if isinstance(operation, SetMachine):
        return outcome.versions.get(operation.machine, 0)
    return outcome.stamp


def _at_once(load: Callable[[], Loaded]) -> Future[Loaded]:
    """Run something here and now, as a future."""
    done: Future[Loaded] = Future()
    try:
        done.set_result(load())
    except RoostError as error:
        done.set_exception(error)
    return done


def _is_of(outcome: Replayed, agent: str, round_: int, position: int) -> bool:
    record = outcome.decided.record
    return (record.agent, record.round, record.position) == (agent, round_, position)


def _condition(operation: SetMachine) -> dict[str, int]:
    condition = {"state": int(MachineState[operation.state.upper()])} if operation.state else {}
    for name in ("health", "failures", "versions_behind"):
        if (value := getattr(operation, name)) is not None:
            condition[name] = value
    if not condition:
        raise InvalidInput("machine", "nothing is said of it", "give state, health, failures or versions_behind")
    return condition
