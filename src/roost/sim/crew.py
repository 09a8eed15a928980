"""The agents of a run: who is given what to do, when each works, and when what it decided reaches the store.

submit ─▶ the agent that has least to do ─▶ step ─▶ (it took so long) ─▶ commit ─▶ feed, and the answer, later
                                             ▲                             │
                                             └────── look: it is there ◀───┘
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np

from roost.agent.agent import MUCH, Agent, AgentMemory
from roost.agent.context import Watcher
from roost.agent.courier import Group
from roost.agent.operation import Answer, Operation
from roost.agent.ticket import Ticket
from roost.duties.arrivals import ArrivalRates
from roost.duties.foresight import ForecastMemory
from roost.model.change import Entry
from roost.rules.policy import Policy
from roost.sim.events import COMMIT, LOOK, Events
from roost.sim.experiment import Experiment, Latency, seconds
from roost.sim.seen_to import VirtualDuties
from roost.sim.tracker import CacheUse, Tracker
from roost.sim.virtual import NEVER, Clock, FeedLog, SimulatedWorker, VirtualCourier
from roost.store.memory import MemoryStore

Witness = Callable[[Operation, Answer], None]
Done = Callable[[Answer], None]
NOTHING_CACHED = CacheUse(0, 0, 0)


class Crew:
    """Agents on one store. What is committed is told to `heard`, entry by entry, before anybody else hears of it."""

    def __init__(
        self,
        experiment: Experiment,
        seed: int,
        clock: Clock,
        events: Events,
        tracker: Tracker,
        random: np.random.Generator,
        heard: Callable[[Entry], None],
    ) -> None:
        self._experiment, self._seed, self._clock, self._events = experiment, seed, clock, events
        self._tracker, self._heard = tracker, heard
        self.random = random  # whether decisions are hits, where that is drawn
        self.latency = experiment.latencies
        self.foresight = seconds(experiment.foresight or 0.0, "foresight")
        self._arrivals = ArrivalRates()
        self.witness: Witness | None = None  # sees every answer, in order
        self.shadow: Watcher | None = None  # looks at every decision
        self.noted: Callable[[SimulatedWorker, Ticket], None] = lambda _worker, _ticket: (
            None
        )  # hears what duties were answered
        self.touched: list[SimulatedWorker] = []  # those that were given something to do at this moment
        self.turn = 0  # whose turn it is among agents that have as little to do
        self.operations = 0
        self.answering = 0  # the number of the agent that answers just now

    def hire(
        self,
        store: MemoryStore,
        policy: Policy,
        memories: Sequence[AgentMemory] = (),
        forecast: ForecastMemory | None = None,
        due: Mapping[str, float] | None = None,
    ) -> None:
        """Agents on a store as it is; `memories`: of those before them.

        `forecast`: what the forecaster went by; `due`: when duties have their next turns.
        """
        self.store, self._cached_before = store, NOTHING_CACHED
        self._log = FeedLog(store, store.head()[0])
        self.workers = [self._worker(number, policy) for number in range(self._experiment.agents.count)]
        for worker, memory in zip(self.workers, memories, strict=False):
            worker.agent.recall(memory)
        self._share_recheck()
        self.touched = []
        first = self.workers[0]
        note = partial(self._note, first)
        self.duties = VirtualDuties(first.agent, self._clock, self._events, note, self.foresight, self._arrivals)
        if self.duties.forecaster is not None and forecast is not None:
            self.duties.forecaster.recall(forecast)
        self.duties.roster.recall(due or {})

    def _worker(self, number: int, policy: Policy) -> SimulatedWorker:
        courier = VirtualCourier(self._clock, self._log, self.latency.feed_s)
        now = self._clock.__call__  # a method: an object that can be called takes twice as long to call
        agent = Agent(
            self.store,
            courier,
            policy,
            f"agent-{number}",
            seed=self._seed * 1_000 + number,
            settings=self._experiment.agents.settings(),
            clock=now,
            now=now,
        )
        agent.context.shadow = self.shadow
        return SimulatedWorker(number, agent, courier)

    def _share_recheck(self) -> None:
        """Agents of one process and one policy re-check alike; the store remembers rows for one of them only once."""
        for worker in self.workers:
            worker.agent.recheck = self.workers[0].agent.recheck

    def switch(self, policy: Policy) -> None:
        """All decide by another policy from now on; what waits may find room by it."""
        self._tracker.cached(self.cached())
        for worker in self.workers:
            worker.agent.switch(policy)
        self._cached_before = NOTHING_CACHED
        self._share_recheck()
        self.duties.step()
        self._touch(self.workers[0])

    # ------------------------------------------------------------------------------------------------- giving

    def submit(self, operation: Operation, done: Done, worker: SimulatedWorker | None = None) -> None:
        """Give an operation to a worker; unless it is said, to the one that has least to do."""
        worker = worker or self.least_busy()
        self.operations += 1
        if self.witness is not None:
            done = partial(_seen, self.witness, operation, done)
        worker.agent.submit(operation, f"op-{self.operations}", partial(self._answered, worker, done))
        self._touch(worker)

    def least_busy(self) -> SimulatedWorker:
        """Whoever has least to do."""
        workers = self.workers
        if len(workers) == 1:
            return workers[0]
        self.turn = (self.turn + 1) % len(workers)
        return min(workers[self.turn :] + workers[: self.turn], key=_load)

    def _touch(self, worker: SimulatedWorker) -> None:
        if worker not in self.touched:
            self.touched.append(worker)

    def _answered(self, worker: SimulatedWorker, done: Done, answer: Answer) -> None:
        self.answering = worker.number
        done(answer)

    def _note(self, worker: SimulatedWorker, ticket: Ticket) -> None:
        """Something that duties asked for is answered."""
        if self.witness is not None and ticket.answer is not None:
            self.witness(ticket.operation, ticket.answer)
        self.noted(worker, ticket)

    def hurry(self) -> None:
        """Whoever answers just now hears of all that was committed until now, however late the feed is."""
        self.workers[self.answering].courier.hurry()

    # ------------------------------------------------------------------------------------------------ working

    def let_work(self) -> None:
        """Let those work who were given something to do."""
        touched, self.touched = self.touched, []
        for worker in touched:
            self._work(worker)

    def look(self, number: int) -> None:
        """An agent looks at what is there by now."""
        self._work(self.workers[number])

    def tick(self, _: None) -> None:
        """Duties have their turn, whatever has happened."""
        self.duties.step()
        self._touch(self.workers[0])

    def _work(self, worker: SimulatedWorker) -> None:
        """Let an agent do what it can do now."""
        agent, courier, now = worker.agent, worker.courier, self._clock.now
        while True:
            if worker.busy_until > now:
                self._wake(worker, worker.busy_until)
                return
            if agent.gathering.full and not courier.due:
                if (answer := courier.next_look(news=False)) < NEVER:
                    self._wake(worker, answer)
                return  # it waits for the store's answer
            started = time.perf_counter() if self.latency.measured else 0.0
            counters = agent.counters
            followed = counters.followed
            more = agent.step()
            if counters.commits != worker.commits:
                self._tracker.committed(now, counters.commits - worker.commits, counters.conflicts - worker.conflicts)
                worker.commits, worker.conflicts = counters.commits, counters.conflicts
            if (group := courier.sent) is None:
                if worker.number == 0 and self.duties.due and self.duties.step():
                    continue
                if more and (agent.waiting or counters.followed - followed > MUCH):
                    continue  # else it was an answer or news, and that was all
                break
            courier.sent = None
            took = time.perf_counter() - started if self.latency.measured else self._decision_seconds(group)
            worker.in_flight += len(group.proposals)
            if took == 0 and self.latency.commit_s == 0:
                self.commit((worker, group))
                continue
            worker.busy_until = now + took
            self._events.at(now + took + self.latency.commit_s / 2, COMMIT, (worker, group))
        news = agent.needs_news or (worker.number == 0 and self.duties.stirred)
        if (due := min(courier.next_look(news=news), agent.under_way.lines.large_at)) < NEVER:
            self._wake(worker, due)

    def _wake(self, worker: SimulatedWorker, at: float) -> None:
        """Let an agent look then, unless it will before."""
        if not self._clock.now < worker.wake <= at:
            worker.wake = at
            self._events.at(at, LOOK, worker.number)

    def _decision_seconds(self, group: Group) -> float:
        """How long it took to decide a round: only placing takes time."""
        latency, total = self.latency, 0.0
        if not latency.miss_ms and not latency.hit_ms:
            return 0.0
        for proposal in group.proposals:
            record = getattr(proposal, "record", None)
            if record is None or not record.policy:
                continue
            if latency.hit_ratio is None:
                hit = record.hits >= (len(record.found) + 1 if proposal.declines else len(proposal.placed))
            else:
                hit = self.random.random() < latency.hit_ratio
            total += latency.hit_ms if hit else latency.miss_ms
        return total / 1e3

    def commit(self, sent: tuple[SimulatedWorker, Group]) -> None:
        """What an agent decided reaches the store; its answer is back later."""
        worker, group = sent
        now, half = self._clock.now, self.latency.commit_s / 2
        outcomes = group.commit(self.store)
        worker.in_flight -= len(group.proposals)
        heard, concerns, foresees, stirred = self._heard, self.duties.roster.concerns, self.foresight > 0, False
        for row in self._log.extend(now):
            for entry in row.entries:
                heard(entry)
                if concerns(entry):
                    stirred = True
                if foresees:
                    self._arrivals.note(entry)
        if stirred:
            self.duties.stir(row.last)
            self._wake(self.workers[0], now + self.latency.feed_s)
        worker.courier.bring(now + half, group, outcomes, self.latency.commit_s)
        if half or worker.busy_until > now:
            self._wake(worker, max(now + half, worker.busy_until))

    # ------------------------------------------------------------------------------------------------ looking on

    @property
    def idle(self) -> bool:
        """Whether nothing is queued, under way, or on its way to anybody."""
        return not self.touched and all(worker.agent.idle for worker in self.workers)

    def cached(self) -> CacheUse:
        """What the caches of all agents did since they were last asked."""
        total = NOTHING_CACHED
        for worker in self.workers:
            for arm in worker.agent.replica.allocator.arms:
                stats = arm.engine.evaluations.stats
                updated = stats.updated_on_hit + stats.updated_on_miss
                total = CacheUse(total.hits + stats.hits, total.misses + stats.misses, total.updated + updated)
        before, self._cached_before = self._cached_before, total
        return CacheUse(*(now - then for now, then in zip(total, before, strict=True)))

    def forget(self) -> None:
        """Let the store forget what all agents have read, and all decisions: nobody asks for them."""
        self._log.forget(min(worker.courier.read for worker in self.workers))
        self.store.trim(keep=0, decisions_seconds=0.0)

    def memories(self) -> list[AgentMemory]:
        """What idle agents have to remember."""
        return [worker.agent.memory() for worker in self.workers]

    def forecast(self) -> ForecastMemory | None:
        """What the forecaster goes by, if there is one."""
        return self.duties.forecaster.memory() if self.duties.forecaster else None

    def alone(self, latency: Latency, workers: Sequence[SimulatedWorker]) -> None:
        """From now on these are all there are, and things take so long."""
        self.latency, self.workers = latency, list(workers)


def _seen(witness: Witness, operation: Operation, done: Done, answer: Answer) -> None:
    witness(operation, answer)
    done(answer)


def _load(worker: SimulatedWorker) -> int:
    return worker.load
