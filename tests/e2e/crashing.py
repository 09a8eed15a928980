"""Workers that are killed, clients that ask again with the same key, and what must be in the store in the end.

    Client ─ errand ─▶ Drive ─ line ─▶ Worker ✝ ─▶ the same line to another Worker, or to two of them
                         ◀─ answer ──┘

Everything happens in one thread, event by event; only lines are read in threads of their own. Nobody sleeps: what
happens next depends on how many answers came.
"""

from __future__ import annotations

import os
import queue
import random
import subprocess
import sys
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import msgspec

from roost.agent.operation import Answer, Evicted, Operation
from roost.agent.verbs.machine import SetMachine
from roost.agent.verbs.machines import AddMachines, RemoveMachines
from roost.agent.verbs.place import PlaceVMs
from roost.agent.verbs.release import ReleaseVMs
from roost.duties.healing import KEY as HEALING
from roost.model.change import Entry
from roost.model.inventory import Catalogue, MachineSpec
from roost.model.request import UNCONSTRAINED, VM, Constraints, Request
from roost.model.rows import MachineState
from roost.settings import HealingSection
from roost.store.history import entries_between
from roost.store.ledger import Ledger
from roost.wiring import open_store

ROOST = str(Path(sys.executable).with_name("roost"))
PATIENCE = 120.0  # seconds without any event, before a test gives up

_answer = msgspec.json.Decoder(Answer).decode
_encode = msgspec.json.Encoder().encode


# ---------------------------------------------------------------------------------------------------------- processes


class Process(Protocol):
    """A process that can be killed."""

    def kill(self) -> None:
        """End it without notice."""

    def wait(self) -> int:
        """Its exit code, or the signal that ended it, below zero."""


Launch = Callable[[Sequence[str], int, int, int], Process]  # arguments; the open files to read, write and complain to


def command_line(arguments: Sequence[str], stdin: int, stdout: int, stderr: int) -> Process:
    """The command line as a person runs it."""
    return subprocess.Popen([ROOST, *arguments], stdin=stdin, stdout=stdout, stderr=stderr)


class Worker:
    """A worker process, and a thread that passes on what it says."""

    def __init__(self, launch: Launch, slot: int, store: str, complaints: Path, events: Events) -> None:
        self.slot, self._complaints = slot, complaints
        self.answers = 0
        self.killed = False
        self._stdin: int | None
        theirs_in, self._stdin = os.pipe()
        stdout, theirs_out = os.pipe()
        stderr = os.open(complaints, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        try:
            self._process = launch(["worker", store, "--seed", str(slot + 1)], theirs_in, theirs_out, stderr)
        finally:
            for file in (theirs_in, theirs_out, stderr):
                os.close(file)
        self._code: int | None = None
        self._reader = threading.Thread(target=self._read, args=(stdout, events), daemon=True)
        self._reader.start()

    def _read(self, stdout: int, events: Events) -> None:
        try:
            with os.fdopen(stdout, "rb") as lines:
                for line in lines:
                    if line.endswith(b"\n"):  # a killed one may stop in the middle
                        events.put((self, _answer(line)))
        finally:
            events.put((self, None))

    def tell(self, line: bytes) -> None:
        """Give it a line, unless it is dead, which will show soon enough."""
        assert self._stdin is not None
        with suppress(BrokenPipeError):
            assert os.write(self._stdin, line) == len(line)

    def kill(self) -> None:
        """SIGKILL, unless it has ended."""
        if self._code is None:
            self.killed = True
            self._process.kill()

    def hush(self) -> None:
        """No more lines: it finishes what is under way and ends."""
        if self._stdin is not None:
            os.close(self._stdin)
            self._stdin = None

    def end(self) -> int:
        """No more lines, and wait for its end; returns its exit code."""
        self.hush()
        if self._code is None:
            self._code = self._process.wait()
            self._reader.join()
        return self._code

    @property
    def said(self) -> str:
        """What it said besides answers."""
        return self._complaints.read_text()


Events = queue.SimpleQueue[tuple[Worker, Answer | None]]


class Fleet:
    """Worker processes on one store. Whoever dies is replaced at once."""

    def __init__(self, store: str, size: int, folder: Path, launch: Launch = command_line) -> None:
        self.store, self._folder, self._launch = store, folder, launch
        self.events: Events = queue.SimpleQueue()
        self.kills = self.started = 0
        self.gave_up: list[str] = []  # last words of those who ended by themselves before they were ready
        self.workers = [self._start(slot) for slot in range(size)]

    def _start(self, slot: int) -> Worker:
        self.started += 1
        return Worker(self._launch, slot, self.store, self._folder / f"worker-{self.started}.log", self.events)

    def replace(self, dead: Worker) -> Worker:
        """Start another one instead of one that has ended."""
        code = dead.end()
        if not dead.killed:
            assert "ready" not in dead.said, f"a worker ended by itself: {dead.said}"
            assert code == 5, f"a worker ended with code {code}: {dead.said}"
            self.gave_up.append(dead.said)
        self.workers[dead.slot] = self._start(dead.slot)
        return self.workers[dead.slot]

    def kill(self, worker: Worker) -> None:
        """SIGKILL one."""
        worker.kill()
        self.kills += 1

    def working(self) -> list[Worker]:
        """Those that have answered something and were not killed."""
        return [worker for worker in self.workers if worker.answers and not worker.killed]

    def close(self) -> None:
        """Let all finish. None of all that there were has ever stumbled."""
        for worker in self.workers:
            worker.hush()
        for worker in self.workers:
            assert worker.end() == 0, worker.said
        for path in self._folder.glob("worker-*.log"):
            assert "Traceback" not in (said := path.read_text()), said

    def kill_all(self) -> None:
        """Leave nobody behind, whatever happened."""
        for worker in self.workers:
            worker.kill()
            worker.end()


# ------------------------------------------------------------------------------------------------------------ clients


@dataclass(frozen=True)
class Asking:
    """One worker that has an errand and has not answered."""

    worker: Worker
    of_old: bool  # it was done before: there is only one answer


@dataclass(eq=False)
class Errand:
    """An operation, from first being asked for to the last answer."""

    key: str
    operation: Operation
    subject: str  # the tenant or machine that it is about: one at a time
    since: int  # the tick when it was first asked for
    line: bytes = b""
    out: list[Asking] = field(default_factory=list)
    lost: int = 0  # askings of which nobody knows what came
    done: Answer | None = None
    first_hand: int = 0  # answers that say: done just now
    settled: bool = False

    def __post_init__(self) -> None:
        self.line = _encode(msgspec.to_builtins(self.operation) | {"key": self.key}) + b"\n"


@dataclass
class Tenant:
    """What a tenant must look like."""

    constraints: Constraints
    vms: dict[str, tuple[VM, str]] = field(default_factory=dict)  # by name: what was asked for, and the machine


@dataclass(frozen=True)
class Site:
    """What clients know of the zone."""

    catalogue: Catalogue
    machines: dict[str, MachineSpec]

    @property
    def cores(self) -> int:
        """All of them, in the catalogue's own unit."""
        return sum(spec.capacity[0] for spec in self.machines.values())

    def cores_of(self, vm: VM, machine: str) -> int:
        """What a VM takes of a machine."""
        return self.catalogue.demand[vm.type, self.machines[machine].generation][0]


CREATE, GROW, SHRINK, DELETE, MACHINE, SPARE, AGAIN = "create", "grow", "shrink", "delete", "machine", "spare", "again"
BELOW = {CREATE: 50, GROW: 22, SHRINK: 8, DELETE: 8, MACHINE: 6, SPARE: 1, AGAIN: 5}  # less full than it should be
ABOVE = {CREATE: 20, GROW: 8, SHRINK: 30, DELETE: 30, MACHINE: 6, SPARE: 1, AGAIN: 5}
TYPES = ("A1", "A2", "A3", "A4", "A5", "A6", "A7", "D1", "D2", "D3", "D4", "D12", "D13", "D14", "G2", "G3")
APART = Constraints(max_per_machine=1)
WISHES = (
    APART,
    Constraints(max_per_rack=2),
    Constraints(min_fault_domains=2, max_per_machine=2),
    Constraints(min_update_domains=2),
    Constraints(colocate="cluster"),
)
RECENT = 6  # subjects that were changed last: asked for again soon, perhaps from a worker that has not heard of them
DOWN = 0.05  # of the machines, at most
TWICE = 0.15  # how likely an errand goes to two workers at once


class Client:
    """Owns some tenants and machines, and knows what must be there of them, but for VMs that give way just now."""

    def __init__(self, name: str, site: Site, machines: Sequence[str], seed: int) -> None:
        self.name, self.site, self.rng = name, site, random.Random(seed)
        self.tenants: dict[str, Tenant] = {}
        self.states = dict.fromkeys(machines, "ready")
        self.spares: dict[str, MachineSpec] = {}  # machines it has added
        self.busy: set[str] = set()  # subjects with something under way
        self.finished: list[Errand] = []
        self.used = 0  # cores
        self._free_names: list[str] = []
        self._recent: deque[str] = deque(maxlen=RECENT)
        self._number = 0

    def _next_number(self) -> int:
        self._number += 1
        return self._number

    # --------------------------------------------------------------------------------------------- wanting

    def next(self, full: bool, tick: int) -> Errand | None:
        """The next thing it wants: an errand that is new, or one that is long done."""
        weights = ABOVE if full else BELOW
        (what,) = self.rng.choices(list(weights), list(weights.values()))
        if what == AGAIN:
            return self.rng.choice(self.finished) if self.finished else None
        wanted = {
            CREATE: self._create,
            GROW: self._grow,
            SHRINK: self._shrink,
            DELETE: self._delete,
            MACHINE: self._machine,
            SPARE: self._spare,
        }[what]()
        return self._errand(*wanted, tick) if wanted else None

    def create(self, tick: int) -> Errand:
        """A new tenant."""
        return self._errand(*self._create(), tick)

    def _errand(self, subject: str, operation: Operation, tick: int) -> Errand:
        self.busy.add(subject)
        return Errand(f"{self.name}-{self._next_number()}", operation, subject, tick)

    def _vms(self, count: int) -> list[VM]:
        rng = self.rng
        band = self.site.catalogue.bands[rng.random() < 0.25]
        vm = VM(rng.choice(TYPES), priority=band, isolated=rng.random() < 0.03)
        if rng.random() < 0.1:
            vm = msgspec.structs.replace(vm, colocation=rng.choice(self.site.catalogue.classes))
        return [vm] * count

    def _create(self) -> tuple[str, Operation]:
        rng = self.rng
        again = [name for name in self._free_names if name not in self.busy]
        tenant = rng.choice(again) if again and rng.random() < 0.2 else f"{self.name}-t{self._next_number()}"
        if tenant in self._free_names:
            self._free_names.remove(tenant)
        vms = self._vms(rng.randint(1, 5))
        if rng.random() < 0.1:
            vms = [msgspec.structs.replace(vm, name=f"{tenant}/called-{i}") for i, vm in enumerate(vms)]
        constraints = rng.choice(WISHES) if len(vms) > 1 and rng.random() < 0.3 else None
        return tenant, PlaceVMs(Request(tenant, vms, constraints))

    def _existing(self) -> str | None:
        """A tenant that nothing is under way of, rather one that was changed just now."""
        recent = [name for name in self._recent if name in self.tenants and name not in self.busy]
        if recent and self.rng.random() < 0.4:
            return self.rng.choice(recent)
        idle = [name for name in self.tenants if name not in self.busy]
        return self.rng.choice(idle) if idle else None

    def _grow(self) -> tuple[str, Operation] | None:
        tenant = self._existing()
        return (tenant, PlaceVMs(Request(tenant, self._vms(self.rng.randint(1, 2))))) if tenant else None

    def _shrink(self) -> tuple[str, Operation] | None:
        tenant = self._existing()
        if tenant is None:
            return None
        names = sorted(self.tenants[tenant].vms)
        return tenant, ReleaseVMs(tenant, tuple(self.rng.sample(names, self.rng.randint(1, (len(names) + 1) // 2))))

    def _delete(self) -> tuple[str, Operation] | None:
        tenant = self._existing()
        return (tenant, ReleaseVMs(tenant)) if tenant else None

    def _machine(self) -> tuple[str, Operation] | None:
        down = [name for name, state in self.states.items() if state != "ready"]
        well = self.rng.random() < 0.5 if down else False
        if len(down) >= DOWN * len(self.states):
            well = True
        names = down if well else [name for name, state in self.states.items() if state == "ready"]
        machine = self.rng.choice(names)
        if machine in self.busy:
            return None
        return machine, SetMachine(machine, "ready" if well else "down")

    def _spare(self) -> tuple[str, Operation] | None:
        """Add a machine that is down, so that nobody uses it, or remove it: every agent must load the zone anew."""
        if self.spares:
            name = self.rng.choice(sorted(self.spares))
            return None if name in self.busy else (name, RemoveMachines((name,)))
        spec = self.site.machines[self.rng.choice(sorted(self.site.machines))]
        name = f"{self.name}-spare-{self._next_number()}"
        spare = msgspec.structs.replace(spec, name=name)
        return name, AddMachines((spare,), {name: {"state": int(MachineState.DOWN)}})

    # --------------------------------------------------------------------------------------------- getting

    def got(self, errand: Errand, answer: Answer) -> None:
        """It was done: this is how things must be from now on."""
        operation, subject = errand.operation, errand.subject
        if isinstance(operation, PlaceVMs):
            self._placed(operation.request, answer)
        elif isinstance(operation, ReleaseVMs):
            self._released(subject, operation.vms)
        elif isinstance(operation, SetMachine):
            self.states[subject] = operation.state
        elif isinstance(operation, AddMachines):
            (self.spares[subject],) = operation.machines
        else:
            del self.spares[subject]
        self._recent.append(subject)
        self.finished.append(errand)

    def _placed(self, request: Request, answer: Answer) -> None:
        assert [each.type for each in answer.placements] == [vm.type for vm in request.vms], "half a tenant"
        tenant = self.tenants.setdefault(request.tenant, Tenant(request.constraints or UNCONSTRAINED))
        for vm, placement in zip(request.vms, answer.placements, strict=True):
            assert vm.name in ("", placement.vm)
            if placement.vm in tenant.vms:  # one of that name had to give way, and nobody has said so yet
                self.used -= self.site.cores_of(*tenant.vms[placement.vm])
            tenant.vms[placement.vm] = (msgspec.structs.replace(vm, name=""), placement.machine)
            self.used += self.site.cores_of(vm, placement.machine)

    def _released(self, name: str, vms: Sequence[str]) -> None:
        for vm in vms or tuple(self.tenants[name].vms if name in self.tenants else ()):
            self._gone(name, vm)

    def gave_way(self, evicted: Evicted) -> None:
        """One of its VMs had to give way, perhaps a while ago: it may have another one of that name by now."""
        tenant = self.tenants.get(evicted.tenant)
        if tenant and evicted.vm in tenant.vms and tenant.vms[evicted.vm][1] == evicted.machine:
            self._gone(evicted.tenant, evicted.vm)

    def _gone(self, name: str, vm: str) -> None:
        tenant = self.tenants.get(name)
        if tenant is None or vm not in tenant.vms:
            return  # it gave way before
        self.used -= self.site.cores_of(*tenant.vms.pop(vm))
        if not tenant.vms:
            del self.tenants[name]
            self._free_names.append(name)


# ------------------------------------------------------------------------------------------------------------ driving


class Drive:
    """Carries errands of clients to workers, again and again until they are answered."""

    def __init__(self, fleet: Fleet, clients: Sequence[Client], seed: int, *, full: float) -> None:
        """`full`: the share of all cores around which to work."""
        self.fleet, self.clients, self.rng, self.full = fleet, clients, random.Random(seed), full
        self.site = clients[0].site
        self.errands: dict[str, tuple[Client, Errand]] = {}
        self.open: dict[str, tuple[Client, Errand]] = {}  # not settled, or somebody has yet to answer
        self.unsure: list[tuple[Client, Errand]] = []  # refused, yet of some askings nobody knows what came
        self.answers = self.tick = 0
        self.counts: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.missed: list[tuple[Errand, Answer]] = []  # refused, as some of what they were about was not there
        self._cores = self.site.cores
        self._down_since: dict[str, int] = {}
        self.broken: Counter[str] = Counter()  # by machine: how often it was taken down

    @property
    def utilisation(self) -> float:
        """The share of all cores that acknowledged VMs take."""
        return sum(client.used for client in self.clients) / self._cores

    # --------------------------------------------------------------------------------------------- asking

    def ask(self, client: Client, errand: Errand, *workers: Worker) -> None:
        """Ask these workers for the same, under the same key."""
        self.errands[errand.key] = self.open[errand.key] = client, errand
        for worker in workers:
            errand.out.append(Asking(worker, of_old=errand.done is not None))
            worker.tell(errand.line)

    def _someone(self, twice: float) -> list[Worker]:
        """A worker, or at times two."""
        size = 2 if len(self.fleet.workers) > 1 and self.rng.random() < twice else 1
        return self.rng.sample(self.fleet.workers, size)

    def _top_up(self, window: int) -> None:
        """Let every client have as many errands under way."""
        full = self.utilisation >= self.full
        for slot, client in enumerate(self.clients):
            under_way = sum(1 for owner, errand in self.open.values() if owner is client)
            for _ in range(window - under_way):
                errand = client.next(full, self.tick)
                if errand is not None and errand.key not in self.open:
                    home = self.fleet.workers[slot % len(self.fleet.workers)]
                    also = self._someone(0.0) if self.rng.random() < TWICE else []
                    self.ask(client, errand, home, *(worker for worker in also if worker is not home))

    # -------------------------------------------------------------------------------------------- hearing

    def turn(self) -> bool:
        """Take in one event; whether it was an answer."""
        try:
            worker, answer = self.fleet.events.get(timeout=PATIENCE)
        except queue.Empty:
            waiting = [errand.line for _, errand in self.open.values()]
            raise AssertionError(f"nothing happens any more; {len(waiting)} wait: {waiting[:3]}") from None
        self.tick += 1
        if answer is None:
            self._bury(worker)
            return False
        self.answers += 1
        worker.answers += 1
        self._hear(worker, answer)
        return True

    def _bury(self, dead: Worker) -> None:
        """Somebody died: ask others for what it had not answered."""
        self.fleet.replace(dead)
        for client, errand in list(self.open.values()):
            still = [asking for asking in errand.out if asking.worker is not dead]
            lost = len(errand.out) - len(still)
            errand.out = still
            errand.lost += lost
            if lost and errand.done is None:
                self.counts["asked again after a death"] += 1
                self.ask(client, errand, *self._someone(0.3))
            self._close(errand)

    def _hear(self, worker: Worker, answer: Answer) -> None:
        client, errand = self.errands[answer.key]
        asking = next(asking for asking in errand.out if asking.worker is worker)
        errand.out.remove(asking)
        self.counts[answer.status] += 1
        self.counts["retries"] += answer.retries
        if answer.status == "done":
            self._done(client, errand, answer)
        elif errand.done is not None and answer.status != "invalid":
            if asking.of_old and answer.status != "unavailable":
                self.wrong.append(f"{errand.line!r} was done, then answered {answer}")
        elif answer.status == "declined" and isinstance(errand.operation, PlaceVMs):
            if not errand.out:
                self._declined(client, errand)
        elif answer.status in ("conflicts", "unavailable"):
            errand.lost += answer.status == "unavailable"
            self.ask(client, errand, *self._someone(0.0))
        elif answer.status == "invalid" and isinstance(errand.operation, PlaceVMs | ReleaseVMs) and not errand.done:
            self.missed.append((errand, answer))
            if not errand.out:
                self._declined(client, errand)
        else:
            self.wrong.append(f"{errand.line!r} was answered {answer}")
            errand.settled = True
        self._close(errand)

    def _done(self, client: Client, errand: Errand, answer: Answer) -> None:
        errand.first_hand += not answer.replayed
        self.counts["replayed"] += answer.replayed
        if errand.first_hand > 1:
            self.wrong.append(f"{errand.line!r} was done twice")
        if errand.done is not None:
            if (errand.done.placements, errand.done.evicted) != (answer.placements, answer.evicted):
                self.wrong.append(f"{errand.line!r} was answered {errand.done} and {answer}")
            return
        errand.done, errand.settled = answer, True
        client.busy.discard(errand.subject)
        for evicted in answer.evicted:
            self.counts["gave way"] += 1
            for each in self.clients:
                each.gave_way(evicted)
        client.got(errand, answer)
        for placement in answer.placements:
            since = self._down_since.get(placement.machine, errand.since)
            if since < errand.since and not any(placement.machine in each.busy for each in self.clients):
                self.wrong.append(f"{errand.line!r} got {placement.machine}, which was down before")
        if isinstance(errand.operation, SetMachine):
            self._down_since.pop(errand.subject, None)
            if errand.operation.state == "down":
                self._down_since[errand.subject] = self.tick
                self.broken[errand.subject] += 1

    def _declined(self, client: Client, errand: Errand) -> None:
        """Refused by all that were asked. If one of them died, it may have done it: leave that subject alone."""
        errand.settled = True
        if errand.lost:
            self.unsure.append((client, errand))
        else:
            client.busy.discard(errand.subject)

    def _close(self, errand: Errand) -> None:
        if errand.settled and not errand.out:
            self.open.pop(errand.key, None)

    # -------------------------------------------------------------------------------------------- driving

    def fill(self, window: int) -> None:
        """Create tenants, many at once, until the zone is as full as wanted."""
        number = 0
        while self.utilisation < self.full:
            assert number < 10_000, f"the zone gets no fuller than {self.utilisation:.0%}"
            while len(self.open) < window:
                client = self.clients[number % len(self.clients)]
                self.ask(client, client.create(self.tick), self.fleet.workers[number % len(self.fleet.workers)])
                number += 1
            self.turn()
        self.settle()

    def work(self, answers: int, window: int = 12) -> None:
        """Go on until so many more answers have come."""
        until = self.answers + answers
        while self.answers < until:
            self._top_up(window)
            self.turn()

    def work_until(self, so: Callable[[], bool], window: int = 12) -> None:
        """Go on until something is so."""
        while not so():
            self._top_up(window)
            self.turn()

    def settle(self) -> None:
        """Ask for nothing new until everything is answered."""
        while self.open:
            self.turn()

    def drain(self) -> None:
        """Let everything be answered, and find out what nobody knows. Nobody dies any more."""
        self.settle()
        while self.unsure:
            client, errand = self.unsure.pop()
            errand.lost, errand.settled = 0, False
            self.ask(client, errand, *self._someone(0.0))
            self.settle()

    def ask_again(self, number: int) -> None:
        """Ask for things that are long done: nothing happens, and the answers are the same."""
        finished = [(client, errand) for client in self.clients for errand in client.finished]
        for client, errand in self.rng.sample(finished, number):
            self.ask(client, errand, *self._someone(0.0))
        self.settle()


# ----------------------------------------------------------------------------------------------------------- checking


def told(drive: Drive, entries: Sequence[Entry], wrong: list[str]) -> dict[str, Tenant]:
    """The tenants by what clients were told, one key after another as the store did them, and by what was healed."""
    tenants: dict[str, Tenant] = {}
    evicted: dict[str, set[str]] = {}
    bands = drive.site.catalogue.bands

    def take(tenant: str, vm: str, why: str) -> VM | None:
        had = tenants[tenant].vms.pop(vm, None) if tenant in tenants else None
        if had is None:
            wrong.append(f"VM {vm} {why}, but there was none")
            return None
        if not tenants[tenant].vms:
            del tenants[tenant]
        return had[0]

    def heal(entry: Entry) -> None:
        here = {vm.vm: vm for vm in entry.placed}
        for gone in entry.released:
            had = take(entry.tenant, gone.vm, f"left {gone.machine}")
            if gone.vm not in here:
                evicted.setdefault(entry.tenant, set()).add(gone.vm)
            if gone.vm not in here and entry.eviction is None:
                wrong.append(f"VM {gone.vm} was lost by {entry.key}")
            elif gone.vm in here and had != here[gone.vm].spec:
                wrong.append(f"VM {gone.vm} was {had} and is {here[gone.vm].spec}")
        if here.keys() - {gone.vm for gone in entry.released}:
            wrong.append(f"{entry.key} placed VMs that were not there: {entry}")
        if here:
            tenant = tenants.setdefault(entry.tenant, Tenant(entry.constraints))
            tenant.vms |= {name: (vm.spec, vm.machine) for name, vm in here.items()}

    order: dict[str, None] = {}
    for entry in entries:
        key = entry.key
        if key.startswith(HEALING):
            heal(entry)
            continue
        if key in order:
            continue
        order[key] = None
        if key not in drive.errands or (answer := drive.errands[key][1].done) is None:
            wrong.append(f"{key} was done, and nobody was told so")
            continue
        operation = drive.errands[key][1].operation
        if isinstance(operation, ReleaseVMs):
            for name in operation.vms or tuple(tenants[operation.tenant].vms):
                take(operation.tenant, name, "was released")
        elif isinstance(operation, PlaceVMs):
            request = operation.request
            constraints = request.constraints or UNCONSTRAINED
            if request.tenant in tenants:
                constraints = tenants[request.tenant].constraints
            highest = min(bands.index(vm.priority) for vm in request.vms)
            for each in answer.evicted:
                evicted.setdefault(each.tenant, set()).add(each.vm)
                gone = take(each.tenant, each.vm, f"gave way to {key}")
                if gone and bands.index(gone.priority) <= highest:
                    wrong.append(f"VM {each.vm} gave way to {key}, which is of no higher priority")
            tenant = tenants.setdefault(request.tenant, Tenant(constraints))
            for vm, placement in zip(request.vms, answer.placements, strict=True):
                if placement.vm in tenant.vms:
                    wrong.append(f"two VMs are called {placement.vm}")
                tenant.vms[placement.vm] = (msgspec.structs.replace(vm, name=""), placement.machine)
    done = {key for key, (_, errand) in drive.errands.items() if errand.done}
    lost = [key for key in done - order.keys() if isinstance(drive.errands[key][1].operation, PlaceVMs | ReleaseVMs)]
    wrong += [f"{key} was answered {drive.errands[key][1].done}, and the store knows nothing of it" for key in lost]
    for errand, answer in drive.missed:
        if not evicted.get(errand.subject):
            wrong.append(f"{errand.line!r} was answered {answer}, and no VM of that tenant ever gave way")
    return tenants


def differences(drive: Drive, ledger: Ledger, entries: Sequence[Entry]) -> Iterator[str]:
    """Where a store, whose feed has these entries of tenants, differs from what clients were told."""
    wrong: list[str] = []
    tenants = told(drive, entries, wrong)
    yield from wrong
    expected = {
        name: (tenant, machine, vm) for tenant, must in tenants.items() for name, (vm, machine) in must.vms.items()
    }
    found = {name: (vm.tenant, vm.machine, vm.spec) for name, vm in ledger.vms.items()}
    for name in expected.keys() | found.keys():
        if expected.get(name) != found.get(name):
            yield f"VM {name} should be {expected.get(name)} and is {found.get(name)}"
    for name in tenants.keys() | ledger.tenants.keys():
        must = (tenants[name].constraints, len(tenants[name].vms)) if name in tenants else None
        row = ledger.tenants.get(name)
        if must != (row and (row.constraints, row.vms)):
            yield f"tenant {name} should be {must} and is {row}"
    states = {name: state for client in drive.clients for name, state in client.states.items()}
    states |= {name: "down" for client in drive.clients for name in client.spares}
    for name in states.keys() | ledger.machines.keys():
        there = ledger.machines.get(name)
        state = MachineState(there.state).name.lower() if there else None
        # It is kept from use, whoever mended it.
        distrusted = state == "quarantined" and drive.broken[name] >= HealingSection.flaps
        if states.get(name) != state and not distrusted:
            yield f"machine {name} should be {states.get(name)} and is {state}"
    yield from _broken_promises(ledger)


def _broken_promises(ledger: Ledger) -> Iterator[str]:
    """Tenants that are closer together, or further apart, than they asked for; machines that are shared."""
    homes: dict[str, list[MachineSpec]] = {}
    guests: dict[str, set[str]] = {}
    for vm in ledger.vms.values():
        homes.setdefault(vm.tenant, []).append(ledger.machines[vm.machine].spec)
        guests.setdefault(vm.machine, set()).add(vm.tenant)
    for name, vm in ledger.vms.items():
        if vm.spec.isolated and len(guests[vm.machine]) > 1:
            yield f"VM {name} is isolated, but on {vm.machine} are {guests[vm.machine]}"
    for name, machines in homes.items():
        wish = ledger.tenants[name].constraints
        on_machine = max(Counter(spec.name for spec in machines).values())
        in_rack = max(Counter(spec.rack for spec in machines).values())
        if wish.max_per_machine and on_machine > wish.max_per_machine:
            yield f"tenant {name} has {on_machine} VMs on one machine"
        if wish.max_per_rack and in_rack > wish.max_per_rack:
            yield f"tenant {name} has {in_rack} VMs in one rack"
        if wish.colocate == "cluster" and len({spec.cluster for spec in machines}) > 1:
            yield f"tenant {name} is in several clusters"


def is_exact(drive: Drive) -> None:
    """The store is exactly what clients were told, and agrees with itself."""
    assert not drive.wrong, "\n".join(drive.wrong)
    audit = subprocess.run([ROOST, "audit", drive.fleet.store], capture_output=True, text=True, check=False)
    assert audit.returncode == 0, audit.stdout + audit.stderr
    with closing(open_store(drive.fleet.store, read_only=True)) as store:
        ledger = store.load()
        entries = [entry for _, entry in entries_between(store, 0, ledger.revision) if entry.tenant]
        wrong = list(differences(drive, ledger, entries))
        assert not wrong, "\n".join(wrong)
    assert drive.counts["gave way"] > 0
    assert any(entry.key.startswith(HEALING) for entry in entries)


def clients_of(ledger: Ledger, count: int, seed: int) -> list[Client]:
    """Clients that share the machines of a zone among them."""
    site = Site(ledger.catalogue, {name: row.spec for name, row in sorted(ledger.machines.items())})
    names = list(site.machines)
    return [Client(f"c{i}", site, names[i::count], seed + i) for i in range(count)]
