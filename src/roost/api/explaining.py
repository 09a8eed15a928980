"""What people ask about decisions: why so, why not there, why there was no room, how many more would fit."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from roost.agent.agent import Agent
from roost.agent.ticket import Ticket
from roost.api.errands import Errands
from roost.api.problems import Refused
from roost.duties.healing import Healer, LostVM
from roost.engine.capacity import Room, room_for
from roost.engine.explain import Explanation, WhyNot
from roost.engine.steps import CutShort, Steps
from roost.model.errors import RoostError
from roost.model.request import VM, Request
from roost.model.thresholds import Purpose
from roost.placing.allocator import Allocator
from roost.placing.decision import Decision

T = TypeVar("T")
EXPLAIN_SECONDS = 2.0  # of computing that an explanation may take
REFUSAL_SECONDS = 0.1  # the same for one that comes with a refusal, which must not wait for it for long
REFUSAL_PATIENCE = 0.5  # seconds that such a one waits until others are done
EXPLAINED_SECONDS = 1.0  # how long the reasons of a refusal are good for another one of the same kind
CAPACITY_SECONDS = 1.0  # how old counts may be


class Explainer:
    """Answers from the agent's copy, in errands between the requests."""

    agent: Agent  # once there is one

    def __init__(self, loop: asyncio.AbstractEventLoop, busy: Callable[[], bool]) -> None:
        """`busy`: whether there are requests that want the loop, too."""
        self._loop, self.errands = loop, Errands(busy)
        self._explaining: dict[Any, asyncio.Future[Explanation]] = {}  # by kind of refusal
        self._telling: set[asyncio.Task[None]] = set()  # why VMs are not healed
        self._rooms: dict[tuple[str, str], tuple[float, int, Room, Allocator]] = {}

    async def explain(self, request: Request, vm: int | None) -> Explanation:
        """Why a request would be placed as it would be now, or not at all."""
        return await self._in_time(partial(self.agent.context.explaining, request, vm), EXPLAIN_SECONDS)

    async def why_not(self, request: Request, machine: str, vm: int | None) -> WhyNot:
        """Why a machine would not get a VM of a request now."""
        return await self._in_time(partial(self.agent.context.telling_why_not, request, machine, vm), EXPLAIN_SECONDS)

    async def _in_time(self, begin: Callable[[], Steps[T]], seconds: float) -> T:
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

    def note_unhealed(self, ticket: Ticket, healer: Healer) -> None:
        """Say of a lost VM that found no machine why not, for whoever looks at what waits."""
        decision = ticket.decision
        if decision is None or decision.purpose != Purpose.HEALING or len(decision.request.vms) != 1:
            return
        vm = decision.request.vms[0].name
        if healer.may_tell(vm) and (lost := healer.waiting.get(vm)):
            telling = asyncio.create_task(self._tell_why(lost, ticket))
            self._telling.add(telling)
            telling.add_done_callback(self._telling.discard)

    async def _tell_why(self, lost: LostVM, ticket: Ticket) -> None:
        if found := await self.explain_refusal(ticket, remedied=False):
            lost.why = found.summary

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

    async def stop(self) -> None:
        """Tell nothing any more."""
        for task in (telling := list(self._telling)):
            task.cancel()
        await asyncio.gather(*telling, return_exceptions=True)


def _kind(decision: Decision) -> tuple[Any, ...]:
    """What refusals have in common that have the same reasons: of a tenant that has VMs none but itself."""
    trial = decision.trial
    known = any(part.homes for part in trial.seating.parts.values())
    shapes = tuple([(shape.machine_key, shape.cluster_key, run) for shape, run in Counter(trial.shapes).items()])
    tenant = decision.request.tenant if known else ""
    return id(decision.engine), tenant, decision.constraints, trial.seating.sets, shapes, trial.failed_vm
