"""VMs whose machine is down are placed again elsewhere: which, in which order, and when it is worth another try.

    down ──▶ lost VMs, highest priority first ──▶ heal, tenant by tenant ──▶ they run elsewhere
                     ▲                                    │
                     └── something changed that may help ◀── waiting, visibly: they are still on the machine

A VM stays on the books of its machine until the commit that places it elsewhere, so it is never lost and never there
twice, and what waits is what is still there. A machine that comes back before that keeps its VMs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING
from uuid import uuid4

import msgspec
import numpy as np

from roost.agent.allocator import Allocator, RunningVM
from roost.agent.operation import Answer, HealVMs, SetMachine
from roost.model.errors import InvalidInput, Outdated, UnknownName
from roost.model.request import HOLD, hold_of
from roost.model.rows import MachineState

if TYPE_CHECKING:
    from roost.agent.agent import Agent, Ticket

BY = "healing"  # who asks, as the trail tells it
KEY = "heal "  # how the key of every healing begins; no key of a request has a space
FLAPS = 3  # times that a machine may go down within a day before it is no longer trusted
DAY = 86_400.0


def to_heal(allocator: Allocator, operation: HealVMs) -> tuple[list[RunningVM], list[RunningVM]]:
    """The VMs of an operation whose machines are not ready, and what is held for them; raises if there are none."""
    tenant = allocator.tenants.get(operation.tenant)
    if tenant is None:
        raise UnknownName("tenant", "tenant with VMs", operation.tenant, allocator.tenants)
    if not operation.vms:
        raise InvalidInput("vms", "are none", "name at least one")
    lost: list[RunningVM] = []
    for i, name in enumerate(operation.vms):
        if (vm := tenant.vms.get(name)) is None or name.endswith(HOLD):
            raise UnknownName(f"vms[{i}]", f"VM of tenant {operation.tenant}", name, tenant.vms)
        if allocator.view.machines[vm.machine]["state"] != MachineState.READY:
            lost.append(vm)
    if not lost:
        raise Outdated("vms", f"the machines of {', '.join(operation.vms)} are ready", "nothing is to be done")
    return lost, [hold for vm in lost if (hold := tenant.vms.get(hold_of(vm.name)))]


def lost_vms(allocator: Allocator) -> list[RunningVM]:
    """The VMs on machines that are down, as they are to be healed."""
    return vms_on(allocator, np.flatnonzero(allocator.view.machines["state"] == MachineState.DOWN).tolist())


def vms_on(allocator: Allocator, machines: Sequence[int]) -> list[RunningVM]:
    """The VMs of some machines as they are to be placed again: those of the highest priority, then the largest."""
    if not machines:
        return []
    found = [vm for vms in allocator.running_on(machines).values() for vm in vms if not vm.name.endswith(HOLD)]
    capacity = allocator.view.machines["capacity"]

    def size(vm: RunningVM) -> float:
        row = allocator.view.machines[vm.machine]
        demand = vm.shape.row["demand"][0][row["generation"]]
        return float((demand / np.maximum(capacity[vm.machine], 1)).max())

    return sorted(found, key=lambda vm: (vm.shape.traits["priority"], -size(vm), vm.name))


class Lost(msgspec.Struct):
    """A VM that is to be healed."""

    since: float  # when that was seen
    why: str = ""  # what came of the last try, and its key
    key: str = ""


class HealingCounts(msgspec.Struct):
    """What came of healing so far."""

    healed: int = 0  # VMs
    declined: int = 0  # tries
    seconds: list[float] = []  # from the loss of each VM to its commit elsewhere, lately
    quarantined: int = 0  # machines that were not trusted any more


class Healer:
    """Heals through an agent. Call `step` between the agent's own."""

    def __init__(
        self,
        agent: Agent,
        clock: Callable[[], float],
        patience: float = 1.0,
        flaps: int = FLAPS,
        delay: float = 0.0,
        noted: Callable[[Ticket], None] = lambda _: None,
    ) -> None:
        """`patience`: seconds between two tries of what found no machine; 0: it only looks, and asks for nothing.

        `flaps`: times that a machine may go down within a day, 0 for any number. `delay`: seconds before it begins, so
        that one of several healers is the first. `noted` hears of each try that was answered.
        """
        self._agent, self._clock, self._patience, self._noted = agent, clock, patience, noted
        self._flaps, self._delay = flaps, delay
        self.counts = HealingCounts()
        self._down: set[str] = set()  # machines, as of the last look
        self._lost: dict[str, Lost] = {}  # VMs that are not healed, by name
        self._asked: set[str] = set()  # of these, those under way
        self._alone: set[str] = set()  # those of which not all of a tenant found room together
        self._failures: dict[str, list[float]] = {}  # by machine: when it went down
        self._distrusted: dict[str, float] = {}  # machines to be quarantined: when to ask for it, next
        self._seen: tuple[object, int] = (None, -1)  # the copy, and its revision, at the last look
        self._tried: tuple[object, int] = (None, -1)  # the copy, and what relief it had had, at the last try
        self._next = 0.0  # when what found no machine may be tried again

    @property
    def waiting(self) -> Mapping[str, Lost]:
        """VMs that are to be healed, by name."""
        return self._lost

    def step(self) -> None:
        """Look what is down, and ask for what can be done about it."""
        replica, now = self._agent.replica, self._clock()
        if self._seen != (replica, replica.revision):
            self._seen = (replica, replica.revision)
            names, states = replica.allocator.zone.machine_names, replica.view.machines["state"]
            down = {names[m] for m in np.flatnonzero(states == MachineState.DOWN).tolist()}
            known, self._down = self._down, down
            self._note(down - known, known - down, now)
            if down != known and self._delay and down - known:
                self._note_lost(now)
                self._tried, self._next = (None, -1), now + self._delay
            elif down != known:
                self._heal(now)
        if self._lost and now >= self._next and self._tried != (replica, replica.relief):
            self._heal(now)
        for machine in sorted(machine for machine, at in self._distrusted.items() if now >= at):
            self._quarantine(machine)

    def _note(self, failed: set[str], back: set[str], now: float) -> None:
        """Machines went down, or are no longer."""
        for machine in failed:
            since = self._failures.setdefault(machine, [])
            since[:] = [at for at in since if at > now - DAY] + [now]
        for machine in back:
            if 0 < self._flaps <= len(self._failures.get(machine, ())) and self._patience:
                self._distrusted.setdefault(machine, now)

    def _quarantine(self, machine: str) -> None:
        """A machine that went down again and again is back: it gets no new VMs until somebody has looked at it."""
        zone, view = self._agent.allocator.zone, self._agent.replica.view
        row = zone.machine_index.get(machine)
        state = None if row is None else view.machines[row]["state"]
        if state == MachineState.READY:
            self._distrusted[machine] = math.inf  # until that is answered
            done = partial(self._quarantined, machine)
            self._agent.submit(SetMachine(machine, state="quarantined"), done=done, by=BY)
            return
        del self._distrusted[machine]
        if state == MachineState.QUARANTINED:  # whoever did it
            self._failures.pop(machine, None)

    def _quarantined(self, machine: str, answer: Answer) -> None:
        if not answer.ok:
            self._distrusted[machine] = self._clock() + self._patience
            return
        del self._distrusted[machine]
        self._failures.pop(machine, None)
        self.counts.quarantined += 1

    def _heal(self, now: float) -> None:
        """Ask for all that is lost and not under way."""
        replica, lost = self._agent.replica, self._note_lost(now)
        self._tried, self._next = (replica, replica.relief), now + self._patience
        if self._patience:
            for group in together([vm for vm in lost if vm.name not in self._asked], self._alone):
                self._ask(tuple(vm.name for vm in group), group[0].tenant)

    def _note_lost(self, now: float) -> list[RunningVM]:
        lost = lost_vms(self._agent.allocator) if self._down else []
        self._lost = {vm.name: self._lost.get(vm.name) or Lost(now) for vm in lost}
        self._alone &= self._lost.keys()
        return lost

    def _ask(self, names: tuple[str, ...], tenant: str) -> None:
        self._asked.update(names)
        ticket = self._agent.submit(HealVMs(tenant, names), new_key(), by=BY)
        ticket.done = partial(self._answered, names, tenant, ticket)

    def _answered(self, names: tuple[str, ...], tenant: str, ticket: Ticket, answer: Answer) -> None:
        self._asked.difference_update(names)
        now = self._clock()
        for name in names:
            if name in self._lost:
                self._lost[name].why, self._lost[name].key = answer.detail, answer.key
        self._noted(ticket)
        if answer.ok:
            for placement in answer.placements:
                if (lost := self._lost.pop(placement.vm, None)) is not None:
                    self.counts.healed += 1
                    self.counts.seconds.append(now - lost.since)
            del self.counts.seconds[:-10_000]
        elif answer.status in ("conflicts", "unavailable"):
            self._tried = (None, -1)  # that may be otherwise the next time
        elif answer.status == "declined":
            self.counts.declined += 1
            if len(names) > 1:  # not all of them: then each by itself
                self._alone.update(names)
                for name in names:
                    self._ask((name,), tenant)


def new_key() -> str:
    """A key that nobody has used, by which the trail tells that VMs were placed again."""
    return f"{KEY}{uuid4().hex}"


def together(vms: Iterable[RunningVM], alone: Collection[str] = ()) -> list[list[RunningVM]]:
    """VMs of one tenant and priority are healed together, in the order of the first of them; some are `alone`."""
    groups: dict[tuple[str, int, str], list[RunningVM]] = {}
    for vm in vms:
        own = vm.name if vm.name in alone else ""
        groups.setdefault((vm.tenant, vm.shape.traits["priority"], own), []).append(vm)
    return list(groups.values())
