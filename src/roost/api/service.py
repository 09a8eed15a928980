"""One agent at work in an event loop: requests come in as calls that wait, and go out in rounds.

    route ─▶ submit ─▶ agent's queue ─▶ pump: agent.step ─▶ (SQLite: at once; PostgreSQL: the courier's threads)
      ▲                                        │
      └──────────── the future is done ◀───────┘

The agent is stepped in the loop's own thread: whatever arrived in one turn of the loop is decided and committed as one
group, and no lock is needed. What takes long (loading, compiling, explaining the past) runs in other threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import threading
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

import structlog

from roost.agent.agent import Agent, Loaded
from roost.agent.operation import Operation
from roost.agent.past import recall
from roost.agent.settings import AgentSettings
from roost.agent.ticket import Ticket
from roost.agent.verbs.entry import SetEntry
from roost.agent.verbs.heal import HealVMs
from roost.agent.verbs.table import verb_of
from roost.agent.warm_up import sample_of, warm_up
from roost.api.changes import ChangeLog
from roost.api.errands import Errands
from roost.api.healings import outages_of
from roost.api.metrics import Metrics
from roost.api.outlook import Outlook
from roost.api.policies import OF_POLICIES, PolicyBook
from roost.api.problems import Refused
from roost.api.pulse import Pulse
from roost.api.tokens import CLOSED, TokenBook
from roost.api.walks import WALK, WalkWatch
from roost.duties.duty import Roster
from roost.duties.healing import Healer, Lost
from roost.duties.heartbeats import NOTE, Heard, Heartbeats
from roost.duties.table import Runner, make_roster
from roost.engine.capacity import Room, room_for
from roost.engine.explain import Explanation, WhyNot
from roost.engine.ruleset import PolicySplit
from roost.engine.statistics import rule_filters
from roost.engine.steps import CutShort, Steps
from roost.model.errors import InvalidInput, RoostError, StoreBroken, StoreUnavailable
from roost.model.registry import MAINTENANCE, TOKEN
from roost.model.request import VM, Request
from roost.model.rows import MachineState
from roost.model.zone import Zone
from roost.placing.allocator import Allocator
from roost.placing.contrast import Shadow
from roost.placing.decision import Decision
from roost.rules.own import OwnRules
from roost.rules.policy import Policy, PolicySource
from roost.settings import POSTGRES, Settings
from roost.store.contract import Store
from roost.store.ledger import Ledger
from roost.wire.policies import Active
from roost.wiring import ensure_store, open_agent, open_store, settle_memory

T = TypeVar("T")
TURN_SECONDS = 0.002  # between looks whether it is the turn of something that waits
TICK_SECONDS = 0.05  # between looks at the feed, and at caches to refresh, when nobody asks for anything
MEASURE_SECONDS = 1.0  # between measurements of the zone
NEVER_SECONDS = 600.0  # between looks whether trimming was turned on meanwhile
RULE_KINDS = 16  # kinds of request whose funnels are averaged
RULES_SECONDS = 30.0  # between measurements of the rules
CATCH_UP_SECONDS = 2.0  # to wait for the feed, before something is said to make no sense
HEALER_SECONDS = 2.0  # that each further worker leaves to those before it, when machines go down
PROBE_SECONDS = 0.5  # between attempts to reach a store that is away
ANSWER_SECONDS = 3.0  # without an answer, after which a store is away
READERS = 8  # threads that look things up in the store
COMPILES_WAITING = 8  # policies that may wait to be compiled
SLOW_WAITING = 8  # snapshots and explanations of past decisions that may wait for their turn
SLOW_SECONDS = 120.0  # that these may take; clients wait as long
EXPLAIN_SECONDS = 2.0  # of computing that an explanation may take
REFUSAL_SECONDS = 0.1  # the same for one that comes with a refusal, which must not wait for it for long
REFUSAL_PATIENCE = 0.5  # seconds that such a one waits until others are done
BUSY_SECONDS = 0.05  # after a request, for which there are probably more
EXPLAINED_SECONDS = 1.0  # how long the reasons of a refusal are good for another one of the same kind
CAPACITY_SECONDS = 1.0  # how old counts may be
DAY = 86_400.0
MAY_BE = "may still be done: ask again with the same Idempotency-Key"

log = structlog.get_logger()
_lots = random.Random(os.urandom(16))


class Service:
    """The agent of this process, and all that routes need beside it."""

    store: Store
    agent: Agent

    def __init__(
        self,
        settings: Settings,
        *,
        place: int = 0,
        policy: PolicySource | None = None,
        tell: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`place`: among the workers of this host, so that each has a seed of its own. `policy`: as it was read.

        `tell` hears what is being done until all is ready, from another thread.
        """
        self.settings, self.place, self._tell = settings, place, tell
        source = policy or PolicySource.find(settings.agent.policy, OwnRules.find(settings.agent.rules))
        self._own, self.own_rules = source.policy(), source.own
        self.metrics = Metrics()
        self.ready, self.closing = False, asyncio.Event()
        self.doing = "the service is starting"  # until it is ready
        self.unusable = ""  # why what was activated does not decide here as it was activated
        self.no_shadow = ""  # why what was put in the shadow does not decide there
        self.tokens, self.policies = TokenBook({}), PolicyBook({})
        self.revoking = asyncio.Lock()  # one at a time, so that not each of the last two finds another one left
        self.changes = ChangeLog(self)
        self.queued_vms = self.queued_requests = 0
        self.down = ""  # why the store cannot be used just now
        self.unwritable = ""  # why nothing can be written to it just now, though it may be read
        self.lag = 0  # changes that the agent has not seen yet
        self._loop = asyncio.get_running_loop()
        self._pumping, self._waiting_for_turn = False, False
        self._arrived = self._gathered = 0  # requests since the last round, and those of them that it will have
        # What waits for an answer, and since when.
        self._submitted: deque[tuple[float, asyncio.Future[Ticket]]] = deque()
        self._seen = -1  # the revision of the agent's copy when it was looked at last
        self._read: tuple[object, tuple[int, ...]] = (None, ())  # the registry that was read last, and its mark
        self.roster = Roster([])  # what is seen to beside the requests, once all is ready
        self.healer: Healer | None = None  # of these, what places again what is on machines that are down
        self.heartbeats: Heartbeats | None = None  # and who was heard of, if this process counts
        self.walks = WalkWatch(self._loop.time)
        self.shadow: Shadow | None = None  # what decides beside the policy in force
        self._exchanging: asyncio.Task[None] | None = None  # heartbeats, with other processes
        self._switching: asyncio.Task[None] | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._leaving: asyncio.Future[None] = self._loop.create_future()  # done when the store goes away
        self._probing: asyncio.Task[None] | None = None
        self._asked: asyncio.Future[tuple[int, int]] | None = None  # of the store, how far its feed goes
        # A store that hangs keeps threads for a while. Nobody else is to wait for one of these.
        self._prober, self._readers = ThreadPoolExecutor(1, "roost-prober"), ThreadPoolExecutor(READERS, "roost-reader")
        self._compiling = ThreadPoolExecutor(1, "roost-compiler")
        self._compiles = 0  # that wait
        self._slow = ThreadPoolExecutor(1, "roost-slow")  # one at a time: each holds a copy of the zone
        self._slow_waiting, self._rehearsing = 0, asyncio.Lock()
        self.pulse = Pulse(self._loop, self.metrics.held.observe)
        self.errands = Errands(lambda: self._loop.time() - self._last_asked < BUSY_SECONDS)
        self._last_asked = -BUSY_SECONDS  # when somebody asked for something to be done
        self._explaining: dict[Any, asyncio.Future[Explanation]] = {}  # by kind of refusal
        self._rooms: dict[tuple[str, str], tuple[float, int, Room, Allocator]] = {}

    # ------------------------------------------------------------------------------------------------ life

    async def start(self) -> None:
        """Open the store and load the zone; keeps trying while the store is away, unless that will not help."""
        pause = PROBE_SECONDS
        while True:
            try:
                opened_with = await _aside(self._open)
                break
            except StoreBroken:
                raise
            except StoreUnavailable as error:
                self.down = str(error)
                self._do("waiting for the store")
                log.warning("the store is away", detail=str(error), again_in=pause)
                await asyncio.sleep(pause)
                pause = min(2 * pause, 5.0)
        self.down = ""
        self._read_registry()
        settle_memory()
        self.pulse.start()
        self.ready = True
        runner = Runner(
            self.agent,
            self.settings,
            clock=self._loop.time,
            time_of_day=time.time,
            noted=self._note,
            healing_delay=HEALER_SECONDS * self.place,
            listens=True,
            exchange=self._exchange if self.settings.store.url.startswith(POSTGRES) else None,
        )
        self.roster = make_roster(runner)
        self.healer, self.heartbeats = self.roster.find(Healer), self.roster.find(Heartbeats)
        if self.healer:
            self._tasks.append(asyncio.create_task(self._recall_outages(self.healer, self.agent.replica.revision)))
        outlook = Outlook(self)
        works = (
            (self._tick, TICK_SECONDS), (self._measure, MEASURE_SECONDS), (self._trim, 0.0),
            (self._measure_rules, 0.0), (outlook.look, 0.0),
        )  # fmt: skip
        for work, pause in works:
            self._tasks.append(asyncio.create_task(self._again_and_again(work, pause)))
        if self.policies.in_force != opened_with:  # activated while it was loading
            self._begin(self._switch)
        if self.policies.shadow:
            self._begin(self._cast_shadow)
        agent = self.agent
        log.info(
            "ready", agent=agent.name, revision=agent.replica.revision, machines=len(agent.allocator.zone.machines)
        )

    async def _recall_outages(self, healer: Healer, revision: int) -> None:
        """Which machines went down before this process began; what is trimmed or cannot be read counts for nothing."""
        with contextlib.suppress(RoostError):
            healer.remember(await asyncio.to_thread(outages_of, self.store, revision, time.time()))

    def _exchange(self, told: bytes, keep: float, heard: Heard) -> None:
        """What this process has heard of machines for what others have, in another thread."""

        async def exchange() -> None:
            notes = None
            try:
                with contextlib.suppress(RoostError):  # the next time will do
                    notes = await asyncio.to_thread(self.store.exchange, NOTE, self.agent.name, told, keep)
            finally:
                heard(notes)

        self._exchanging = asyncio.create_task(exchange())

    def _do(self, what: str) -> None:
        """Something is begun that may take long, before all is ready."""
        self.doing = what
        self._tell(what)

    def _open(self) -> Active | None:
        """Open the store and load the zone; returns what was activated then."""
        settings = self.settings
        self._do("opening the store")
        ensure_store(settings.store.url, settings.store.zone, self._do)  # a database that was away may be empty
        self.store = open_store(settings.store.url)
        try:
            book = PolicyBook(_policies_of(self.store), self._own, self.own_rules)
            try:
                self.agent = self._agent_by(book.split(self._own))
                self.unusable = self._told_otherwise(book)
            except InvalidInput as error:
                if book.in_force is None:
                    raise  # there is nothing else to decide by
                self._cannot_use(book.in_force, error, self._own.name)
                self.agent = self._agent_by(PolicySplit(self._own))
            return book.in_force
        except BaseException:
            self.store.close()
            raise

    def _agent_by(self, split: PolicySplit) -> Agent:
        given, settings = self.settings.agent, self.settings

        def prepare(ledger: Ledger) -> None:
            """Nobody's first request is to wait for a compiler."""
            sample = sample_of(ledger)
            for policy in split.policies:
                self._do(f"compiling the rules of {policy.name}")
                warm_up(sample, policy)
            self._do(f"loading {len(ledger.machines):,} machines and {len(ledger.vms):,} VMs")

        self._do("reading the zone")
        return open_agent(
            self.store,
            split,
            seed=(given.seed + self.place) if given.seed else random.SystemRandom().getrandbits(62),
            settings=AgentSettings(
                retries=given.retries,
                group=given.group,
                group_vms=given.group_vms,
                top=given.top,
                window=given.window,
            ),
            patience=settings.store.patience_seconds,
            notify=self._poke,
            background=self._in_background,
            prepare=prepare,
        )

    def _in_background(self, load: Callable[[], Loaded]) -> Future[Loaded]:
        loading: Future[Loaded] = Future()

        def run() -> None:
            try:
                loading.set_result(load())
            except StoreUnavailable as error:
                loading.set_exception(error)  # it will be tried again
            except BaseException as error:
                log.exception("the zone could not be loaded anew")
                loading.set_exception(StoreUnavailable(f"it cannot be loaded: {error!r}"))
            self._poke()

        self._loop.run_in_executor(None, run)
        return loading

    async def stop(self, deadline: float) -> None:
        """Finish what is under way, until a time, and let go of the store."""
        self.closing.set()
        if not self.ready:
            return
        while not self.agent.idle and not self.down and time.monotonic() < deadline:
            self._pump()
            await asyncio.sleep(0.001)
        self.ready = False
        tasks = [*self._tasks, *(task for task in (self._switching, self._exchanging, self._probing) if task)]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for pool in (self._slow, self._compiling, self._readers, self._prober):
            pool.shutdown(wait=False, cancel_futures=True)
        await _aside(self._let_go)

    def _let_go(self) -> None:
        self.store.close()  # first: whoever waits for it gives up
        self.agent.close()

    # ---------------------------------------------------------------------------------------------- asking

    def submit(self, operation: Operation, key: str = "", by: str = "") -> asyncio.Future[Ticket]:
        """Have something done; the future brings the ticket with its answer. Refuses what is too much."""
        self.check_open(writing=True)
        limits, ticket = self.settings.limits, self.agent.ticket(operation, key, by=by)
        vms = ticket.vms
        too_much = self.queued_vms + vms > limits.queued_vms
        if too_much and not self.queued_vms:  # a tenant may be deleted however large it is, if nothing else waits
            too_much = verb_of(operation).places
        if self.queued_requests >= limits.queued_requests or too_much:
            self.metrics.shed.inc()
            raise Refused("roost.overloaded", f"{self.queued_requests:,} requests are waiting")
        done: asyncio.Future[Ticket] = self._loop.create_future()
        ticket.done = partial(self._done, ticket, done)
        self.agent.under_way.queue(ticket)
        self._arrived += 1
        self.queued_requests += 1
        self.queued_vms += vms
        self._last_asked = self._loop.time()
        self._submitted.append((self._last_asked, done))
        self._pump_soon()
        return done

    def _done(self, ticket: Ticket, done: asyncio.Future[Ticket], _: object) -> None:
        self.queued_requests -= 1
        self.queued_vms -= ticket.vms
        answer = ticket.answer
        self._note(ticket)
        if answer is not None and answer.status == "unavailable":
            self._cannot_write(answer.detail)
        if not done.done():
            done.set_result(ticket)

    def _note(self, ticket: Ticket) -> None:
        """A request was answered."""
        operation = ticket.operation
        if verb_of(operation).places:
            self.metrics.note(ticket, self.agent.replica.allocator.arm_of(ticket.tenant).policy.name)
        if isinstance(operation, HealVMs):
            self._note_unhealed(ticket, operation)

    def _note_unhealed(self, ticket: Ticket, operation: HealVMs) -> None:
        """Say of VMs that found no machine why not, for whoever looks at what waits."""
        answer, healer, vm = ticket.answer, self.healer, operation.vms[0]
        declined = answer is not None and answer.status == "declined" and len(operation.vms) == 1
        if declined and healer is not None and healer.may_tell(vm) and (lost := healer.waiting.get(vm)):
            self._keep(asyncio.create_task(self._tell_why(lost, ticket)))

    async def _tell_why(self, lost: Lost, ticket: Ticket) -> None:
        if found := await self.explain_refusal(ticket, remedied=False):
            lost.why = found.summary

    def _keep(self, task: asyncio.Task[None]) -> None:
        """A task that nobody waits for."""
        self._tasks = [each for each in self._tasks if not each.done()]
        self._tasks.append(task)

    async def rehearse(self, operation: Operation, by: str = "") -> Ticket:
        """What would come of it; nothing is done."""
        trying = asyncio.ensure_future(self._rehearse(operation, by))
        return await self._in_time(trying, self.settings.limits.request_seconds)

    async def _rehearse(self, operation: Operation, by: str) -> Ticket:
        """Tried as often as the real thing, if others are faster."""
        retries, looked = 0, False
        while True:
            ticket, made_sense = await self._rehearse_once(operation, by, retries)
            if ticket.answer is None:
                retries = ticket.retries
                if not await self._catch_up():  # it will be told of any moment
                    await asyncio.sleep(TICK_SECONDS)
            elif made_sense or looked or not await self._catch_up():
                return ticket
            else:
                looked = True  # it may be news to the agent what it speaks of

    async def _rehearse_once(self, operation: Operation, by: str, retries: int) -> tuple[Ticket, bool]:
        """What would come of it, unless others are faster; and whether it made sense to the agent."""
        self.check_open()
        async with self._rehearsing:
            ticket, proposal = self.agent.rehearse(operation, by=by, retries=retries)
            while ticket.unfinished:
                await asyncio.sleep(0)
                ticket, proposal = self.agent.rehearse(operation, by=by, retries=retries, search=ticket.search)
            if proposal is not None:
                recheck = self.agent.make_recheck()
                outcomes = await self.read(lambda store: store.commit([proposal], recheck, dry=True))
                self.agent.conclude(ticket, outcomes[0])
        return ticket, proposal is not None

    async def _catch_up(self) -> bool:
        """Wait until the agent has seen all that is in the feed now; whether there was something."""
        last, _ = await self.read(lambda store: store.head())
        behind, deadline = self.agent.replica.revision < last, self._loop.time() + CATCH_UP_SECONDS
        while self.agent.replica.revision < last and self._loop.time() < deadline:
            await asyncio.sleep(TICK_SECONDS)
        return behind

    def check_open(self, *, writing: bool = False) -> None:
        """Refuse while nothing can be done, or nothing that is to be `writing`."""
        if self.down:
            raise Refused("roost.store_unavailable", self.down)
        if not self.ready:
            raise Refused("roost.starting", self.doing)
        if writing and self.unwritable:
            raise Refused("roost.store_unavailable", f"the store can be read, but not written: {self.unwritable}")

    async def read(self, look: Callable[[Store], T]) -> T:
        """Something from the store, read in another thread."""
        self.check_open()
        return await self._look(self._readers, look, self.settings.limits.request_seconds)

    async def read_slowly(self, look: Callable[[Store], T]) -> T:
        """Something that takes a copy of the whole zone; one at a time."""
        self.check_open()
        if self._slow_waiting >= SLOW_WAITING:
            raise Refused("roost.overloaded", f"{self._slow_waiting} others wait for a copy of the zone")
        self._slow_waiting += 1
        seconds = max(SLOW_SECONDS, self.settings.limits.request_seconds)
        try:
            return await self._look(self._slow, look, seconds)
        finally:
            self._slow_waiting -= 1

    async def _look(self, pool: ThreadPoolExecutor, look: Callable[[Store], T], seconds: float) -> T:
        try:
            return await self._in_time(self._loop.run_in_executor(pool, look, self.store), seconds)
        except StoreBroken:
            raise  # of what is there, something cannot be read
        except StoreUnavailable as error:
            self._went_away(str(error))
            raise

    async def _in_time(self, reading: asyncio.Future[T], seconds: float) -> T:
        """What comes in the time that an answer may take, and before the store goes away: nobody waits for ever."""
        leaving = self._leaving
        try:
            await asyncio.wait((reading, leaving), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            if reading.done() and not reading.cancelled():
                return reading.result()
        finally:
            reading.cancel()
        if self.closing.is_set():  # nobody reads any more
            raise Refused("roost.store_unavailable", "the service stops")
        if leaving.done():
            raise Refused("roost.store_unavailable", self.down or "the store went away")
        raise Refused("roost.timeout", "the store did not answer in time")

    async def enter(self, kind: str, name: str, value: str | None, key: str, by: str, *, new: bool = False) -> Ticket:
        """Set an entry of the registry, or remove it; `new`: only if there is none yet."""
        ticket = await self.submit(SetEntry(kind, name, value, new), key, by)
        self._read_registry()
        return ticket

    # --------------------------------------------------------------------------------------------- working

    def _poke(self) -> None:
        """From any thread: there is something to do."""
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._pump_soon)

    def _pump_soon(self) -> None:
        if not self._pumping and self.ready:
            self._pumping = True
            self._loop.call_soon(self._gather)

    def _gather(self) -> None:
        """Wait for as long as every turn of the loop brings more requests: together they cost less."""
        if self._gathered < self._arrived < self.agent.settings.group:
            self._gathered = self._arrived
            self._loop.call_soon(self._gather)
        else:
            self._pump()

    def _pump(self) -> None:
        """Decide what is queued, answer what is committed; then let the loop turn before the next round."""
        agent, self._pumping = self.agent, False
        self._arrived = self._gathered = 0
        try:
            if agent.step():
                self._pump_soon()
            elif agent.waiting and not agent.full and not self._waiting_for_turn:
                self._waiting_for_turn = True
                self._loop.call_later(TURN_SECONDS, self._take_turn)
            replica = agent.replica
            if replica.revision != self._seen or replica is not self._read[0]:
                self._seen = replica.revision
                self._look_around()
        except Exception:  # a bug: the next turn may do better, and nobody else must suffer
            log.exception("the agent stumbled")

    def _look_around(self) -> None:
        """The agent has seen more of the feed: there may be something in it for others."""
        if self._read != self._marked():
            self._read_registry()
        self.changes.wake()

    def _take_turn(self) -> None:
        self._waiting_for_turn = False
        self._pump_soon()

    async def _again_and_again(self, work: Callable[[], Awaitable[None]], pause: float) -> None:
        """For as long as the service lives, whatever one turn runs into."""
        while True:
            await asyncio.sleep(pause)
            try:
                await work()
            except Exception:
                log.exception("a bug", work=work.__name__)
                await asyncio.sleep(MEASURE_SECONDS)

    async def _tick(self) -> None:
        """Look at the feed and refresh caches when nobody asks for anything; let nobody wait for ever."""
        if not (self.down or self.unwritable or self.closing.is_set()):
            self.walks.look(self.agent.replica.registry.get((MAINTENANCE, WALK)))
            self.roster.step(self._loop.time())
        if not self._pumping:
            self._pump()
        self._give_up_waiting()

    def _give_up_waiting(self) -> None:
        """Answer what nobody should wait for any longer; what was sent to the store may still be done there."""
        seconds, why = self.settings.limits.request_seconds, Refused("roost.timeout", f"it {MAY_BE}")
        if self.down:
            seconds = min(seconds, self.settings.store.patience_seconds)
            why = Refused("roost.store_unavailable", f"{self.down}; what was asked {MAY_BE}")
        waiting, since = self._submitted, self._loop.time() - seconds
        while waiting and (waiting[0][0] < since or waiting[0][1].done()):
            _, future = waiting.popleft()
            if not future.done():
                future.set_exception(why)

    async def _measure(self) -> None:
        """Keep the metrics up to date, and see whether the store answers."""
        try:
            last, _ = await self._head()
            self.lag = max(0, last - self.agent.replica.revision)
        except RoostError as error:  # /readyz and metrics are to tell, even if nobody asks for anything
            self._went_away(str(error))
        self.metrics.measure(self)

    async def _measure_rules(self) -> None:
        """The same of how much the rules filter out, which takes longer."""
        with contextlib.suppress(Refused, CutShort):  # the next time will do
            filters = partial(rule_filters, self.agent.allocator.engine, RULE_KINDS)
            self.metrics.measure_rules(await self.errands.run(filters, EXPLAIN_SECONDS))
        await asyncio.sleep(RULES_SECONDS)

    async def _trim(self) -> None:
        """Forget what is older than it has to be remembered."""
        await asyncio.sleep(self.settings.retention.every_seconds or NEVER_SECONDS)
        retention = self.settings.retention
        if retention.every_seconds:
            with contextlib.suppress(RoostError):  # the next time will do
                await asyncio.to_thread(self.store.trim, retention.revisions, retention.decisions_days * DAY)

    async def _head(self) -> tuple[int, int]:
        """How far the feed goes, asked by one thread and for a short time: so it tells that a store hangs."""
        if self._asked is None or self._asked.done():
            self._asked = self._loop.run_in_executor(self._prober, self.store.head)
        asked = self._asked
        await asyncio.wait((asked,), timeout=ANSWER_SECONDS)
        if not asked.done():
            raise StoreUnavailable(f"the store has not answered for {ANSWER_SECONDS:g} s")
        return asked.result()

    def _went_away(self, why: str) -> None:
        """The store cannot be reached: refuse at once, until it can."""
        if not self.down and self.ready:
            self.down = why
            log.error("the store went away", detail=why)
            self._leaving.set_result(None)
            self._leaving = self._loop.create_future()
            self._probe_on()

    def _cannot_write(self, why: str) -> None:
        """Something could not be committed: refuse to write at once, until it works; what can be read is read."""
        if not self.unwritable and self.ready:
            self.unwritable = why
            log.error("the store cannot be written", detail=why)
            self._probe_on()

    def _probe_on(self) -> None:
        if self._probing is None or self._probing.done():
            self._probing = asyncio.create_task(self._probe())

    async def _probe(self) -> None:
        """Until the store answers and can be written."""
        while self.down or self.unwritable:
            try:
                await self._try_reading()
                if self.unwritable and not self.down:
                    await self._try_writing()
            except Exception:  # a bug must not end this: nobody else would find that the store is well
                log.exception("the store could not be tried")
            await asyncio.sleep(PROBE_SECONDS)

    async def _try_reading(self) -> None:
        try:
            await self._head()
            if self.down:
                self.down = ""
                log.info("the store is back")
        except RoostError as error:
            self._went_away(str(error))
            self.down = str(error)

    async def _try_writing(self) -> None:
        try:
            # Not by the one who asks how far the feed goes: on a disk that hangs, what can be read is read.
            await _aside(self.store.try_writing)
            self.unwritable = ""
            log.info("the store can be written again")
        except RoostError as error:
            self.unwritable = str(error)

    # -------------------------------------------------------------------------------------- the registry

    def _marked(self) -> tuple[object, tuple[int, ...]]:
        """Another value once there is something new to take in. What else is in the registry is no matter here."""
        replica = self.agent.replica
        return replica, replica.registry.mark(TOKEN, CLOSED[0], *OF_POLICIES)

    def _read_registry(self) -> None:
        """Take in tokens and policies as the feed brought them."""
        registry, self._read = self.agent.replica.registry, self._marked()
        self.tokens = TokenBook(registry.of(TOKEN), closed=CLOSED in registry)
        before, self.policies = self.policies, PolicyBook(registry.only(*OF_POLICIES), self._own, self.own_rules)
        if self.policies.in_force != before.in_force and self.ready:
            self._begin(self._switch)
        if self.policies.shadow != before.shadow and self.ready:
            self._begin(self._cast_shadow)

    def _begin(self, work: Callable[[], Awaitable[None]]) -> None:
        """Do something once what was begun before is done."""
        self._switching = asyncio.create_task(self._after(self._switching, work))
        self._switching.add_done_callback(lambda task: task.cancelled() or task.exception())  # whoever waits is told

    async def _after(self, earlier: asyncio.Task[None] | None, work: Callable[[], Awaitable[None]]) -> None:
        if earlier is not None and not earlier.done():
            await asyncio.wait([earlier])
        await work()

    async def _switch(self) -> None:
        """Decide as the registry says, once all that needs is compiled."""
        book = self.policies
        try:
            split = book.split(self._own)
            for policy in split.policies:
                await self._compile(policy, looking=book.shadow is not None)
            self.agent.switch(split)
            self.unusable = self._told_otherwise(book)
            log.info("policies in force", policies=[each.name for each in split.policies], share=split.share)
        except RoostError as error:
            if book.in_force is not None:
                self._cannot_use(book.in_force, error, self.agent.split.main.name)
            raise

    def _cannot_use(self, active: Active, error: RoostError, instead: str) -> None:
        """What was activated does not work here: what decided before goes on, and whoever looks is told."""
        wanted = " and ".join(name for name in (active.policy, active.against) if name)
        self.unusable = f"{wanted} cannot decide here, {instead} does: {error}"
        log.error(
            "a policy was activated that does not work here", policy=wanted, decides=instead, detail=str(error),
            remedy="list its rules in agent.rules and restart the service, or activate another one",
        )  # fmt: skip

    def _told_otherwise(self, book: PolicyBook) -> str:
        """Which of the policies in force have rules of one's own that are not those they were activated with."""
        chosen = book.in_force
        if chosen is None:
            return ""
        split, told = book.split(self._own), (chosen.digest, chosen.against_digest)
        others = [each.name for each, digest in zip(split.policies, told, strict=False) if each.digest != digest]
        if not others:
            return ""
        problem = f"{' and '.join(others)} decides by rules that are not what they were when it was activated"
        log.warning(problem, remedy="activate it again, if that is what is wanted")
        return problem

    async def _cast_shadow(self) -> None:
        """Let decide beside the policy in force what the registry says, once it is compiled."""
        try:
            policy, wanted = self.policies.in_shadow(), self.policies.shadow
            shadow = None
            if policy is not None and wanted is not None:
                for each in (policy, *self.agent.split.policies):
                    await self._compile(each, looking=True)
                shadow = Shadow(policy, wanted.share, stopped=partial(_say_stopped, policy.name))
                shadow.join(self.agent.allocator)
            self.shadow, self.no_shadow = shadow, ""
            self.agent.context.shadow = shadow
            log.info("policy in the shadow", policy=policy.name if policy else "")
        except RoostError as error:
            self.shadow = self.agent.context.shadow = None  # what was there before was ended
            self.no_shadow = str(error)
            log.error("a policy was put in the shadow that does not work here", detail=str(error))
            raise

    async def prepare(self, text_or_policy: str | Policy) -> Policy:
        """Read a policy and compile it; one that does not work raises. Only so many wait for it at a time."""
        if self._compiles >= COMPILES_WAITING:
            raise Refused("roost.overloaded", f"{self._compiles} policies are waiting to be compiled")
        self._compiles += 1
        try:
            return await self._compile(text_or_policy)
        finally:
            self._compiles -= 1

    async def _compile(self, text_or_policy: Any, *, looking: bool = False) -> Policy:
        """In a thread of its own: it may take half a minute."""
        job = partial(_compiled, self.agent.allocator.zone, text_or_policy, self.own_rules, looking)
        return await self._loop.run_in_executor(self._compiling, job)

    async def switched(self) -> None:
        """Until what the registry says is what decides; raises if that did not work."""
        if self._switching is not None:
            await self._switching

    # ------------------------------------------------------------------------------------------ explaining

    async def explain(self, request: Request, vm: int | None) -> Explanation:
        """Why a request would be placed as it would be now, or not at all."""
        return await self._explained_in_time(partial(self.agent.context.explaining, request, vm), EXPLAIN_SECONDS)

    async def why_not(self, request: Request, machine: str, vm: int | None) -> WhyNot:
        """Why a machine would not get a VM of a request now."""
        tell = partial(self.agent.context.telling_why_not, request, machine, vm)
        return await self._explained_in_time(tell, EXPLAIN_SECONDS)

    async def _explained_in_time(self, begin: Callable[[], Steps[T]], seconds: float) -> T:
        try:
            return await self.errands.run(begin, seconds)
        except CutShort:
            raise Refused("roost.timeout", f"it takes more than {seconds:g} s to explain; ask for fewer VMs") from None

    async def explain_refusal(self, ticket: Ticket, *, remedied: bool = True) -> Explanation | None:
        """Why a request found no room, if there is time to look. One of the same kind answers for a second.

        Not `remedied`: nobody wants to know what would make it fit.
        """
        decision = ticket.decision
        if decision is None:
            return None
        kind = (*_kind(decision), remedied)
        if kind not in self._explaining:
            begin = partial(decision.explaining, remedied=remedied)
            asked = asyncio.ensure_future(self.errands.run(begin, REFUSAL_SECONDS, REFUSAL_PATIENCE))
            self._explaining[kind] = asked
            self._loop.call_later(EXPLAINED_SECONDS, self._explaining.pop, kind, None)
        try:
            return await asyncio.shield(self._explaining[kind])
        except (Refused, RoostError, CutShort):  # nobody has time, or the zone has moved on too far
            return None

    async def past(self, key: str, look: Callable[[Any], T]) -> T:
        """Look at a past decision as it was made."""
        policies = self.policies
        return await self.read_slowly(lambda store: look(recall(store, key, policies.recorded)))

    def since(self, at: float | None) -> float:
        """Seconds since a moment by the loop's clock; 0 if it never came."""
        return 0.0 if at is None else max(0.0, self._loop.time() - at)

    def is_down(self, machine: str) -> bool:
        """Whether a machine does not work, as far as this agent knows."""
        allocator = self.agent.allocator
        m = allocator.zone.machine_index.get(machine)
        return m is not None and bool(allocator.view.machines["state"][m] == MachineState.DOWN)

    def room(self, vm_type: str, priority: str) -> tuple[int, Room]:
        """How many more of a type fit, and at which revision that was counted."""
        now = self._loop.time()
        known = self._rooms.get((vm_type, priority))
        allocator = self.agent.allocator
        if known is None or known[0] < now or known[3] is not allocator:  # or the zone has other clusters by now
            arm = allocator.arms[0]
            counted = room_for(arm.engine, arm.shapes.of(VM(vm_type, priority=priority), 0, "type"))
            known = now + CAPACITY_SECONDS, self.agent.replica.revision, counted, allocator
            if len(self._rooms) > 10_000:
                self._rooms.clear()
            self._rooms[vm_type, priority] = known
        return known[1], known[2]


def _kind(decision: Decision) -> tuple[Any, ...]:
    """What refusals have in common that have the same reasons: of a tenant that has VMs none but itself."""
    trial = decision.trial
    known = any(part.homes for part in trial.seating.parts.values())
    shapes = tuple([(shape.machine_key, shape.cluster_key, run) for shape, run in Counter(trial.shapes).items()])
    tenant = decision.request.tenant if known else ""
    return id(decision.engine), tenant, decision.constraints, trial.seating.sets, shapes, trial.failed_vm


async def _aside(work: Callable[[], T]) -> T:
    """Do something in a thread that nobody waits for when the process ends: it may wait for what never comes."""
    done: Future[T] = Future()
    done.set_running_or_notify_cancel()  # whoever gives up waiting does not stop it

    def run() -> None:
        try:
            done.set_result(work())
        except BaseException as error:
            done.set_exception(error)

    threading.Thread(target=run, name="roost-aside", daemon=True).start()
    return await asyncio.wrap_future(done)


def _compiled(zone: Zone, text_or_policy: str | Policy, rules: OwnRules, looking: bool) -> Policy:
    policy = text_or_policy
    if isinstance(policy, str):
        policy = Policy.parse(policy, own=rules, only_named=True)
    warm_up(zone, policy, looking=looking)
    return policy


def _say_stopped(policy: str, problem: str) -> None:
    log.error("the policy in the shadow is switched off: it does not work here", policy=policy, detail=problem)


def new_key(namespace: str = "") -> str:
    """A key for somebody who gave none. Ordered by time: keys at random would touch a page of the index each."""
    made = f"{time.time_ns() // 1_000:013x}{_lots.getrandbits(48):012x}"
    return f"{namespace}:{made}" if namespace else made


def _policies_of(store: Store) -> dict[tuple[str, str], str]:
    """What a registry says of policies, before there is an agent that follows it."""
    return {(kind, name): value for kind in OF_POLICIES for name, value in store.registry(kind).items()}
