"""One agent at work in an event loop: requests come in as calls that wait, and go out in rounds.

    route ─▶ submit ─▶ agent's queue ─▶ pump: agent.step ─▶ (SQLite: at once; PostgreSQL: the courier's threads)
      ▲                                        │
      └──────────── the future is done ◀───────┘

The agent is stepped in the loop's own thread: whatever arrived in one turn of the loop is decided and committed as one
group, and no lock is needed. What takes long (loading, compiling, explaining the past) runs in other threads.

Parts, each with what it needs and no more: `opening` (the store, the zone), `pump` (rounds), `store_watch` (is the
store there), `reading` (looks into the store), `rehearsing` (dry runs), `switching` (which policy decides),
`explaining` (why). What runs beside the requests are duties (`roost.duties`), stepped by `_tick`.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NoReturn, TypeVar

import structlog

from roost.agent.agent import Agent
from roost.agent.operation import Operation
from roost.agent.past import recall
from roost.agent.replica import Replica
from roost.agent.ticket import Ticket
from roost.agent.verbs.entry import SetEntry
from roost.agent.verbs.table import verb_of
from roost.api.aside import aside
from roost.api.changes import ChangeLog
from roost.api.explaining import EXPLAIN_SECONDS, Explainer
from roost.api.metrics import Metrics
from roost.api.opening import Opening
from roost.api.policies import OF_POLICIES, PolicyBook
from roost.api.problems import Refused
from roost.api.pulse import Pulse
from roost.api.pump import Pump
from roost.api.reading import StoreReader
from roost.api.rehearsing import Rehearsals
from roost.api.store_watch import PROBE_SECONDS, StoreWatch
from roost.api.switching import PolicySwitch
from roost.api.tokens import CLOSED, TokenBook
from roost.api.walks import WALK, WalkWatch
from roost.duties.duty import Roster
from roost.duties.healing import Healer
from roost.duties.heartbeats import Heartbeats
from roost.duties.table import DUTIES, Runner, make_roster
from roost.duties.trimming import Trimming
from roost.engine.statistics import rule_filters
from roost.engine.steps import CutShort
from roost.model.errors import RoostError, StoreBroken, StoreUnavailable
from roost.model.registry import MAINTENANCE, TOKEN
from roost.rules.own import OwnRules
from roost.rules.policy import PolicySource
from roost.settings import Settings
from roost.store.contract import Store
from roost.wire.policies import Active
from roost.wiring import calm_collector

T = TypeVar("T")
TICK_SECONDS = 0.05  # between looks at the feed, and at caches to refresh, when nobody asks for anything
MEASURE_SECONDS = 1.0  # between measurements of the zone
RULE_KINDS = 16  # kinds of request whose funnels are averaged
RULES_SECONDS = 30.0  # between measurements of the rules
BUSY_SECONDS = 0.05  # after a request, for which there are probably more
MAY_BE = "may still be done: ask again with the same Idempotency-Key"

log = structlog.get_logger()


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
        self.metrics = Metrics()
        self.ready, self.closing = False, asyncio.Event()
        self.doing = "the service is starting"  # until it is ready
        self.tokens = TokenBook({})
        self.revoking = asyncio.Lock()  # one at a time, so that not each of the last two finds another one left
        self.changes = ChangeLog(self)
        self.queued_vms = self.queued_requests = 0
        self.lag = 0  # changes that the agent has not seen yet
        self._loop = loop = asyncio.get_running_loop()
        self._seen = -1  # the revision of the agent's copy when it was looked at last
        # What waits for an answer, and since when.
        self._submitted: deque[tuple[float, asyncio.Future[Ticket]]] = deque()
        self._last_asked = -BUSY_SECONDS  # when somebody asked for something to be done
        self._read: tuple[object, tuple[int, ...]] = (None, ())  # the registry that was read last, and its mark
        self.roster = Roster([])  # what is seen to beside the requests, once all is ready
        self.healer: Healer | None = None  # of these, what places again what is on machines that are down
        self.heartbeats: Heartbeats | None = None  # and who was heard of, if this process counts
        self.walks = WalkWatch(loop.time)
        self.pump, self.watch = Pump(loop, self._stepped), StoreWatch(loop)
        self.reader, self._rehearsals = StoreReader(loop, self.watch, self.closing), Rehearsals(self)
        source = policy or PolicySource.find(settings.agent.policy, OwnRules.find(settings.agent.rules))
        self.switch = PolicySwitch(loop, source)
        self.explainer = Explainer(loop, lambda: loop.time() - self._last_asked < BUSY_SECONDS)
        self.pulse = Pulse(loop, self.metrics.held.observe)
        self._duty_threads = ThreadPoolExecutor(len(DUTIES), "roost-duty")  # each duty has one thing done at a time
        self._tasks: list[asyncio.Task[None]] = []

    # ------------------------------------------------------------------------------------------------ life

    async def start(self) -> None:
        """Open the store and load the zone; keeps trying while the store is away, unless that will not help."""
        opened_with = await self._open()
        self._read_registry()
        calm_collector()
        self.pulse.start()
        self.ready = self.pump.on = self.watch.on = True
        self._take_up_duties()
        works = ((self._tick, TICK_SECONDS), (self._measure, MEASURE_SECONDS), (self._measure_rules, 0.0))
        for work, pause in works:
            self._tasks.append(asyncio.create_task(_again_and_again(work, pause)))
        # Something may have been activated while it was loading.
        self.switch.catch_up(opened_with, shadow=self.switch.book.shadow is not None)
        agent = self.agent
        log.info(
            "ready", agent=agent.name, revision=agent.replica.revision, machines=len(agent.allocator.zone.machines)
        )

    async def _open(self) -> Active | None:
        """What was activated when the zone was loaded."""
        execute = partial(self._loop.run_in_executor, None)
        opening, pause = (
            Opening(self.settings, self.place, self.switch, self._do, self.pump.poke, execute),
            PROBE_SECONDS,
        )
        while True:
            try:
                self.store, self.agent, opened_with = await aside(opening.open)
                break
            except StoreBroken:
                raise
            except StoreUnavailable as error:
                self.watch.down = str(error)
                self._do("waiting for the store")
                log.warning("the store is away", detail=str(error), again_in=pause)
                await asyncio.sleep(pause)
                pause = min(2 * pause, 5.0)
        self.watch.down, self.watch.store = "", self.store
        self.pump.agent = self.switch.agent = self.explainer.agent = self.agent
        return opened_with

    def _take_up_duties(self) -> None:
        runner = Runner(
            self.agent,
            self.settings,
            clock=self.agent.context.clock,
            time_of_day=self.agent.context.now,
            noted=self._note,
            place=self.place,
            executor=self._duty_threads,
            listens=True,
        )
        self.roster = make_roster(runner)
        self.healer, self.heartbeats = self.roster.find(Healer), self.roster.find(Heartbeats)

    def renew(self, settings: Settings) -> None:
        """Go by other settings from now on, as far as that can be without a restart."""
        self.settings = settings
        if (trimming := self.roster.find(Trimming)) is not None:
            trimming.retention = settings.retention

    def _do(self, what: str) -> None:
        """Something is begun that may take long, before all is ready."""
        self.doing = what
        self._tell(what)

    async def stop(self, deadline: float) -> None:
        """Finish what is under way, until a time, and let go of the store."""
        self.closing.set()
        if not self.ready:
            return
        while not self.agent.idle and not self.watch.down and time.monotonic() < deadline:
            self.pump.step()
            await asyncio.sleep(0.001)
        self.ready = self.pump.on = False
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for part in (self.switch, self.explainer, self.watch):
            await part.stop()
        self.reader.stop()
        self._duty_threads.shutdown(wait=False, cancel_futures=True)
        await aside(self._let_go)

    def _let_go(self) -> None:
        self.store.close()  # first: whoever waits for it gives up
        self.agent.close()

    # ---------------------------------------------------------------------------------------------- asking

    def submit(self, operation: Operation, key: str = "", by: str = "") -> asyncio.Future[Ticket]:
        """Have something done; the future brings the ticket with its answer. Refuses what is too much."""
        self.check_open(writing=True)
        limits = self.settings.limits
        if self.queued_requests >= limits.queued_requests:  # before it costs anything
            self._shed()
        ticket = self.agent.ticket(operation, key, by=by)
        vms = ticket.vms
        too_much = self.queued_vms + vms > limits.queued_vms
        if too_much and not self.queued_vms:  # a tenant may be deleted however large it is, if nothing else waits
            too_much = verb_of(operation).places
        if too_much:
            self._shed()
        done: asyncio.Future[Ticket] = self._loop.create_future()
        ticket.done = partial(self._done, ticket, done)
        self.agent.under_way.queue(ticket)
        self.pump.arrived += 1
        self.queued_requests += 1
        self.queued_vms += vms
        self._last_asked = self._loop.time()
        self._submitted.append((self._last_asked, done))
        self.pump.soon()
        return done

    def _shed(self) -> NoReturn:
        """Refuse what is too much."""
        self.metrics.shed.inc()
        raise Refused("roost.overloaded", f"{self.queued_requests:,} requests are waiting")

    def _done(self, ticket: Ticket, done: asyncio.Future[Ticket], _: object) -> None:
        self.queued_requests -= 1
        self.queued_vms -= ticket.vms
        answer = ticket.answer
        self._note(ticket)
        if answer is not None and answer.status == "unavailable":
            self.watch.cannot_write(answer.detail)
        if not done.done():
            done.set_result(ticket)

    def _note(self, ticket: Ticket) -> None:
        """A request was answered."""
        if verb_of(ticket.operation).places:
            self.metrics.note(ticket, self.agent.replica.allocator.arm_of(ticket.tenant).policy.name)
        if self.healer is not None and ticket.answer is not None and ticket.answer.status == "declined":
            self.explainer.note_unhealed(ticket, self.healer)

    async def rehearse(self, operation: Operation, by: str = "") -> Ticket:
        """What would come of it; nothing is done."""
        trying = asyncio.ensure_future(self._rehearsals.run(operation, by))
        return await self.reader.in_time(trying, self.settings.limits.request_seconds)

    def check_open(self, *, writing: bool = False) -> None:
        """Refuse while nothing can be done, or nothing that is to be `writing`."""
        watch = self.watch
        if watch.down:
            raise Refused("roost.store_unavailable", watch.down)
        if not self.ready:
            raise Refused("roost.starting", self.doing)
        if writing and watch.unwritable:
            raise Refused("roost.store_unavailable", f"the store can be read, but not written: {watch.unwritable}")

    async def read(self, look: Callable[[Store], T]) -> T:
        """Something from the store, read in another thread."""
        self.check_open()
        return await self.reader.read(look, self.settings.limits.request_seconds)

    async def read_slowly(self, look: Callable[[Store], T]) -> T:
        """Something that takes a copy of the whole zone; one at a time."""
        self.check_open()
        return await self.reader.read_slowly(look, self.settings.limits.request_seconds)

    async def past(self, key: str, look: Callable[[Any], T]) -> T:
        """Look at a past decision as it was made."""
        policies = self.switch.book
        return await self.read_slowly(lambda store: look(recall(store, key, policies.recorded)))

    async def enter(self, kind: str, name: str, value: str | None, key: str, by: str, *, new: bool = False) -> Ticket:
        """Set an entry of the registry, or remove it; `new`: only if there is none yet."""
        ticket = await self.submit(SetEntry(kind, name, value, new), key, by)
        self._read_registry()
        return ticket

    # --------------------------------------------------------------------------------------------- working

    def _stepped(self) -> None:
        """The agent may have seen more of the feed: there may be something in it for others."""
        replica = self.agent.replica
        if replica.revision == self._seen and replica is self._read[0]:
            return
        self._seen = replica.revision
        if self._read != _marked(replica):
            self._read_registry()
        self.changes.wake()

    def _read_registry(self) -> None:
        """Take in tokens and policies as the feed brought them."""
        registry, self._read = self.agent.replica.registry, _marked(self.agent.replica)
        self.tokens = TokenBook(registry.of(TOKEN), closed=CLOSED in registry)
        book = PolicyBook(registry.only(*OF_POLICIES), self.switch.own, self.switch.rules)
        self.switch.take_in(book, act=self.ready)

    async def _tick(self) -> None:
        """Look at the feed and refresh caches when nobody asks for anything; let nobody wait for ever."""
        if not (self.watch.down or self.watch.unwritable or self.closing.is_set()):
            self.walks.look(self.agent.replica.registry.get((MAINTENANCE, WALK)))
            self.roster.step(self.agent.context.clock())
        if not self.pump.begun:
            self.pump.step()
        self._give_up_waiting()

    def _give_up_waiting(self) -> None:
        """Answer what nobody should wait for any longer; what was sent to the store may still be done there."""
        seconds, why = self.settings.limits.request_seconds, Refused("roost.timeout", f"it {MAY_BE}")
        if self.watch.down:
            seconds = min(seconds, self.settings.store.patience_seconds)
            why = Refused("roost.store_unavailable", f"{self.watch.down}; what was asked {MAY_BE}")
        waiting, since = self._submitted, self._loop.time() - seconds
        while waiting and (waiting[0][0] < since or waiting[0][1].done()):
            _, future = waiting.popleft()
            if not future.done():
                future.set_exception(why)

    # ------------------------------------------------------------------------------------------- measuring

    async def _measure(self) -> None:
        """Keep the metrics up to date, and see whether the store answers."""
        self.metrics.pour()  # at once: a store that is away keeps one waiting
        try:
            last, _ = await self.watch.head()
            self.lag = max(0, last - self.agent.replica.revision)
        except RoostError as error:  # /readyz and metrics are to tell, even if nobody asks for anything
            self.watch.went_away(str(error))
        self.metrics.measure(self)

    async def _measure_rules(self) -> None:
        """The same of how much the rules filter out, which takes longer."""
        with contextlib.suppress(Refused, CutShort):  # the next time will do
            filters = partial(rule_filters, self.agent.allocator.engine, RULE_KINDS)
            self.metrics.measure_rules(await self.explainer.errands.run(filters, EXPLAIN_SECONDS))
        await asyncio.sleep(RULES_SECONDS)

    def since(self, at: float | None) -> float:
        """Seconds since a moment by the clock of the agent and of the duties; 0 if it never came."""
        return 0.0 if at is None else max(0.0, self.agent.context.clock() - at)


def _marked(replica: Replica) -> tuple[object, tuple[int, ...]]:
    """Another value once there is something new to take in. What else is in the registry is no matter here."""
    return replica, replica.registry.mark(TOKEN, CLOSED[0], *OF_POLICIES)


async def _again_and_again(work: Callable[[], Awaitable[None]], pause: float) -> None:
    """For as long as the service lives, whatever one turn runs into."""
    while True:
        await asyncio.sleep(pause)
        try:
            await work()
        except Exception:
            log.exception("a bug", work=work.__name__)
            await asyncio.sleep(MEASURE_SECONDS)
