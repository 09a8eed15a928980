"""One run: events in the order of their time, agents that decide and commit as they do in the service.

    arrivals, departures, faults ─▶ agents (their own, late copies) ─▶ commits ─▶ the store in memory
            ▲                                                            │
            └──────────── departures, healing ◀── answers ◀──────────────┘

Everything is by seed, and nothing by the clock on the wall, unless decisions are to take as long as they really take.
"""

from __future__ import annotations

import gc
import hashlib
import time
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from heapq import heapify, heappop, heappush
from importlib.metadata import version
from typing import Any

import msgspec
import numpy as np

from roost.agent.agent import Agent, AgentMemory
from roost.agent.context import Watcher
from roost.agent.courier import Group
from roost.agent.operation import Answer, Operation
from roost.agent.verbs.entry import SetEntry
from roost.agent.verbs.failures import CountFailures
from roost.agent.verbs.machine import SetMachine
from roost.agent.verbs.place import PlaceVMs
from roost.agent.verbs.release import ReleaseVMs
from roost.duties.arrivals import ArrivalRates
from roost.duties.fading import faded
from roost.engine.funnel import chosen_clusters, machine_stages
from roost.model import foresight
from roost.model.change import Entry
from roost.model.errors import InvalidInput, InvariantBroken, Outdated, UnknownName
from roost.model.foresight import foresee
from roost.model.random_state import restore, state_of
from roost.model.registry import FORESIGHT
from roost.model.request import HOLD, VM, Request
from roost.model.rows import MachineState
from roost.model.zone import Zone
from roost.rules.policy import Policy
from roost.sim.checkpoint import Checkpoint, packed, unpacked
from roost.sim.experiment import Experiment, Latency, Migrations, seconds
from roost.sim.migration import Migration
from roost.sim.result import Result
from roost.sim.tracker import CacheUse, Tracker
from roost.sim.virtual import NEVER, Clock, FeedLog, VirtualCourier, Worker
from roost.store.contract import Place
from roost.store.memory import MemoryStore
from roost.traces.names import Numbered
from roost.traces.standing import standing_population
from roost.traces.workload import Workload
from roost.whatif.plan import Move, Terms
from roost.whatif.planner import plan_moves
from roost.wiring import open_store

Progress = Callable[[float, int], None]  # share done, operations so far
Witness = Callable[[Operation, Answer], None]

# What happens, in the order in which it does at one moment; arrivals come after departures, a sample after both.
LEAVE, COMMIT, LOOK, FAIL, REPAIR, DRAIN, RESUME, SWITCH, MIGRATE, COPIED, FORESEE, ARRIVE, SAMPLE, FADE = range(14)
STANDING, HEALING = -1, -2  # in place of the number of a request
RARELY = (20_000, 10, 2_000)  # collections of garbage, by generation
NOTHING_CACHED = CacheUse(0, 0, 0)
READY, DOWN, DRAINING = (int(MachineState[name]) for name in ("READY", "DOWN", "DRAINING"))
FADE_EVERY = 86_400.0  # seconds, between two looks at failures of long ago
REPORT_EVERY = 2_000  # operations
TRIM_EVERY = 5_000  # operations, between two times that the store forgets
PLACED, DECLINED, GAVE_UP, INVALID = range(4)
STATUS = {"done": PLACED, "declined": DECLINED, "conflicts": GAVE_UP, "invalid": INVALID, "unavailable": INVALID}
GONE = (Outdated.code, UnknownName.code)
ROUNDING = 1e-9  # samples: what rounding may take from the last one, which is at the end
STANDING_CHUNK = 128  # VMs that are asked for at once to fill a zone
BEFORE = -1.0  # the time at which that is


@dataclass(slots=True)
class Guest:
    """A VM that runs, or is on its way from one machine to another."""

    name: str  # which is another one's before and after
    tenant: str
    request: int  # or STANDING
    vm: VM
    machine: int
    moving: bool = False  # it is being taken off its machine, and then perhaps put on another
    over: bool = False  # its time


class Simulation:
    """A run of an experiment, with one policy and one seed."""

    def __init__(
        self,
        experiment: Experiment,
        policy: str,
        seed: int,
        workload: Workload,
        zone: Zone,
        find_policy: Callable[[str], Policy],
        name: str = "",
        witness: Witness | None = None,
        shadow: Watcher | None = None,
    ) -> None:
        """`name`: what the result is to be called, instead of the policy. `witness`: sees every answer, in order.

        `shadow`: looks at every decision.
        """
        experiment.check(workload, zone)
        self.name = name or policy
        self._witness, self._shadow = witness, shadow
        self.experiment, self.policy, self.seed, self.zone = experiment, policy, seed, zone
        self.policy_now = policy
        self.workload = workload
        self._find_policy = find_policy
        self._arrival = workload.arrival / experiment.speed
        self._lifetime = workload.lifetime / experiment.speed
        self._type = np.array([zone.vm_type_index.get(t.name, -1) for t in workload.types])[workload.type]
        self._until, self._warm_up = experiment.ends(workload), seconds(experiment.warm_up, "warm_up")
        self._every = seconds(experiment.sample, "sample") if experiment.sample else max(60.0, self._until / 500)
        self._latency = experiment.latencies
        self._faults = experiment.faults
        self._maintenance: list[tuple[float, float, list[int]]] = []  # from, to, machines
        self._mtbf = seconds(self._faults.mtbf, "faults.mtbf") if self._faults.mtbf is not None else 0.0
        self._repair = seconds(self._faults.repair, "faults.repair")
        self._foresight = seconds(experiment.foresight, "foresight") if experiment.foresight is not None else 0.0
        self._arrivals = ArrivalRates()

        self.clock = Clock()
        self._random = np.random.default_rng([seed, 1])
        self.tracker = self._new_tracker()
        self._events: list[tuple[float, int, int, Any]] = []  # time, what, number, about what
        self._number = 0  # of events so far, to tell apart those of one moment
        self._next = 0  # arrival
        self._guests: dict[int, Guest] = {}  # by number
        self._lower: dict[str, int] = {}  # the numbers of those below the highest priority, by name
        self._unheard_of: set[str] = set()  # VMs that had to give way before anybody heard that they run
        self._state = zone.machines["state"].astype(int).tolist()
        self._open = 0  # requests that have no answer
        self._touched: list[Worker] = []
        self._movable: dict[str, Guest] = {}  # those of the plan of migrations under way, by name
        self._turn = 0  # whose turn it is among agents that have as little to do
        self.operations = 0
        self._checkpointed = self._forgot = 0  # operations by then
        self.timing: dict[str, float] = {}
        self._migration = self._new_migration()

        started = time.perf_counter()
        store = open_store("memory:", create=zone)
        assert isinstance(store, MemoryStore)
        self.store = store
        self._workers = self._hire(find_policy(policy), None)
        self.timing["load_s"] = time.perf_counter() - started
        self.fingerprint = self._fingerprint()
        self._schedule_beginning()

    def _fingerprint(self) -> str:
        """Another one for whatever else would make another run."""
        workload, digest = self.workload, hashlib.blake2b(digest_size=16)
        policies = [self.policy, *(change.policy for change in self.experiment.policy_changes)]
        digests = [self._find_policy(policy).digest for policy in policies]
        digest.update(msgspec.json.encode([version("roost"), self.experiment, self.policy, self.seed, digests]))
        types, tenants = list(workload.types), workload.tenants
        digest.update(msgspec.json.encode([types, list(workload.priorities), dict(workload.constraints)]))
        digest.update((repr(tenants) if isinstance(tenants, Numbered) else "\n".join(tenants)).encode())
        for column in (workload.arrival, workload.first, workload.type, workload.lifetime, workload.priority):
            digest.update(np.ascontiguousarray(column).tobytes())
        for table in (self.zone.machines, self.zone.demand, self.zone.supported):
            digest.update(np.ascontiguousarray(table).tobytes())
        return digest.hexdigest()

    def _new_tracker(self) -> Tracker:
        types = sorted(set(self._type.tolist()) - {-1})
        return Tracker(self.zone, types, seconds(self.experiment.bin, "bin"), self._warm_up)

    def _hire(self, policy: Policy, memories: Sequence[AgentMemory] | None) -> list[Worker]:
        """Agents on the store as it is."""
        self._cached_before = NOTHING_CACHED
        revision, _ = self.store.head()
        self._log = FeedLog(self.store, revision)
        workers = []
        for number in range(self.experiment.agents.count):
            courier = VirtualCourier(self.clock, self._log, self._latency.feed_s)
            agent = Agent(
                self.store,
                courier,
                policy,
                f"agent-{number}",
                seed=self.seed * 1_000 + number,
                settings=self.experiment.agents.settings(),
                clock=self.clock,
                now=self.clock,
            )
            agent.context.shadow = self._shadow
            if memories is not None:
                agent.recall(memories[number])
            workers.append(Worker(number, agent, courier))
        _share_recheck(workers)
        return workers

    def _schedule_beginning(self) -> None:
        for k in range(int(self._until / self._every + ROUNDING) + 1):
            self._at_time(min(k * self._every, self._until), SAMPLE)
        if self._mtbf:
            self._at_time(self._until_next_failure(), FAIL)
            self._at_time(FADE_EVERY, FADE)
        for maintenance in self._faults.maintenance:
            start = seconds(maintenance.at, "maintenance.at")
            machines = self._maintained(maintenance.cluster, maintenance.share)
            end = start + seconds(maintenance.lasts, "maintenance.lasts")
            self._maintenance.append((start, end, machines))
            self._at_time(start, DRAIN, machines)
            self._at_time(end, RESUME, machines)
        for change in self.experiment.policy_changes:
            self._find_policy(change.policy)
            self._at_time(seconds(change.at, "policy_changes.at"), SWITCH, change.policy)

        if self.experiment.migrations is not None:
            self._at_time(seconds(self.experiment.migrations.at, "migrations.at"), MIGRATE)
        if self._foresight:
            self._at_time(0.0, FORESEE)

    def _maintained(self, cluster: str, share: float) -> list[int]:
        machines = len(self.zone.machines)
        if share:
            return sorted(self._random.choice(machines, max(1, round(share * machines)), replace=False).tolist())
        row = self.zone.clusters[self.zone.cluster_names.index(cluster)]
        return list(range(int(row["first"]), int(row["first"] + row["machines"])))

    # ------------------------------------------------------------------------------------------------ the loop

    def run(self, progress: Progress | None = None, checkpoint: Callable[[bytes], None] | None = None) -> Result:
        """To the end. `checkpoint` is given, now and then, what `go_on` can go on from."""
        self._started = time.perf_counter() - self.timing.get("run_s", 0.0)
        with _little_garbage():
            if self._next == 0 and not self.operations and self.experiment.fill:
                self._fill()
            self._loop(progress, checkpoint)
        self.timing["run_s"] = time.perf_counter() - self._started
        return self._result()

    def _loop(self, progress: Progress | None, checkpoint: Callable[[bytes], None] | None) -> None:
        events, arrival, until, clock = self._events, array("d", self._arrival.tobytes()), self._until, self.clock
        reported = 0
        while True:
            soonest = events[0][0] if events else NEVER
            coming = arrival[self._next] if self._next < len(arrival) else NEVER
            now = min(soonest, coming)
            if self._touched and now > clock.now:
                self._let_work()
                continue
            if now > until:
                break
            clock.now = now
            if (soonest <= coming and events[0][1] < ARRIVE) or soonest < coming:
                _, what, _, about = heappop(events)
                HANDLERS[what](self, about)
            else:
                self._arrive(self._next)
                self._next += 1
            if self.operations - reported >= REPORT_EVERY:
                reported = self.operations
                if progress:
                    progress(min(1.0, now / until), self.operations)
            if self.operations - self._forgot >= TRIM_EVERY:
                self._forget()
            due = self.experiment.checkpoint
            if due and self.operations - self._checkpointed >= due and self._quiet():
                data = self._save()
                if checkpoint:
                    checkpoint(data)
                self.go_on(data)
                events = self._events

    def _forget(self) -> None:
        """Let the store forget what all agents have read, and all decisions: nobody asks for them."""
        self._forgot = self.operations
        self._log.forget(min(worker.courier.read for worker in self._workers))
        self.store.trim(keep=0, decisions_seconds=0.0)

    def _at_time(self, at: float, what: int, about: Any = None) -> None:
        self._number += 1
        heappush(self._events, (at, what, self._number, about))

    # ------------------------------------------------------------------------------------------------ agents

    def _submit(self, operation: Operation, done: Callable[[Answer], None]) -> None:
        """Give an operation to the agent that has least to do."""
        worker = self._workers[0] if len(self._workers) == 1 else self._least_busy()
        self.operations += 1
        if self._witness is not None:
            done = partial(_seen, self._witness, operation, done)
        worker.agent.submit(operation, f"op-{self.operations}", partial(self._answered, worker, done))
        if worker not in self._touched:
            self._touched.append(worker)

    def _least_busy(self) -> Worker:
        workers = self._workers
        self._turn = (self._turn + 1) % len(workers)
        return min(workers[self._turn :] + workers[: self._turn], key=_load)

    def _answered(self, worker: Worker, done: Callable[[Answer], None], answer: Answer) -> None:
        self._answering = worker.number
        done(answer)

    _answering = 0

    def _let_work(self) -> None:
        touched, self._touched = self._touched, []
        for worker in touched:
            self._work(worker)

    def _work(self, worker: Worker) -> None:
        """Let an agent do what it can do now."""
        agent, courier, now = worker.agent, worker.courier, self.clock.now
        while True:
            if worker.busy_until > now:
                self._wake(worker, worker.busy_until)
                return
            if agent.full and not courier.due:
                if (answer := courier.next_look(news=False)) < NEVER:
                    self._wake(worker, answer)
                return  # it waits for the store's answer
            started = time.perf_counter() if self._latency.measured else 0.0
            agent.step()
            counters = agent.counters
            if counters.commits != worker.commits:
                self.tracker.committed(now, counters.commits - worker.commits, counters.conflicts - worker.conflicts)
                worker.commits, worker.conflicts = counters.commits, counters.conflicts
            if (group := courier.sent) is None:
                break
            courier.sent = None
            took = time.perf_counter() - started if self._latency.measured else self._decision_seconds(group)
            worker.in_flight += len(group.proposals)
            if took == 0 and self._latency.commit_s == 0:
                self._commit((worker, group))
                continue
            worker.busy_until = now + took
            self._at_time(now + took + self._latency.commit_s / 2, COMMIT, (worker, group))
        if (due := courier.next_look(news=agent.needs_news)) < NEVER:
            self._wake(worker, due)

    def _cached(self) -> CacheUse:
        """What the caches of all agents did since they were last asked."""
        total = NOTHING_CACHED
        for worker in self._workers:
            for arm in worker.agent.replica.allocator.arms:
                stats = arm.engine.evaluations.stats
                updated = stats.updated_on_hit + stats.updated_on_miss
                total = CacheUse(total.hits + stats.hits, total.misses + stats.misses, total.updated + updated)
        before, self._cached_before = self._cached_before, total
        return CacheUse(*(now - then for now, then in zip(total, before, strict=True)))

    def _decision_seconds(self, group: Group) -> float:
        """How long it took to decide a round: only placing takes time."""
        latency, total = self._latency, 0.0
        if not latency.miss_ms and not latency.hit_ms:
            return 0.0
        for proposal in group.proposals:
            record = getattr(proposal, "record", None)
            if record is None or not record.policy:
                continue
            if latency.hit_ratio is None:
                hit = record.hits >= (len(proposal.placed) if isinstance(proposal, Place) else len(record.found) + 1)
            else:
                hit = self._random.random() < latency.hit_ratio
            total += latency.hit_ms if hit else latency.miss_ms
        return total / 1e3

    def _commit(self, sent: tuple[Worker, Group]) -> None:
        worker, group = sent
        now, half = self.clock.now, self._latency.commit_s / 2
        outcomes = group.commit(self.store)
        worker.in_flight -= len(group.proposals)
        index, types, moved = self.zone.machine_index, self.zone.vm_type_index, self.tracker.moved
        top = ("", self.zone.bands[0])
        for row in self._log.extend(now):
            for entry in row.entries:
                for each in entry.placed:
                    moved(index[each.machine], types[each.spec.type], each.spec.priority in top, 1)
                for each in entry.released:
                    moved(index[each.machine], types[each.spec.type], each.spec.priority in top, -1)
                if entry.eviction is not None:
                    self._evict(entry)
                if self._foresight:
                    self._arrivals.note(entry)
        worker.courier.bring(now + half, group, outcomes, self._latency.commit_s)
        if half or worker.busy_until > now:
            self._wake(worker, max(now + half, worker.busy_until))

    def _evict(self, entry: Entry) -> None:
        """VMs had to give way; they do not come back. One may not even have been heard of yet."""
        stayed = {each.vm for each in entry.placed}
        for each in entry.released:
            if each.vm in stayed or each.vm.endswith(HOLD):
                continue
            self.tracker.since["evictions"] += 1
            own = self._lower.pop(each.vm, None)
            if own is None:
                self._unheard_of.add(each.vm)
            else:
                self._guests.pop(own)

    def _wake(self, worker: Worker, at: float) -> None:
        """Let an agent look then, unless it will before."""
        if not self.clock.now < worker.wake <= at:
            worker.wake = at
            self._at_time(at, LOOK, worker.number)

    # ---------------------------------------------------------------------------------------- arrivals, departures

    def _arrive(self, number: int) -> None:
        request = self.workload.request(number)
        if self._warm and self.experiment.funnel and number % self.experiment.funnel == 0:
            self._look_at_funnel(request)
        self._ask(request, partial(self._placed, number, self.clock.now, request))

    def _look_at_funnel(self, request: Request) -> None:
        """How the rules narrow the zone for the first VM of a request, on the first agent's copy."""
        allocator = self._workers[0].agent.allocator
        arm = allocator.arm_of(request.tenant)
        engine, view = arm.engine, allocator.view
        with suppress(InvalidInput):  # a type that the zone does not know
            shape = arm.shapes.of(request.vms[0], 0, "vm")
            judged = engine.judge(view, shape, engine.desk)
            self.tracker.narrowed(machine_stages(engine, view, judged, chosen_clusters(engine, view, shape, judged)))

    def _ask(self, request: Request, done: Callable[[Answer], None], *, healing: bool = False) -> None:
        self._open += 1
        self._submit(PlaceVMs(request, healing=healing), done)

    def _placed(self, number: int, arrived: float, request: Request, answer: Answer) -> None:
        """A request of the workload is answered."""
        self._log_answer(number, arrived, len(request.vms), answer)
        if answer.ok:
            low = int(self.workload.first[number])
            self._settle(number, request, answer, self._lifetime[low : low + len(request.vms)].tolist())

    def _settle(self, number: int, request: Request, answer: Answer, lifetimes: Sequence[float]) -> None:
        """VMs run; they will leave when their time is over, together with those whose time is over then, too."""
        index, guests = self.zone.machine_index, self._guests
        leaving: dict[float, list[int]] = {}
        lost = []
        for placement, vm, lifetime in zip(answer.placements, request.vms, lifetimes, strict=True):
            machine = index[placement.machine]
            if self._unheard_of and placement.vm in self._unheard_of:  # it had to give way at once
                self._unheard_of.remove(placement.vm)
                continue
            self._number = own = self._number + 1
            if vm.priority not in ("", self.zone.bands[0]):
                self._lower[placement.vm] = own
            guests[own] = Guest(placement.vm, request.tenant, number, vm, machine)
            if lifetime in leaving:
                leaving[lifetime].append(own)
            elif lifetime < NEVER:
                leaving[lifetime] = [own]
            if self._state[machine] == DOWN:
                lost.append(own)
        for lifetime, together in leaving.items():
            self._at_time(self.clock.now + lifetime, LEAVE, together)
        if lost:
            self._displace(lost)

    def _leave(self, numbers: Sequence[int]) -> None:
        """The time of VMs of one tenant is over."""
        running = []
        for number in numbers:
            if (guest := self._guests.get(number)) is None:
                continue  # lost with its machine
            guest.over = True
            if not guest.moving:
                guest.moving = True
                running.append(number)
        if running:
            self._take_off(running, self._left)

    def _take_off(self, numbers: Sequence[int], done: Callable[[Sequence[int]], None]) -> None:
        """Take VMs of one tenant off their machines."""
        guests = self._guests
        release = ReleaseVMs(guests[numbers[0]].tenant, tuple(guests[number].name for number in numbers))
        self._submit(release, partial(self._taken_off, numbers, done))

    def _taken_off(self, numbers: Sequence[int], done: Callable[[Sequence[int]], None], answer: Answer) -> None:
        if answer.ok:
            done(numbers)
        elif answer.status == "conflicts" or answer.code in GONE:  # it knew of an earlier VM of that name, or …
            self._workers[self._answering].courier.hurry()
            if numbers := [number for number in numbers if number in self._guests]:  # … some have had to give way
                self._take_off(numbers, done)
        else:
            guest = self._guests[numbers[0]]
            raise InvariantBroken(f"VM {guest.name} of {guest.tenant} cannot be released: {answer.detail}")

    def _left(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            self._strike(number)

    def _strike(self, number: int) -> None:
        self._lower.pop(self._guests.pop(number).name, None)

    def _log_answer(self, request: int, arrived: float, vms: int, answer: Answer) -> None:
        self._open -= 1
        self.tracker.answered(
            request,
            arrived,
            self.clock.now,
            vms,
            STATUS[answer.status],
            self._answering,
            answer.waited_us / 1e6,
            answer.retries,
        )

    def _fill(self) -> None:
        """Just before the beginning, in no time: VMs like those of the workload, as one would find them running.

        One agent places them all, and the others begin with what it left.
        """
        everybody = self._workers
        self._workers = everybody[:1]
        standing = standing_population(self.workload, self.experiment.fill * self.zone.cores, self.seed)
        lifetimes = (standing.lifetime / self.experiment.speed).tolist()
        latency, self._latency = self._latency, Latency()
        self.clock.now = BEFORE
        self._workers[0].courier.hurry()  # nor do news take any
        for number in range(standing.requests):
            request = standing.request(number)
            self._ask(request, partial(self._standing, request, [lifetimes[number] - BEFORE]))
            if number % STANDING_CHUNK == STANDING_CHUNK - 1:
                self._let_work()
        self._let_work()
        self._latency = latency
        self._sample(None)  # what it took counts in no other row
        if len(everybody) > 1:
            memories = [worker.agent.memory() for worker in everybody]
            self._workers = self._hire(self._find_policy(self.policy_now), memories)

    def _standing(self, request: Request, lifetimes: list[float], answer: Answer) -> None:
        self._log_answer(STANDING, self.clock.now, len(lifetimes), answer)
        if answer.ok:
            self._settle(STANDING, request, answer, lifetimes)

    # ---------------------------------------------------------------------------------------------------- faults

    def _until_next_failure(self) -> float:
        return self.clock.now + float(self._random.exponential(self._mtbf / len(self._state)))

    def _fail(self, _: None) -> None:
        """Some machine fails, and what runs on it is lost."""
        self._at_time(self._until_next_failure(), FAIL)
        machine = int(self._random.integers(len(self._state)))
        if self._state[machine] == DOWN:
            return
        self.tracker.failures += self._warm
        self.tracker.down += 1
        self._set_state(machine, DOWN)
        self._at_time(self.clock.now + float(self._random.exponential(self._repair)), REPAIR, machine)
        here = [own for own, guest in self._guests.items() if guest.machine == machine and not guest.moving]
        self._displace(here)

    @property
    def _warm(self) -> bool:
        return self.clock.now >= self._warm_up

    def _fade(self, _: None) -> None:
        """Failures weigh less as time goes by, as the first agent knows of them."""
        self._at_time(self.clock.now + FADE_EVERY, FADE)
        for machine in list(faded(self._workers[0].agent.replica.registry, self.clock.now)):
            self._submit(CountFailures(machine), self._done)

    def _repaired(self, machine: int) -> None:
        self.tracker.down -= 1
        self._set_state(machine, self._state_but_for_failures(machine))

    def _state_but_for_failures(self, machine: int) -> int:
        """By what the zone says, or whether it is maintained just now."""
        now, usual = self.clock.now, int(self.zone.machines["state"][machine])
        maintained = any(start <= now < end and machine in machines for start, end, machines in self._maintenance)
        return DRAINING if maintained and usual == READY else usual

    def _drain(self, machines: Sequence[int]) -> None:
        for machine in machines:
            if self._state[machine] == READY:
                self._set_state(machine, DRAINING)

    def _resume(self, machines: Sequence[int]) -> None:
        for machine in machines:
            if self._state[machine] == DRAINING and (state := self._state_but_for_failures(machine)) != DRAINING:
                self._set_state(machine, state)

    def _set_state(self, machine: int, state: int) -> None:
        self._state[machine] = state
        name: Any = MachineState(state).name.lower()
        self._submit(SetMachine(self.zone.machine_names[machine], state=name), partial(self._told, machine, state))

    def _told(self, machine: int, state: int, answer: Answer) -> None:
        """The store knows of a state; if another agent was quicker to tell of a later one, that is told again."""
        if not answer.ok:
            raise InvariantBroken(f"{answer.key}: {answer.detail}")
        if self._state[machine] != state:
            self._set_state(machine, self._state[machine])

    def _displace(self, numbers: Iterable[int]) -> None:
        """VMs lost their machine: they are taken off it, and asked for anew, request by request."""
        together: dict[tuple[str, int], list[int]] = {}
        for number in numbers:
            guest = self._guests[number]
            guest.moving = True
            together.setdefault((guest.tenant, guest.request), []).append(number)
        for lost in together.values():
            self.tracker.displaced += len(lost) if self._warm else 0
            self._take_off(lost, self._heal)

    def _heal(self, lost: Sequence[int]) -> None:
        """VMs are off their machine: ask again for those whose time is not over."""
        first = self._guests[lost[0]]
        for number in lost:
            if self._guests[number].over:
                self._strike(number)
        if left := [number for number in lost if number in self._guests]:
            wishes = tuple(self._guests[number].vm for number in left)
            again = Request(first.tenant, wishes, self.workload.constraints.get(first.request))
            self._ask(again, partial(self._healed, self.clock.now, left), healing=True)

    def _healed(self, since: float, numbers: Sequence[int], answer: Answer) -> None:
        """VMs run again, or never will."""
        self._log_answer(HEALING, since, len(numbers), answer)
        if not answer.ok:
            for number in numbers:
                self._strike(number)
            return
        over, lost = [], []
        for number, placement in zip(numbers, answer.placements, strict=True):
            guest = self._guests[number]
            if self._lower.pop(guest.name, None) is not None:
                self._lower[placement.vm] = number
            if placement.vm in self._unheard_of:  # it had to give way at once
                self._unheard_of.remove(placement.vm)
                self._strike(number)
                continue
            guest.name, guest.machine = placement.vm, self.zone.machine_index[placement.machine]
            guest.moving = False
            self.tracker.healed += self._warm
            if guest.over:
                over.append(number)
            elif self._state[guest.machine] == DOWN:
                lost.append(number)
        self._leave(over)
        self._displace(lost)

    def _switch(self, policy: str) -> None:
        self.policy_now = policy
        self.tracker.cached(self._cached())
        for worker in self._workers:
            worker.agent.switch(self._find_policy(policy))
        self._cached_before = NOTHING_CACHED
        _share_recheck(self._workers)

    def _foresee(self, _: None) -> None:
        """What is to be expected, by all that was placed so far, on the zone as the first agent knows it."""
        self._at_time(self.clock.now + self._foresight, FORESEE)
        allocator = self._workers[0].agent.allocator
        if rates := self._arrivals.per_hour(self.clock.now):
            found = foresee(self.zone, allocator.view.machines, rates, self.clock.now)
            self._submit(SetEntry(FORESIGHT, foresight.NAME, foresight.encode(found)), self._done)

    def _done(self, answer: Answer) -> None:
        if not answer.ok:
            raise InvariantBroken(f"{answer.key}: {answer.detail}")

    # ------------------------------------------------------------------------------------------------ migrations

    def _new_migration(self) -> Migration:
        """Nothing is moved unless the experiment says when."""
        if self.experiment.migrations is not None:
            self.tracker.migrated = 0
        spec = self.experiment.migrations or Migrations(at=0.0)
        return Migration(spec, self._submit, self._copied_after, self._moved)

    def _migrate(self, _: None) -> None:
        """Plan, on the zone as it is, and begin."""
        spec = self.experiment.migrations
        assert spec is not None
        if spec.every is not None:
            self._at_time(self.clock.now + seconds(spec.every, "migrations.every"), MIGRATE)
        if self._migration.busy:
            return  # with the plan before: the next time, then
        ledger = self.store.load()
        terms = Terms(budget=int(spec.budget * len(ledger.vms)), cost=spec.cost)
        plan = plan_moves(ledger, self._find_policy(self.policy_now), terms, self.seed)
        wanted = {move.vm for move in plan.moves}
        self._movable = {guest.name: guest for guest in self._guests.values() if guest.name in wanted}
        self._migration.begin(plan)

    def _copied_after(self, lasts: float, number: int) -> None:
        self._at_time(self.clock.now + lasts, COPIED, number)

    def _copied(self, number: int) -> None:
        self._migration.copied(number)

    def _moved(self, move: Move) -> None:
        """A VM runs on another machine."""
        assert self.tracker.migrated is not None
        self.tracker.migrated += self._warm
        guest, machine = self._movable[move.vm], self.zone.machine_index[move.target]
        guest.machine = machine
        if self._state[machine] == DOWN and not guest.moving:
            self._displace([number for number, each in self._guests.items() if each is guest])

    def _sample(self, _: None) -> None:
        if self._touched:  # all that happens at this moment comes before it is looked at
            self._let_work()
            self._at_time(self.clock.now, SAMPLE)
            return
        self.tracker.cached(self._cached())
        self.tracker.sample(self.clock.now, self._open)

    def _look(self, number: int) -> None:
        self._work(self._workers[number])

    # ----------------------------------------------------------------------------------------------- checkpoints

    def _quiet(self) -> bool:
        """Whether nothing is queued, under way, or on its way to anybody."""
        return not self._touched and not self._migration.busy and all(worker.agent.idle for worker in self._workers)

    def _save(self) -> bytes:
        """All that the rest of the run depends on."""
        self._checkpointed = self.operations
        self.tracker.cached(self._cached())
        guests = self._guests
        return packed(
            Checkpoint(
                fingerprint=self.fingerprint,
                now=self.clock.now,
                next=self._next,
                number=self._number,
                operations=self.operations,
                turn=self._turn,
                policy=self.policy_now,
                random=state_of(self._random),
                state=self._state,
                events=[event for event in self._events if event[1] != LOOK],
                names={number: guest.name for number, guest in guests.items()},
                guests=[(g.tenant, g.request, g.vm.type, g.vm.priority, g.machine) for g in guests.values()],
                agents=[worker.agent.memory() for worker in self._workers],
                tracker=self.tracker.state(),
                arrivals=self._arrivals.state(),
                run_s=time.perf_counter() - self._started,
            ),
            self.store.load(),
        )

    def go_on(self, data: bytes) -> None:
        """From a checkpoint. A run that has made one goes on from it as well, so that both go the same way."""
        saved, ledger = unpacked(data, self.store.catalogue)
        if saved.fingerprint != self.fingerprint:
            raise InvalidInput("checkpoint", "is of another workload, zone or version", "run the experiment anew")
        self.clock.now, self._next, self._number = saved.now, saved.next, saved.number
        self.timing["run_s"] = saved.run_s
        self.operations = self._checkpointed = self._forgot = saved.operations
        self._turn, self.policy_now = saved.turn, saved.policy
        restore(self._random, saved.random)
        self._state = saved.state
        self._events = [tuple(event) for event in saved.events]
        heapify(self._events)
        wishes = {(kind, priority): VM(kind, priority=priority) for _, _, kind, priority, _ in saved.guests}
        self._guests = {
            number: Guest(name, tenant, request, wishes[kind, priority], machine)
            for (number, name), (tenant, request, kind, priority, machine) in zip(
                saved.names.items(), saved.guests, strict=True
            )
        }
        top = ("", self.zone.bands[0])
        self._lower = {each.name: number for number, each in self._guests.items() if each.vm.priority not in top}
        self.tracker.restore(saved.tracker)
        self._arrivals.restore(saved.arrivals)
        self.store = MemoryStore(self.store.catalogue, ledger)
        self._workers = self._hire(self._find_policy(self.policy_now), saved.agents)

    # ------------------------------------------------------------------------------------------------- the result

    def _result(self) -> Result:
        self._check()
        tables = self.tracker.tables(self._arrival[: self._next], self._until)
        experiment, workload, zone = self.experiment, self.workload, self.zone
        facts = {
            "workload": workload.name,
            "source": workload.source,
            "requests": int(workload.requests),
            "vms": int(workload.vms),
            "skipped": dict(workload.skipped),
            "zone": zone.name,
            "machines": len(zone.machines),
            "clusters": len(zone.clusters),
            "cores": zone.cores,
            "span_s": self._until,
            "warm_up_s": self._warm_up,
            "repeatable": experiment.repeatable,
        }
        self.timing |= {"operations": self.operations, "vms_placed": int(tables["rates"]["vms_placed"].sum())}
        return Result(
            name=self.name,
            seed=self.seed,
            experiment=experiment.as_data(),
            facts=facts,
            summary=self.tracker.summary(tables, self._until),
            timing=self.timing,
            **tables,
        )

    def _check(self) -> None:
        """What was counted is what the store holds, and nothing is over capacity."""
        used, index = self.tracker.used_of(), self.zone.machine_index
        if self._touched or any(not worker.agent.idle for worker in self._workers):
            return  # what is under way is in one of them only
        for name, (taken, capacity) in self.store.amounts().items():
            if any(t > c for t, c in zip(taken, capacity, strict=True)):
                raise InvariantBroken(f"machine {name} is over capacity")
            if list(taken) != used[index[name]].tolist():
                raise InvariantBroken(f"machine {name} has {list(taken)}, counted were {used[index[name]].tolist()}")


def _seen(witness: Witness, operation: Operation, done: Callable[[Answer], None], answer: Answer) -> None:
    witness(operation, answer)
    done(answer)


@contextmanager
def _little_garbage() -> Iterator[None]:
    """A run makes millions of values and hardly a cycle: let Python look for these rarely, not among what is old."""
    thresholds = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(*RARELY)
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()


def _share_recheck(workers: Sequence[Worker]) -> None:
    """Agents of one process and one policy re-check alike; the store remembers rows for one of them only once."""
    for worker in workers:
        worker.agent.recheck = workers[0].agent.recheck


def _load(worker: Worker) -> int:
    return worker.load


HANDLERS: dict[int, Callable[[Simulation, Any], None]] = {
    LEAVE: Simulation._leave,
    COMMIT: Simulation._commit,
    LOOK: Simulation._look,
    FAIL: Simulation._fail,
    REPAIR: Simulation._repaired,
    DRAIN: Simulation._drain,
    RESUME: Simulation._resume,
    SWITCH: Simulation._switch,
    MIGRATE: Simulation._migrate,
    COPIED: Simulation._copied,
    FORESEE: Simulation._foresee,
    FADE: Simulation._fade,
    SAMPLE: Simulation._sample,
}
