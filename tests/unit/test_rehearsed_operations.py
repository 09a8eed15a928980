"""What would come of an operation: decided as any other, settled dry, and nothing is left of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from roost.agent.agent import Agent
from roost.agent.operation import Answer, MoveVM, Operation, PlaceVMs, ReleaseVMs, SetEntry, SetMachine
from roost.model.request import VM, Request
from roost.model.zone import Zone
from roost.rules.policy import Policy
from roost.wiring import open_agent, open_store


@pytest.fixture
def agent() -> Iterator[Agent]:
    """An agent on a zone in memory with one tenant."""
    agent = open_agent(open_store("memory:", create=Zone.synthetic(100)), Policy.named("fast"))
    agent.run(agent.submit(PlaceVMs(Request("web", [VM("A1")] * 2))))
    yield agent
    agent.close()


def rehearse(agent: Agent, operation: Operation) -> Answer:
    """The answer of a rehearsal."""
    ticket, proposal = agent.rehearse(operation)
    if proposal is not None:
        (outcome,) = agent.store.commit([proposal], agent.make_recheck(), dry=True)
        agent.conclude(ticket, outcome)
    assert ticket.answer is not None
    return ticket.answer


def state(agent: Agent) -> dict[str, object]:
    """Everything in the store."""
    ledger = agent.store.load()
    return {name: getattr(ledger, name) for name in ("revision", "machines", "tenants", "vms", "registry")}


@pytest.mark.parametrize(
    "operation",
    [
        PlaceVMs(Request("shop", [VM("A1")] * 3)),
        PlaceVMs(Request("web", [VM("A1")]), existing=True),
        ReleaseVMs("web"),
        ReleaseVMs("web", ("web/0",)),
        MoveVM("web", "web/0", "c001-r00-m00"),
        MoveVM("web", "web/0", "c001-r00-m00", "hold"),
        SetMachine("c000-r00-m00", "down"),
        SetEntry("note", "a", "b"),
    ],
)
def test_a_rehearsal_is_answered_as_the_real_thing_and_leaves_no_trace(agent: Agent, operation: Operation) -> None:
    before, counters = state(agent), (agent.counters.done, agent.counters.placed_vms)
    rehearsed = rehearse(agent, operation)
    agent.check_invariants()
    assert state(agent) == before
    assert (agent.counters.done, agent.counters.placed_vms) == counters
    (real,) = agent.run(agent.submit(operation))
    assert (rehearsed.status, rehearsed.generation) == (real.status, real.generation)
    assert [p.type for p in rehearsed.placements] == [p.type for p in real.placements]
    assert state(agent) != before


@pytest.mark.parametrize(
    ("operation", "status", "code"),
    [
        (PlaceVMs(Request("huge", [VM("Full-gen6")] * 200)), "declined", ""),
        (PlaceVMs(Request("web", [VM("A1")]), generation=0), "invalid", "roost.outdated"),
        (PlaceVMs(Request("nobody", [VM("A1")]), existing=True), "invalid", "roost.unknown_name"),
        (ReleaseVMs("nobody"), "invalid", "roost.unknown_name"),
        (MoveVM("web", "web/0", "nowhere"), "invalid", "roost.unknown_name"),
        (MoveVM("web", "web/0", "c001-r00-m00", "finish"), "invalid", "roost.invalid_input"),
        (SetMachine("nowhere", "down"), "invalid", "roost.unknown_name"),
    ],
)
def test_a_rehearsal_is_refused_as_the_real_thing(agent: Agent, operation: Operation, status: str, code: str) -> None:
    rehearsed = rehearse(agent, operation)
    (real,) = agent.run(agent.submit(operation))
    assert (rehearsed.status, rehearsed.code) == (status, code)
    assert (real.status, real.code) == (status, code)
    agent.check_invariants()
