"""VMs whose machine is down are placed again elsewhere: which, in which order, and when it is worth another try.

    down ──▶ lost VMs, highest priority first ──▶ heal, tenant by tenant ──▶ they run elsewhere
                     ▲                                    │
                     └── something changed that may help ◀── waiting, visibly: they are still on the machine

A VM stays on the books of its machine until the commit that places it elsewhere, so it is never lost and never there
twice, and what waits is what is still there. A machine that comes back before that keeps its VMs.

What was just lost is asked for at once. What found no machine then has its turns (see `turns`), on the copy: only what
finds room there is asked for. Why it finds none is told once, and again after something opened that did not help, so
many at a time as `TOLD` says.

When machines went down before a healer began, the feed says: its first step reads that, in the service as in a worker,
so that each of them knows which machines fail again and again, and how long a VM has been lost.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from roost.agent.operation import Answer
from roost.agent.verbs.heal import HealVMs
from roost.agent.verbs.machine import SetMachine
from roost.duties.duty import Pausing, SimpleDuty
from roost.duties.outages import outages_of
from roost.duties.turns import Result, Turns, finds_none
from roost.model.keys import new_key
from roost.model.request import HOLD, UNCONSTRAINED
from roost.model.rows import MachineState
from roost.model.spans import DAY
from roost.placing.allocator import Allocator
from roost.placing.books import RunningVM
from roost.settings import HealingSection

if TYPE_CHECKING:
    from roost.agent.agent import Agent
    from roost.agent.replica import Replica
    from roost.agent.ticket import Ticket
    from roost.model.change import Entry

BY = "healing"  # who asks, as the trail tells it
KEY = "heal "  # how the key of every healing begins; no key of a request has a space
TOLD = 5  # VMs of which it can be told at once why they find no machine
TELL_SECONDS = 0.5  # until it can be told of one more
RECALL_SECONDS = 10.0  # until the feed is read again, if it could not be


def lost_vms(allocator: Allocator) -> list[RunningVM]:
    """The VMs on machines that are down, as they are to be healed."""
    return vms_on(allocator, np.flatnonzero(allocator.view.machines["state"] == MachineState.DOWN).tolist())


def vms_on(allocator: Allocator, machines: Sequence[int]) -> list[RunningVM]:
    """The VMs of some machines as they are to be placed again: those of the highest priority, then the largest."""
    if not machines:
        return []
    found = [vm for vms in allocator.running_on(machines).values() for vm in vms if not vm.name.endswith(HOLD)]
    return sorted(found, key=partial(urgency, allocator))


def urgency(allocator: Allocator, vm: RunningVM) -> tuple[int, float, str]:
    """Who is placed again first: those of the highest priority, then the largest."""
    row = allocator.view.machines[vm.machine]
    share = vm.shape.row["demand"][0][row["generation"]] / np.maximum(row["capacity"], 1)
    return vm.shape.traits["priority"], -float(share.max()), vm.name


class LostVM(msgspec.Struct):
    """A VM that is to be healed."""

    since: float  # when it was lost, by the clock of steps
    machine: str  # where it is
    why: str = ""  # what came of the last try that was recorded, and its key
    key: str = ""


class HealingCounts(msgspec.Struct):
    """What came of healing so far."""

    healed: int = 0  # VMs
    declined: int = 0  # tries
    seconds: list[float] = []  # from the loss of each VM to its commit elsewhere, lately
    quarantined: int = 0  # machines that were not trusted any more


class Healer(SimpleDuty):
    """Heals through an agent. Call `step` between the agent's own."""

    name, period = "healing", 0.0

    def __init__(
        self,
        agent: Agent,
        clock: Callable[[], float],
        time_of_day: Callable[[], float],
        patience: float = HealingSection.retry_seconds,
        flaps: int = HealingSection.flaps,
        delay: float = 0.0,
        noted: Callable[[Ticket], None] = lambda _: None,
    ) -> None:
        """`clock`: the one that steps go by; it measures how long tries and healing take, between steps, too.

        `time_of_day`: seconds since 1970, by which the feed is dated; whatever is done to it, healing goes on.
        `patience`: seconds between two tries of what found no machine; 0: it only looks, and asks for nothing. `flaps`:
        times that a machine may go down within a day, 0 for any number. `delay`: seconds before it begins, so that one
        of several healers is the first. `noted` hears of each try that was answered.
        """
        self._agent, self._clock, self._time_of_day = agent, clock, time_of_day
        self._patience, self._noted = patience, noted
        self._flaps, self._delay = flaps, delay
        self.counts = HealingCounts()
        self._down: set[str] = set()  # machines, as of the last look
        self._held = 0  # VMs on these, then
        self._lost: dict[str, LostVM] = {}  # VMs that are not healed, by name
        self._new: list[RunningVM] = []  # of these, those that are to be asked for
        self._asked: set[str] = set()  # and those under way
        self._turns = Turns(agent, clock)  # and those that found no machine
        self._had_turn: set[str] = set()  # of these, those whose turn is over once what is under way is answered
        self._untold: dict[str, None] = {}  # of which it is to be told why
        self._tellable, self._told = float(TOLD), math.inf
        self._failures: dict[str, list[float]] = {}  # by machine: when it went down
        self._distrusted: dict[str, float] = {}  # machines to be quarantined: when to ask for it, next
        self._seen: tuple[object, int] = (None, -1)  # the copy, and its revision, at the last look
        self._basis: tuple[object, ...] = ()  # the copy and the policies that the turns are for
        self._opened = 0  # what had opened when it was last told why
        self._begin = 0.0  # when what is new may be asked for
        self._began: int | None = None  # the revision that it saw first: what was before, only the feed knows
        self._recall_at = -math.inf  # when to read that

    @property
    def waiting(self) -> Mapping[str, LostVM]:
        """VMs that are to be healed, by name."""
        return self._lost

    @property
    def at_rest(self) -> bool:
        """Whether there is nothing to do, unless something changes: what waits finds no machine."""
        replica = self._agent.replica
        seen = self._seen == (replica, replica.revision)
        busy = self._new or self._asked or self._untold or self._distrusted
        return seen and not busy and self._turns.at_rest

    def concerns(self, entry: Entry) -> bool:
        """Room that is freed only matters to those who wait."""
        return super().concerns(entry) or bool(entry.released and self._lost)

    def step(self, now: float) -> Pausing | None:
        """Look what is down, and ask for what can be done about it."""
        self._heal(now)
        return self._recall(now) if now >= self._recall_at else None

    def _heal(self, now: float) -> None:
        replica = self._agent.replica
        if self._seen != (replica, replica.revision):
            self._seen = (replica, replica.revision)
            self._look(replica, now)
        if not self._patience:
            return
        if self._basis != (replica, self._agent.split):
            self._basis = (replica, self._agent.split)
            self._line_up_anew()
        if self._new and now >= self._begin:
            lost, self._new = self._new, []
            for group in together(vm for vm in lost if vm.name in self._lost and vm.name not in self._asked):
                self._ask(tuple(vm.name for vm in group), group[0].tenant)
        if self._lost:
            self._turns.step(now, self._patience, self._try)
            self._tell(replica, now)
        for machine in sorted(machine for machine, at in self._distrusted.items() if now >= at):
            self._quarantine(machine)

    # ------------------------------------------------------------------------------------------------ recalling

    def _recall(self, now: float) -> Pausing:
        """Read when machines went down before this began; what the feed does not reach counts for nothing."""
        assert self._began is not None
        self._recall_at = now + RECALL_SECONDS
        outages = yield partial(outages_of, self._agent.store, self._began, self._time_of_day())
        self._recall_at = math.inf
        self._remember(outages, now)

    def _remember(self, outages: Mapping[str, Iterable[float]], now: float) -> None:
        """Machines went down: by machine, how many seconds ago, each time."""
        before = {machine: sorted(now - age for age in ages) for machine, ages in outages.items()}
        for machine, times in before.items():
            self._failures[machine] = times + self._failures.get(machine, [])
        for lost in self._lost.values():
            if times := before.get(lost.machine, []):
                lost.since = min(lost.since, times[-1])

    # ------------------------------------------------------------------------------------------------- looking

    def _look(self, replica: Replica, now: float) -> None:
        """Which machines are down, and what is on them? All VMs are gone through only if there are more than before."""
        rows, names = replica.view.machines, replica.allocator.zone.machine_names
        found = np.flatnonzero(rows["state"] == MachineState.DOWN)
        down, held = {names[m] for m in found.tolist()}, int(rows["vms"][found].sum())
        failed, back, held_before = down - self._down, self._down - down, self._held
        self._down, self._held = down, held
        if self._began is None:
            self._began = replica.revision
        else:
            self._note(failed, back, now)
        if failed or held > held_before:
            self._note_lost(now)
            if failed and self._delay:
                self._begin = now + self._delay
        elif back or held < held_before:
            for name in [name for name in self._lost if not self._is_lost(name)]:
                self._forget(name)

    def _note_lost(self, now: float) -> None:
        lost = lost_vms(self._agent.allocator)
        names, known = self._agent.allocator.zone.machine_names, self._lost
        self._lost = {vm.name: known.get(vm.name) or LostVM(now, names[vm.machine]) for vm in lost}
        for name in known.keys() - self._lost.keys():
            self._forget(name)
        waiting = {vm.name for vm in self._new}
        self._new += [vm for vm in lost if vm.name not in known and vm.name not in waiting]

    def _is_lost(self, name: str) -> bool:
        allocator = self._agent.allocator
        vm = allocator.vms.get(name)
        return vm is not None and allocator.view.machines[vm.machine]["state"] == MachineState.DOWN

    def _forget(self, name: str) -> None:
        self._lost.pop(name, None)
        self._untold.pop(name, None)
        self._had_turn.discard(name)
        self._turns.drop(name)

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

    # -------------------------------------------------------------------------------------------------- asking

    def _ask(self, names: tuple[str, ...], tenant: str) -> None:
        self._asked.update(names)
        tried = self._agent.replica.relief.count
        ticket = self._agent.submit(HealVMs(tenant, names), healing_key(), by=BY, duty=True)
        ticket.done = partial(self._answered, names, tenant, ticket, tried)

    def _answered(self, names: tuple[str, ...], tenant: str, ticket: Ticket, tried: int, answer: Answer) -> None:
        self._asked.difference_update(names)
        had_turn = self._had_turn.intersection(names)
        self._had_turn -= had_turn
        for name in names:
            if lost := self._lost.get(name):
                lost.why, lost.key = lost.why or answer.detail, answer.key
        self._noted(ticket)
        if answer.ok:
            self._healed(answer)
        elif answer.status != "declined":  # that may be otherwise the next time
            for name in names:
                self._line_up(name)
                self._turns.again(name, self._patience)
        else:
            self.counts.declined += 1
            for name in names:
                if len(names) > 1:  # not all of them: then each by itself
                    self._ask((name,), tenant)
                elif name in had_turn:  # somebody else was faster
                    self._turns.again(name, self._patience)
                else:
                    self._line_up(name, tried)

    def _healed(self, answer: Answer) -> None:
        now = self._clock()
        for placement in answer.placements:
            if (lost := self._lost.get(placement.vm)) is not None:
                self.counts.healed += 1
                self.counts.seconds.append(max(0.0, now - lost.since))
                self._forget(placement.vm)
        del self.counts.seconds[:-10_000]

    def _line_up(self, name: str, tried: int = -1) -> None:
        """A VM has its turns from now on, unless it has them already."""
        allocator = self._agent.allocator
        vm = allocator.vms.get(name)
        if name not in self._lost or name in self._turns or vm is None:
            return
        tenant = allocator.tenants[vm.tenant]
        alike = tenant.constraints == UNCONSTRAINED and not vm.vm.isolated
        self._turns.put(name, (vm.vm,), urgency(allocator, vm), vm.tenant, alike=alike, tried=tried)

    def _line_up_anew(self) -> None:
        """The copy or the policy is another: whoever had turns has its turn now."""
        waiting = [name for name in self._lost if name in self._turns]
        self._turns.clear()
        for name in waiting:
            self._line_up(name)
        self._untold.update(dict.fromkeys(waiting))

    def _try(self, name: str) -> Result:
        """Ask for a VM if it finds a machine on the copy."""
        if name in self._asked:
            self._had_turn.add(name)
            return "gone"
        if not self._is_lost(name):
            self._forget(name)
            return "gone"
        tenant = self._agent.allocator.vms[name].tenant
        if finds_none(self._agent, HealVMs(tenant, (name,))):
            return "none"
        self._had_turn.add(name)
        self._ask((name,), tenant)
        return "asked"

    # ------------------------------------------------------------------------------------------------- telling

    def may_tell(self, vm: str) -> bool:
        """Whether it may be told now why a VM found no machine; if not, it is asked for again when it may."""
        if vm not in self._lost:
            return False
        if self._tellable < 1.0:
            self._untold[vm] = None
            return False
        self._tellable -= 1.0
        self._untold.pop(vm, None)
        return True

    def _tell(self, replica: Replica, now: float) -> None:
        """Ask for those of which it is not known why they wait, one at a time, only to have it told."""
        self._tellable = min(float(TOLD), self._tellable + max(0.0, now - self._told) / TELL_SECONDS)
        self._told = now
        if (opened := int(replica.relief.opened.max(initial=0))) > self._opened:
            self._opened = opened
            self._untold.update((name, None) for name in self._lost if name in self._turns)
        if self._untold and self._tellable >= 1.0:
            name = next(iter(self._untold))
            del self._untold[name]
            if name not in self._asked and self._is_lost(name):
                self._ask((name,), self._agent.allocator.vms[name].tenant)


def healing_key() -> str:
    """A key that nobody has used, by which the trail tells that VMs were placed again."""
    return f"{KEY}{new_key()}"


def together(vms: Iterable[RunningVM]) -> list[list[RunningVM]]:
    """VMs of one tenant and priority are healed together, in the order of the first of them."""
    groups: dict[tuple[str, int], list[RunningVM]] = {}
    for vm in vms:
        groups.setdefault((vm.tenant, vm.shape.traits["priority"]), []).append(vm)
    return list(groups.values())
