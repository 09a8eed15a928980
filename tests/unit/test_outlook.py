"""What is to be expected is told again and again, whatever clocks say."""

from __future__ import annotations

import asyncio
import time
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import pytest

from roost.agent.operation import Operation
from roost.agent.ticket import Ticket
from roost.agent.verbs.place import PlaceVMs
from roost.api.outlook import Outlook
from roost.model.foresight import NAME
from roost.model.registry import FORESIGHT
from roost.model.request import VM, Request
from roost.model.zone import Zone
from roost.rules.policy import Policy
from roost.settings import Agent, Settings
from roost.wiring import open_agent, open_store

DAY = 86_400.0


@pytest.mark.parametrize("days", [-40, 40])
def test_a_clock_that_is_set_keeps_nobody_from_telling_it_anew(days: float, monkeypatch: pytest.MonkeyPatch) -> None:
    real = time.time
    with closing(open_agent(open_store("memory:", create=Zone.synthetic(100)), Policy.named("fast"))) as agent:

        async def submit(operation: Operation, key: str, by: str) -> Ticket:
            ticket = agent.submit(operation, key, by=by)
            agent.run(ticket)
            return ticket

        settings = Settings(agent=Agent(foresight_seconds=0.001))
        service: Any = SimpleNamespace(
            settings=settings, place=0, down="", store=agent.store, agent=agent, submit=submit
        )
        outlook, told = Outlook(service), list[str | None]()
        for i in range(3):
            agent.context.now = lambda: real() + (days * DAY if told else 0.0)
            monkeypatch.setattr(time, "time", agent.context.now)
            agent.run(agent.submit(PlaceVMs(Request(f"t{i}", [VM("A1")]))))
            asyncio.run(outlook.look())
            told.append(agent.replica.registry.get((FORESIGHT, NAME)))
    assert None not in told
    assert len(set(told)) == 3
