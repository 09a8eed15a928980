"""Protean's Algorithm 1 over a store: decide on the agent's own copy, propose, commit, and lose races gracefully.

    submit ─▶ queue ─▶ round: decide each on the copy, ahead of the feed ─▶ courier ─▶ store
                ▲                                                              │
                └── retry ◀── conflict: take back, believe the fresh rows ◀────┤
              answer ◀── committed: durable ◀──────────────────────────────────┘

A round is what is decided between two looks at the store's answers and feed, so all of it saw the same revision. The
next round is decided while the last one is being committed. What has come waits until it is worth a commit
(`gathering.py`).
"""

from __future__ import annotations

import math
import time
import uuid
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from operator import attrgetter

import msgspec

from roost.agent.agreement import check_against, check_sums
from roost.agent.avoidance import Avoidance, AvoidanceMemory
from roost.agent.context import Context
from roost.agent.courier import Courier, Delivery, Group
from roost.agent.gathering import Gathering
from roost.agent.loading import uncollected
from roost.agent.operation import Answer, Operation
from roost.agent.outcomes import Outcomes
from roost.agent.replica import Replica, RoundAhead
from roost.agent.settings import ROUND_SECONDS, AgentSettings
from roost.agent.ticket import Ticket, Unfinished, new_ticket
from roost.agent.under_way import UnderWay
from roost.agent.verbs.table import verb_of
from roost.engine.recheck import CompiledRecheck
from roost.engine.ruleset import PolicySplit, RulePolicy
from roost.engine.selection import CacheLimits
from roost.model.change import PlacedVM
from roost.model.errors import RoostError, StoreUnavailable
from roost.placing.allocator import Allocator
from roost.placing.search import Search
from roost.placing.victims import MustWait
from roost.store import contract as store
from roost.store.columns import ZoneColumns
from roost.store.contract import Conflict, Outcome, Proposal, Round, Store
from roost.store.feed import FeedRow

MUCH = 256  # VMs answered for and entries taken in, after which a step ends
IDLE_SECONDS = 0.02  # without a round, after which caches are refreshed: the next request would do it just as well
FOLLOWED = 1_000  # entries of the feed that are taken in before others have their turn

_placed = attrgetter("placed")


class AgentMemory(msgspec.Struct, frozen=True):
    """What distinguishes an agent that has worked from a new one, besides what is in the store."""

    number: int  # of its last round
    lots: list[list[int]]  # the state of the random numbers of each policy
    avoidance: AvoidanceMemory


@dataclass(frozen=True)
class Loaded:
    """A copy of the zone made anew from the store, and the policies that it was made for: others may decide by now."""

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
        prepare: Callable[[ZoneColumns], None] = lambda _: None,
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
        self._limits, self._clock = limits, clock
        avoidance = Avoidance(self.settings.top, self.settings.window, seed, favourites=self.settings.favourites)
        loaded = self._load(prepare)
        self.context = Context(self.name, self.settings, avoidance, clock, now, loaded.replica)
        self.under_way = UnderWay(self.context)
        self.gathering = Gathering(self.context, self.under_way)
        self._outcomes = Outcomes(self.context, self.under_way)
        self.counters = self._outcomes.counters
        self._backlog: deque[FeedRow] = deque()
        self._fed: deque[int] = deque()  # rounds of its own that are in the copy by now, and nobody was told yet
        self._behind = False  # more of it can be followed at once
        self._outdated = False  # the copy must be loaded anew
        self.commit_seconds: deque[float] = deque(maxlen=10_000)  # that the store took, lately
        self._number, self._decided = 0, -math.inf  # of the last round, and when it began
        self._background, self._loading = background or _at_once, None
        self._begin(loaded)

    _loading: Future[Loaded] | None  # a fresh copy, if one is being made

    def _load(self, prepare: Callable[[ZoneColumns], None] = lambda _: None) -> Loaded:
        """A fresh copy of everything."""
        with uncollected():
            split, columns = self.split, self.store.columns()
            prepare(columns)
            replica = Replica(columns, split, self.seed, limits=self._limits, clock=self._clock)
        return Loaded(replica, split)

    def _begin(self, loaded: Loaded) -> None:
        self.replica = self.context.replica = loaded.replica
        for key in list(self.under_way.asked):
            self.under_way.forget_asked(key)  # for all that is known
        for ticket in self.under_way:
            ticket.search = None  # machines have other rows by now
        self.under_way.release_held()
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
        self.under_way.release_held()  # others may have to give way by it
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
        ticket = self.ticket(operation, key, done, by)
        ticket.duty = duty
        self.under_way.queue(ticket)
        return ticket

    def ticket(
        self, operation: Operation, key: str = "", done: Callable[[Answer], None] | None = None, by: str = ""
    ) -> Ticket:
        """A ticket that is not queued yet: it tells how much is asked for."""
        verb = verb_of(operation)
        tenant, vms = verb.tenant(operation), verb.size(operation, self.replica.allocator.tenants)
        return new_ticket(operation, key, done, by, self._clock(), tenant, vms)

    def rehearse(
        self, operation: Operation, key: str = "", by: str = "", retries: int = 0, search: Search | None = None
    ) -> tuple[Ticket, Proposal | None]:
        """Decide an operation as if it were to be done, and take it back at once.

        The proposal is for a dry commit, whose outcome `conclude` makes an answer of; there is none if the operation
        makes no sense, or has to wait. A ticket without an answer lost a race: rehearse it again, so often as it says,
        once the feed has brought more. One that is unfinished was declined for want of time: go on with its `search`.
        """
        ticket = self.ticket(operation, key, by=by)
        ticket.dry, ticket.retries, ticket.search = True, retries, search
        self._number += 1
        self._decided = self._clock()
        replica, number = self.replica, self._number
        replica.ahead[number] = RoundAhead()
        lots = [arm.engine.rng.copy() for arm in replica.allocator.arms]  # what comes of others must not depend on it
        try:
            return ticket, self._decide(ticket, number, 0)
        except MustWait:
            self._outcomes.lost(ticket, Conflict("victims", "what would have to give way is on its way to somewhere"))
            return ticket, None
        except RoostError as error:
            self._outcomes.answer(ticket, "invalid", error=error)
            return ticket, None
        finally:
            for position in list(replica.ahead[number].placed):
                replica.take_back(number, position)
            del replica.ahead[number]
            for arm, before in zip(replica.allocator.arms, lots, strict=True):
                arm.engine.rng[:] = before

    def conclude(self, ticket: Ticket, outcome: Outcome) -> None:
        """Answer what would have come of a rehearsed operation, unless it is to be tried again."""
        self._outcomes.conclude(ticket, outcome, -1, 0, 0, fed=True)

    def make_recheck(self) -> CompiledRecheck:
        """The validators to re-check at a commit. One of these serves one thread at a time."""
        rules = [policy.rules for policy in self.split.policies]
        return CompiledRecheck(self.replica.allocator.zone, *rules, arm_of=self.split.arm_of)

    def run(self, *tickets: Ticket, seconds: float = 60.0) -> list[Answer]:
        """Work until these are answered."""
        deadline = self._clock() + seconds
        while any(ticket.answer is None for ticket in tickets):
            self.step(0.05)
            if self._clock() > deadline:
                raise TimeoutError(f"no answer after {seconds} s")
        return [ticket.answer for ticket in tickets if ticket.answer]

    @property
    def waiting(self) -> int:
        """Operations that are queued."""
        return len(self.under_way)

    @property
    def needs_news(self) -> bool:
        """Whether something waits for the feed, or for what is under way."""
        return bool(self.under_way.held or self.under_way.unfed)

    @property
    def idle(self) -> bool:
        """Nothing is queued or under way."""
        return self.under_way.idle

    def close(self) -> None:
        """Stop the courier; what was not answered stays unanswered."""
        self.courier.close()

    # ------------------------------------------------------------------------------------------------ working

    def step(self, wait: float = 0.0) -> bool:
        """One turn: take in answers and news, then decide a round. Waits up to `wait` s if there is nothing to do.

        Whether the next one has something to do.
        """
        lines = self.under_way.lines
        if wait > 0:
            wait = 0.0 if self._behind else wait if self._outdated else min(wait, self.gathering.due_in)
        deliveries = self.courier.receive(wait)
        placed, followed = self.counters.placed_vms, self.counters.followed
        for delivery in deliveries:
            self._take_in(delivery)
        if self._backlog:
            self._follow()
        while self._fed:  # also those of an earlier step that stumbled
            self._outcomes.fed(self._fed.popleft())
        if self._outdated and not self.under_way.rounds:
            self._reload()
        if self.under_way.held and (deliveries or self.counters.followed > followed):
            self.under_way.release_held()  # without news, it would only be held again
        if self.counters.placed_vms - placed + self.counters.followed - followed > MUCH:
            return True  # let others have their turn before more is decided
        line, most = lines.turn()
        decides = self.gathering.ripe_in(line) <= 0 and not (self._outdated or self._behind)
        if decides:  # what waits for an answer is no work for the next turn
            decides = self._decide_round(line, most) or bool(lines.turn()[0])
        elif not (line or lines.large or deliveries or self._behind) and self._clock() > self._decided + IDLE_SECONDS:
            self.replica.allocator.refresh(1)
        return decides or self._behind or bool(deliveries)

    def _decide_round(self, line: deque[Ticket], most: int) -> bool:
        """Decide what is queued in a line, up to so much, and send it off; whether there was something to send."""
        self._number += 1
        self._decided = self._clock()
        replica, number = self.replica, self._number
        beyond, adopted = replica.beyond(), replica.adopted_rows()
        ahead = replica.ahead[number] = RoundAhead()
        tickets: list[Ticket] = []
        proposals: list[Proposal] = []
        placed: list[tuple[str, tuple[PlacedVM, ...]]] = []
        victims: dict[int, tuple[store.Victim, ...]] = {}
        vms, started = 0, self._clock()
        while line and len(tickets) < most and vms < self.settings.group_vms:
            if tickets and self._clock() > started + ROUND_SECONDS:
                break
            ticket = line.popleft()
            if self.under_way.must_wait(ticket):
                self.under_way.held.append(ticket)
                continue
            try:
                proposal = self._decide(ticket, number, len(tickets))
            except MustWait:
                self.under_way.held.append(ticket)
                continue
            except Unfinished:
                self.under_way.queue(ticket)
                self.under_way.lines.rest(started)
                break
            except RoostError as error:
                if ticket.asked:
                    self._outcomes.answer(ticket, "invalid", error=error)
                    continue
                # Unless it was done before, which is why it makes no sense any more, or is news to this copy.
                self.under_way.note_asked(ticket)
                ticket.asking = True
                proposal = store.Ask(key=ticket.key, request=ticket.request)
            tickets.append(ticket)
            proposals.append(proposal)
            self.under_way.decided(ticket)
            if proposal.changes:
                vms += ticket.vms
            ahead.plain = ahead.plain and proposal.plain
            if (assumed := ahead.placed.get(len(placed))) is None:
                placed.append(("", ()))
                continue
            if assumed.victims:
                victims[len(placed)] = replica.victims(number, len(placed))
            placed.append((assumed.tenant, tuple(map(_placed, assumed.vms))))
        self.under_way.lines.had(line, number if tickets else None, started)
        if not tickets:
            del replica.ahead[number]
            return False
        self.counters.rounds += 1
        self.under_way.rounds[number] = tickets
        seen = Round(
            agent=self.name,
            number=number,
            revision=replica.revision,
            seed=self.seed,
            ahead=beyond,
            adopted=adopted,
            placed=tuple(placed),
            victims=victims,
        )
        self.courier.send(Group(seen, proposals, self.recheck, self.settings.strict))
        return True

    def _decide(self, ticket: Ticket, round_: int, position: int) -> Proposal:
        """What to propose for an operation; raises if it makes no sense."""
        ticket.started, ticket.asking, ticket.refusal = self._clock(), False, ""
        ticket.round, ticket.position = round_, position
        operation, verb = ticket.operation, verb_of(ticket.operation)
        if ticket.tenant:
            tenants = self.replica.allocator.tenants
            known = tenants.get(ticket.tenant)
            now = known.stamp if known else 0
            if verb.check_generation is not None or not ticket.premise.holds(now):
                verb.check_premise(operation, tenants, now)
        return verb.decide(self.context, operation, ticket)

    # -------------------------------------------------------------------------------------------- taking in

    def _take_in(self, delivery: Delivery) -> None:
        """Answers first: what the feed says of the agent's own commits is then known."""
        if delivery.round is not None:
            tickets = self.under_way.returned(delivery.round)
            self.commit_seconds.append(delivery.seconds)
            self.gathering.answered(len(tickets), delivery.seconds)
            if delivery.error is not None:
                self._outcomes.forget(delivery.round, tickets, delivery.error)
            else:
                self._outcomes.confirm(delivery.round, tickets, delivery.outcomes, delivery.seconds)
            if delivery.behind:
                for ticket in tickets:
                    ticket.asked = False
        if delivery.feed is not None:
            self._outdated |= delivery.feed.reload
            self._backlog.extend(delivery.feed.rows)

    def _follow(self) -> None:
        """Take in what the feed brought, so much of it at a time; until all of it is, nothing is decided."""
        last, self._behind = self.counters.followed + FOLLOWED, False
        try:
            while self._backlog and not self._outdated:
                if self.counters.followed >= last:
                    self._behind = True
                    break
                if not self.replica.follow(self._backlog[0], self.name, more=True):
                    break  # what it rests on is still on its way
                row = self._backlog.popleft()
                if self.under_way.asked:
                    for entry in row.entries:
                        self.under_way.forget_asked(entry.key)
                self.counters.followed += row.last - row.first + 1
                if row.agent == self.name:
                    self._fed.append(row.round)
                self._outdated |= self.replica.reshaped
        finally:  # whatever cannot be followed: rows and books are to agree
            self.replica.flush()

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
        for number in list(self.under_way.unfed):
            self._outcomes.fed(number)

    # -------------------------------------------------------------------------------------------- going on

    def memory(self) -> AgentMemory:
        """What an idle agent has to remember for one on the same store to go on exactly as it would."""
        assert self.idle
        return AgentMemory(
            number=self._number,
            lots=[[int(each) for each in arm.engine.rng] for arm in self.replica.allocator.arms],
            avoidance=self.context.avoidance.memory(),
        )

    def recall(self, memory: AgentMemory) -> None:
        """Go on where another agent of this name stopped."""
        self._number = memory.number
        for arm, lots in zip(self.replica.allocator.arms, memory.lots, strict=True):
            arm.engine.rng[:] = lots
        self.context.avoidance.recall(memory.avoidance)

    # --------------------------------------------------------------------------------------------- checking

    def check_invariants(self) -> None:
        """Raise unless the copy is consistent, and, when nothing is under way, what the store holds."""
        check_sums(self.replica)
        if self.idle and not self.replica.ahead and not self.replica.adopted:
            ledger = self.store.load()
            if ledger.revision == self.replica.revision:
                check_against(self.replica, ledger)


def _at_once(load: Callable[[], Loaded]) -> Future[Loaded]:
    """Run something here and now, as a future."""
    done: Future[Loaded] = Future()
    try:
        done.set_result(load())
    except RoostError as error:
        done.set_exception(error)
    return done
