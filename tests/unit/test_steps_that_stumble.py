"""A step that stumbles over a bug loses nobody's answer, and leaves rows and books in agreement."""

from __future__ import annotations

import msgspec
import pytest

from roost.agent.agent import Agent
from roost.agent.operation import Answer
from roost.agent.settings import AgentSettings
from roost.agent.verbs.machine import SetMachine
from roost.agent.verbs.place import PlaceVMs
from roost.model.errors import InvariantBroken
from roost.model.request import VM, Request
from roost.model.zone import Zone
from roost.rules.policy import Policy
from roost.store.feed import FeedRow
from roost.wiring import open_agent, open_store
from tests.property.interleaved import HeldCourier

ZONE = Zone.synthetic(100, seed=1)


def test_whoever_is_told_after_one_that_cannot_be_told_is_told_by_the_next_step() -> None:
    store = open_store("memory:", create=ZONE)
    courier = HeldCourier(store)
    agent = Agent(store, courier, Policy.named("fast"), settings=AgentSettings(group=1))

    def stumble(_: Answer) -> None:
        raise RuntimeError("a bug")

    first, second = (SetMachine(name, "draining") for name in ZONE.machine_names[:2])
    agent.submit(first, done=stumble)
    told = agent.submit(second)
    agent.step()
    agent.step()
    courier.commit()
    courier.commit()
    agent.step()
    courier.look()
    with pytest.raises(RuntimeError):
        agent.step()
    agent.step()
    assert told.answer is not None
    assert agent.idle


def test_what_came_before_an_entry_that_makes_no_sense_is_in_the_rows() -> None:
    store = open_store("memory:", create=ZONE)
    agent, other = (open_agent(store, Policy.named("fast"), name) for name in "ab")
    for number in range(2):
        other.run(other.submit(PlaceVMs(Request(f"t{number}", [VM("A1")]))))
    rows = store.changes(0).rows
    (placed,) = rows[-1].entries[0].placed
    gone = msgspec.structs.replace(placed, vm="nobody")
    strange = msgspec.structs.replace(rows[-1].entries[0], placed=(), released=(gone,))
    last = rows[-1].last
    agent._backlog.extend([*rows, FeedRow(last + 1, last + 1, "c", 1, [strange])])
    with pytest.raises(InvariantBroken):
        agent._follow()
    assert len(agent.replica.allocator.vms) == agent.replica.view.machines["vms"].sum() == 2
    agent.close()
    other.close()
