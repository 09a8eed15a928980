"""VMs that had to give way and want to be placed again: which to try now, under which key, and when to try again.

    evicted ──▶ registry: waiting ──▶ tried on the copy ──▶ placed, and waiting no longer, in one commit
                        ▲                    │
                        └── something changed that may help ◀── no room

What waits is in the store, and each try goes by a key that is made of the eviction. So any number of agents may try:
one of them places it, and the others hear that it was done, or that it waits no longer. Only what changed is read, and
only whose turn it is is tried, so nothing here costs more the more VMs wait.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING

import msgspec
import structlog

from roost.agent.operation import Answer
from roost.agent.ticket import Ticket
from roost.agent.verbs.entry import SetEntry
from roost.agent.verbs.place import PlaceVMs
from roost.duties.duty import SimpleDuty
from roost.duties.turns import Order, Result, Turns, finds_none
from roost.model.errors import UnknownName
from roost.model.registry import WAITING
from roost.model.request import UNCONSTRAINED, Request
from roost.model.waiting import Waiting
from roost.settings import AgentSection

if TYPE_CHECKING:
    from roost.agent.agent import Agent
    from roost.model.change import Entry

BY = "requeue"  # who asks, as the trail tells it

TOGETHER = "\0"  # how the name of a unit of several VMs begins, before its tenant's: no other name has that

log = structlog.get_logger()


class Unit(msgspec.Struct, frozen=True):
    """VMs that are placed again together: one, or all that wait of a tenant that wants its VMs in certain places."""

    vms: Mapping[str, Waiting]  # by name

    @property
    def first(self) -> Waiting:
        """One of them."""
        return next(iter(self.vms.values()))

    @property
    def key(self) -> str:
        """Of these evictions and of nothing else. No key of a request has a space."""
        parts = [part for name, waiting in self.vms.items() for part in (name, waiting.cause)]
        return f"requeue {hashlib.sha256(msgspec.json.encode(parts)).hexdigest()[:32]}"

    @property
    def plain(self) -> bool:
        """Whether it wants nothing but a machine: where one like it finds none, it finds none either."""
        first = self.first
        return len(self.vms) == 1 and not first.spec.isolated and first.constraints == UNCONSTRAINED

    @property
    def operation(self) -> PlaceVMs:
        """What to ask for; the same words every time, as the key is the same."""
        wishes = tuple(msgspec.structs.replace(each.spec, name=name) for name, each in self.vms.items())
        constraints = self.first.constraints
        return PlaceVMs(Request(self.first.tenant, wishes, constraints), requeued=True)


class Requeue(SimpleDuty):
    """Places again through an agent. Call `step` between the agent's own."""

    name, period = "requeue", 0.0

    def __init__(
        self,
        agent: Agent,
        clock: Callable[[], float],
        noted: Callable[[Ticket], None] = lambda _: None,
        *,
        patience: float = AgentSection.requeue_seconds,
    ) -> None:
        """`noted` hears of each try that was answered. `patience`: seconds between two tries of what found no room."""
        self._agent, self._noted = agent, noted
        self._turns, self._patience = Turns(agent, clock), patience
        self._basis: tuple[object, ...] = ()  # the copy and the policies that the turns are for
        self._read = 0  # changes of what waits
        self._units: dict[str, dict[str, Waiting]] = {}  # by name: VMs that are placed again together
        self._unit_of: dict[str, str] = {}  # by VM
        self._asked: set[str] = set()  # units under way
        self._over: dict[str, str] = {}  # VMs that are done with, by cause; the feed has not said so yet
        self._alone: set[str] = set()  # VMs that are tried by themselves, as they make no sense together

    @property
    def waiting(self) -> int:
        """VMs that wait, as far as the copy knows."""
        return len(self._agent.replica.waiting.vms)

    @property
    def at_rest(self) -> bool:
        """Whether there is nothing to do, unless something changes."""
        replica = self._agent.replica
        read = self._basis == (replica, self._agent.split) and self._read == replica.waiting.changes
        return read and not self._asked and self._turns.at_rest

    def concerns(self, entry: Entry) -> bool:
        """Room that is freed only matters to those who wait."""
        return super().concerns(entry) or bool(entry.released and self.waiting)

    def step(self, now: float) -> None:
        """Try what may find room by now."""
        self._follow()
        self._turns.step(now, self._patience, self._try)

    # ------------------------------------------------------------------------------------------------- following

    def _follow(self) -> None:
        """Take in what changed: whoever waits now, or no longer."""
        replica, split = self._agent.replica, self._agent.split
        book = replica.waiting
        changed = book.changed(self._read) if self._basis == (replica, split) else None
        if changed is None:
            self._basis, changed = (replica, split), book.vms
            self._turns.clear()
            self._units.clear()
            self._unit_of.clear()
        self._read = book.changes
        self._note(changed, book.vms)

    def _note(self, vms: Iterable[str], waiting: Mapping[str, Waiting]) -> None:
        """These wait, or do not; each unit that is another by that is put in its line once."""
        units: dict[str, None] = {}
        for vm in vms:
            if (name := self._unit_of.pop(vm, None)) is not None:
                self._units[name].pop(vm, None)
                units[name] = None
            if (now := waiting.get(vm)) is None:
                self._over.pop(vm, None)
                self._alone.discard(vm)
                continue
            together = (now.constraints.on_places or now.constraints.evict_together) and vm not in self._alone
            name = self._unit_of[vm] = f"{TOGETHER}{now.tenant}" if together else vm
            self._units.setdefault(name, {})[vm] = now
            units[name] = None
        for name in units:
            self._put(name)

    def _put(self, name: str) -> None:
        """A unit waits, as it is now; one of nobody does not."""
        if not self._units[name]:
            del self._units[name]
            self._turns.drop(name)
            return
        unit = self._unit(name)
        first, specs = next(iter(unit.vms)), [each.spec for each in unit.vms.values()]
        self._turns.put(name, specs, self._order(first, unit.first), unit.first.tenant, alike=unit.plain)

    def _unit(self, name: str) -> Unit:
        vms = self._units[name]
        if len(vms) == 1:
            return Unit(dict(vms))
        return Unit({vm: vms[vm] for vm in sorted(vms, key=lambda vm: self._order(vm, vms[vm]))})

    def _order(self, vm: str, waiting: Waiting) -> Order:
        """The highest priority first, then whoever waits longest."""
        bands, priority = self._agent.allocator.zone.bands, waiting.spec.priority
        return (bands.index(priority) if priority in bands else 0, waiting.since, vm)

    # --------------------------------------------------------------------------------------------------- trying

    def _try(self, name: str) -> Result:
        """Ask for a unit if it finds room on the copy."""
        unit = self._unit(name)
        if name in self._asked or all(self._over.get(vm) == each.cause for vm, each in unit.vms.items()):
            return "gone"
        if finds_none(self._agent, unit.operation, unit.key):
            return "none"
        self._asked.add(name)
        ticket = self._agent.submit(unit.operation, unit.key, by=BY, duty=True)
        ticket.done = partial(self._answered, name, unit, ticket)
        return "asked"

    def _answered(self, name: str, unit: Unit, ticket: Ticket, answer: Answer) -> None:
        self._asked.discard(name)
        self._noted(ticket)
        if answer.ok:
            self._over.update((vm, each.cause) for vm, each in unit.vms.items())
            if not answer.replayed:  # by another agent
                log.info("placed again", vms=list(unit.vms), machines=[each.machine for each in answer.placements])
        elif answer.status == "invalid" and self._still(unit) and _makes_no_sense(answer):
            self._drop(unit, answer.detail)
        else:
            self._turns.again(name, self._patience)

    def _still(self, unit: Unit) -> bool:
        """Whether these wait for the same reason still, as far as the copy knows."""
        known = self._agent.replica.waiting.vms
        return all(known.get(vm) == each for vm, each in unit.vms.items())

    def _drop(self, unit: Unit, why: str) -> None:
        """Nobody is to wait for what will never be; but of several, only the one that makes no sense goes."""
        if len(unit.vms) > 1:
            self._alone.update(unit.vms)
            self._note(unit.vms, unit.vms)
            return
        ((vm, each),) = unit.vms.items()
        self._over[vm] = each.cause
        log.warning("a VM that waited is not placed again", vm=vm, tenant=each.tenant, detail=why)
        value = self._agent.replica.registry.get((WAITING, vm))
        self._agent.submit(SetEntry(WAITING, vm, None, instead_of=value), by=BY)


def _makes_no_sense(answer: Answer) -> bool:
    """Whether it never will: a name is taken, or something is known no more. What a policy refuses may come yet."""
    if answer.code == UnknownName.code:
        return ".traits" not in answer.where
    return answer.where == "key" or answer.where.endswith(".name")
