"""What would come of an operation: decided as any other, settled dry, and nothing is left of it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from roost.agent.agent import Agent
from roost.agent.operation import Answer, Operation
from roost.agent.verbs.entry import SetEntry
from roost.agent.verbs.machine import SetMachine
from roost.agent.verbs.move import MoveVM
from roost.agent.verbs.place import PlaceVMs
from roost.agent.verbs.release import ReleaseVMs
from roost.api.service import Service
from roost.model.request import VM, Request
from roost.model.zone import Zone
from roost.rules.policy import Policy
from roost.settings import AgentSection, Settings
from roost.settings import StoreSection as StoreSettings
from roost.store.contract import Conflict, Outcome
from roost.wiring import open_agent, open_store


@pytest.fixture
def agent() -> Iterator[Agent]:
    """An agent on a zone in memory with one tenant."""
    agent = open_agent(open_store("memory:", create=Zone.synthetic(100)), Policy.named("fast"))
    agent.run(agent.submit(PlaceVMs(Request("web", [VM("A1")] * 2))))
    yield agent
    agent.close()


def rehearse(agent: Agent, operation: Operation, retries: int = 0) -> Answer:
    """The answer of a rehearsal."""
    ticket, proposal = agent.rehearse(operation, retries=retries)
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


def test_a_rehearsal_that_loses_a_race_is_tried_again_on_what_the_feed_brought(agent: Agent) -> None:
    wish = PlaceVMs(Request("shop", [VM("A1", cluster="c001")]))
    other = open_agent(agent.store, Policy.named("fast"), seed=2)
    machines = [str(name) for name in agent.allocator.zone.machine_names if name.startswith("c001-")]
    for name in machines[1:]:
        other.run(other.submit(SetMachine(name, "draining")))
    agent.run(agent.submit(SetEntry("note", "a", "b")))  # all of that is known
    other.run(other.submit(SetMachine(machines[0], "draining")), other.submit(SetMachine(machines[1], "ready")))
    reasons = dict(agent.counters.reasons)
    ticket, proposal = agent.rehearse(wish)
    assert proposal is not None
    (outcome,) = agent.store.commit([proposal], agent.make_recheck(), dry=True)
    agent.conclude(ticket, outcome)
    assert (ticket.answer, ticket.retries) == (None, 1)
    assert agent.waiting == 0
    agent.step()
    answer = rehearse(agent, wish, ticket.retries)
    assert (answer.status, answer.retries, answer.placements[0].machine) == ("done", 1, machines[1])
    assert agent.counters.reasons == reasons
    agent.check_invariants()
    other.close()


def test_a_rehearsal_is_given_up_as_late_as_the_real_thing_and_not_tried_where_that_is_not(agent: Agent) -> None:
    wish = PlaceVMs(Request("shop", [VM("A1")]))
    for operation, conflict, retries, status in (
        (wish, Conflict("room", "full"), 0, None),
        (wish, Conflict("room", "full"), agent.settings.retries, "conflicts"),
        (wish, Conflict("gone", "gone"), 0, "invalid"),
        (SetEntry("label", "web", "blue"), Conflict("registry", "taken"), 0, "invalid"),
    ):
        ticket, _ = agent.rehearse(operation, retries=retries)
        agent.conclude(ticket, conflict)
        assert (ticket.answer and ticket.answer.status) == status


def test_a_service_rehearses_again_until_nobody_is_faster(tmp_path: Path) -> None:
    async def ask() -> None:
        settings = Settings(store=StoreSettings(url=str(tmp_path / "zone.db"), zone="synthetic:100"))
        service = Service(replace(settings, agent=AgentSection(policy="fast", retries=4)))
        await service.start()
        commit, conflicts = service.store.commit, 3

        def lose(*group: Any, dry: bool = False, **more: Any) -> list[Outcome]:
            nonlocal conflicts
            conflicts -= 1
            if dry and conflicts >= 0:
                return [Conflict("room", "machine m: full")]
            return commit(*group, dry=dry, **more)

        service.store.commit = lose  # type: ignore[method-assign]
        wish = PlaceVMs(Request("shop", [VM("A1")]))
        found = (await service.rehearse(wish)).answer
        assert found is not None
        assert (found.status, found.retries) == ("done", 3)
        conflicts = 100
        found = (await service.rehearse(wish)).answer
        assert found is not None
        assert (found.status, found.retries) == ("conflicts", 4)
        await service.stop(0.0)

    asyncio.run(ask())


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


@pytest.mark.parametrize("vms", [1, 3, 2_000])
def test_no_later_choice_depends_on_what_was_rehearsed_or_declined(agent: Agent, vms: int) -> None:
    """Of machines that are as good, lots choose, and so they do between them and the best, once commits were lost."""
    for conflict in [True, False] * 5:
        agent.context.avoidance.note(conflict)
    before = lots(agent)
    agent.rehearse(PlaceVMs(Request("many", [VM("A1")] * vms)))
    assert lots(agent) == before
    (answer,) = agent.run(agent.submit(PlaceVMs(Request("few", [VM("A1"), *[VM("Full-gen4")] * 500]))))
    assert answer.status == "declined"
    assert lots(agent) == before
    agent.run(agent.submit(PlaceVMs(Request("one", [VM("A1")]))))
    assert lots(agent) != before


def lots(agent: Agent) -> tuple[object, ...]:
    """All that the next draws depend on."""
    memory = agent.memory()
    return memory.lots, memory.avoidance.lot, memory.avoidance.random


def test_nothing_is_kept_of_rehearsals_that_lost_a_race() -> None:
    agent = open_agent(open_store("memory:", create=Zone.synthetic(100)), Policy.named("fast"))
    for _ in range(3):
        ticket, _ = agent.rehearse(PlaceVMs(Request("web", [VM("A1")])))
        agent.conclude(ticket, Conflict("threshold", "somebody was faster"))
        assert ticket.answer is None
    assert not agent.under_way.asked
    agent.close()
