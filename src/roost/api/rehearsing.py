"""Dry runs: an operation is decided and tried at the store as the real thing would be, and nothing is done."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol, TypeVar

from roost.agent.agent import Agent
from roost.agent.operation import Operation
from roost.agent.ticket import Ticket
from roost.store.contract import Store

T = TypeVar("T")
LOOK_SECONDS = 0.05  # between looks whether the feed has brought more
CATCH_UP_SECONDS = 2.0  # to wait for the feed, before something is said to make no sense


class Reads(Protocol):
    """Who has a copy of the zone, and reads the store."""

    agent: Agent

    async def read(self, look: Callable[[Store], T]) -> T:
        """Something from the store, read in another thread."""

    def check_open(self) -> None:
        """Refuse while nothing can be done."""


class Rehearsals:
    """Dry runs of one agent, one at a time."""

    def __init__(self, of: Reads) -> None:
        self._of, self._one_at_a_time = of, asyncio.Lock()

    async def run(self, operation: Operation, by: str) -> Ticket:
        """What would come of it. Tried as often as the real thing, if others are faster."""
        retries, looked = 0, False
        while True:
            ticket, made_sense = await self._once(operation, by, retries)
            if ticket.answer is None:
                retries = ticket.retries
                if not await self._catch_up():  # it will be told of any moment
                    await asyncio.sleep(LOOK_SECONDS)
            elif made_sense or looked or not await self._catch_up():
                return ticket
            else:
                looked = True  # it may be news to the agent what it speaks of

    async def _once(self, operation: Operation, by: str, retries: int) -> tuple[Ticket, bool]:
        """What would come of it, unless others are faster; and whether it made sense to the agent."""
        self._of.check_open()
        agent = self._of.agent
        async with self._one_at_a_time:
            ticket, proposal = agent.rehearse(operation, by=by, retries=retries)
            while ticket.unfinished:
                await asyncio.sleep(0)
                ticket, proposal = agent.rehearse(operation, by=by, retries=retries, search=ticket.search)
            if proposal is not None:
                recheck = agent.make_recheck()
                outcomes = await self._of.read(lambda store: store.commit([proposal], recheck, dry=True))
                agent.conclude(ticket, outcomes[0])
        return ticket, proposal is not None

    async def _catch_up(self) -> bool:
        """Wait until the agent has seen all that is in the feed now; whether there was something."""
        last, _ = await self._of.read(lambda store: store.head())
        clock, agent = asyncio.get_running_loop().time, self._of.agent
        behind, deadline = agent.replica.revision < last, clock() + CATCH_UP_SECONDS
        while agent.replica.revision < last and clock() < deadline:
            await asyncio.sleep(LOOK_SECONDS)
        return behind
