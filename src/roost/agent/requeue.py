"""VMs that had to give way and want to be placed again: which to try now, under which key, and when to try again.

    evicted ──▶ registry: waiting ──▶ tried on the copy ──▶ placed, and waiting no longer, in one commit
                        ▲                    │
                        └── something changed that may help ◀── no room

What waits is in the store, and each try goes by a key that is made of the eviction. So any number of agents may try:
one of them places it, and the others hear that it was done, or that it waits no longer.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING

import msgspec
import structlog

from roost.agent.agent import Ticket
from roost.agent.operation import Answer, PlaceVMs, SetEntry
from roost.model.errors import UnknownName
from roost.model.request import UNCONSTRAINED, Request
from roost.store.contract import WAITING, Decline, Waiting

if TYPE_CHECKING:
    from roost.agent.agent import Agent

BY = "requeue"  # who asks, as the trail tells it

log = structlog.get_logger()
_waiting = msgspec.json.Decoder(Waiting).decode


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
    def kind(self) -> str:
        """Where one of a kind finds no room, no other does."""
        first = self.first
        if len(self.vms) > 1 or first.spec.isolated or first.constraints != UNCONSTRAINED:
            return self.key
        return msgspec.json.encode(first.spec).decode()

    @property
    def operation(self) -> PlaceVMs:
        """What to ask for; the same words every time, as the key is the same."""
        wishes = tuple(msgspec.structs.replace(each.spec, name=name) for name, each in self.vms.items())
        constraints = self.first.constraints
        return PlaceVMs(Request(self.first.tenant, wishes, constraints), requeued=True)


class Requeue:
    """Places again through an agent. Call `step` between the agent's own."""

    def __init__(
        self, agent: Agent, clock: Callable[[], float], noted: Callable[[Ticket], None] = lambda _: None
    ) -> None:
        """`noted` hears of each try that was answered."""
        self._agent, self._clock, self._noted = agent, clock, noted
        self._registry: object = None  # the one that was read last
        self._values: dict[str, str] = {}  # what it says of those that wait, by VM
        self._units: list[Unit] = []
        self._asked: set[str] = set()  # keys under way
        self._over: set[str] = set()  # keys that are done with; the feed has not said so yet
        self._alone: set[str] = set()  # VMs that are tried by themselves, as they make no sense together
        self._behind = ""  # the priority for which lower ones were held back at the last try
        self._tried: tuple[object, ...] = ()  # what there was to go by at the last try
        self._next = 0.0  # when to try again

    @property
    def waiting(self) -> int:
        """VMs that wait, as far as the copy knows."""
        return len(self._values)

    def step(self, patience: float) -> None:
        """Try what may find room by now; `patience`: seconds between two tries of what found none."""
        agent = self._agent
        replica = agent.replica
        if replica.registry is not self._registry:
            self._read(replica.registry)
        if not self._units or self._clock() < self._next:
            return
        basis = (self._registry, replica, replica.relief, agent.split)
        if self._tried != basis:
            self._tried, self._next = basis, self._clock() + patience
            self._try()

    def _read(self, registry: Mapping[tuple[str, str], str]) -> None:
        self._registry = registry
        values = {name: value for (kind, name), value in registry.items() if kind == WAITING}
        if values != self._values:
            self._values = values
            self._units = self._grouped({name: _waiting(value) for name, value in values.items()})
            self._over &= {unit.key for unit in self._units}
            self._alone &= values.keys()

    def _grouped(self, waiting: Mapping[str, Waiting]) -> list[Unit]:
        """What waits, the highest priority first, then whoever waits longest."""
        bands = {name: i for i, name in enumerate(self._agent.allocator.zone.bands)}
        found: dict[tuple[str, str], dict[str, Waiting]] = {}
        order = sorted(waiting, key=lambda vm: (bands.get(waiting[vm].spec.priority, 0), waiting[vm].since, vm))
        for vm in order:
            each = waiting[vm]
            together = (each.constraints.on_places or each.constraints.evict_together) and vm not in self._alone
            found.setdefault((each.tenant, "" if together else vm), {})[vm] = each
        return [Unit(vms) for vms in found.values()]

    def _try(self) -> None:
        """Ask for what finds room on the copy; of VMs that are alike for one at a time.

        Where there may be room for another like it, lower priorities wait for that: else they would come and go.
        """
        alike: dict[str, bool] = {}  # by kind: whether one found room just now
        self._behind = ""
        for unit in list(self._units):  # the highest priority first
            own = unit.first.spec.priority
            if self._behind not in ("", own):
                break
            if unit.key in self._asked or unit.key in self._over:
                continue
            if unit.kind not in alike:
                _, proposal = self._agent.rehearse(unit.operation, unit.key)
                alike[unit.kind] = not isinstance(proposal, Decline)
                if alike[unit.kind]:
                    self._ask(unit)
            elif alike[unit.kind]:
                self._behind = own

    def _ask(self, unit: Unit) -> None:
        self._asked.add(unit.key)
        ticket = self._agent.submit(unit.operation, unit.key, by=BY)
        ticket.done = partial(self._answered, unit, ticket)

    def _answered(self, unit: Unit, ticket: Ticket, answer: Answer) -> None:
        self._asked.discard(unit.key)
        self._noted(ticket)
        if answer.ok:
            self._over.add(unit.key)
            self._tried, self._next = (), 0.0  # the next of its kind may find room, too
            if not answer.replayed:  # by another agent
                log.info("placed again", vms=list(unit.vms), machines=[each.machine for each in answer.placements])
        elif answer.status == "invalid" and self._still(unit.vms) and _makes_no_sense(answer):
            self._drop(unit, answer.detail)
        elif answer.status in ("conflicts", "unavailable") or self._behind:
            self._tried = ()  # that may be otherwise the next time, or others did not have their turn

    def _still(self, vms: Iterable[str]) -> bool:
        """Whether these wait for the same reason still, as far as the copy knows."""
        registry = self._agent.replica.registry
        return all(registry.get((WAITING, vm)) == self._values.get(vm) is not None for vm in vms)

    def _drop(self, unit: Unit, why: str) -> None:
        """Nobody is to wait for what will never be; but of several, only the one that makes no sense goes."""
        if len(unit.vms) > 1:
            self._alone.update(unit.vms)
            self._units = self._grouped({vm: each for some in self._units for vm, each in some.vms.items()})
            self._tried, self._next = (), 0.0
            return
        (vm,) = unit.vms
        self._over.add(unit.key)
        self._tried, self._next = (), 0.0
        log.warning("a VM that waited is not placed again", vm=vm, tenant=unit.first.tenant, detail=why)
        self._agent.submit(SetEntry(WAITING, vm, None, instead_of=self._values[vm]), by=BY)


def _makes_no_sense(answer: Answer) -> bool:
    """Whether it never will: a name is taken, or something is known no more. What a policy refuses may come yet."""
    if answer.code == UnknownName.code:
        return ".traits" not in answer.where
    return answer.where == "key" or answer.where.endswith(".name")
