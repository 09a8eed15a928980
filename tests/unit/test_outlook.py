"""What is to be expected is told again and again, whatever clocks say."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing

import pytest

from roost.agent.agent import Agent
from roost.agent.verbs.place import PlaceVMs
from roost.duties.arrivals import ArrivalRates
from roost.duties.duty import Roster
from roost.duties.foresight import Forecaster, foreseen
from roost.model.foresight import NAME
from roost.model.registry import FORESIGHT
from roost.model.request import VM, Request
from roost.model.spans import DAY
from roost.model.zone import Zone
from roost.rules.policy import Policy
from roost.wiring import open_agent, open_store


@pytest.mark.parametrize("days", [-40, 40])
def test_a_clock_that_is_set_keeps_nobody_from_telling_it_anew(days: float) -> None:
    with closing(open_agent(open_store("memory:", create=Zone.synthetic(100)), Policy.named("fast"))) as agent:
        told = list[str | None]()
        agent.context.now = lambda: time.time() + (days * DAY if told else 0.0)
        roster = Roster([Forecaster(agent, 1.0, lambda: agent.context.now())])
        for i in range(4):
            agent.run(agent.submit(PlaceVMs(Request(f"t{i}", [VM("A1")]))))
            tell(roster, agent, float(i))
            if i:
                told.append(agent.replica.registry.get((FORESIGHT, NAME)))
    assert None not in told
    assert len(set(told)) == 3


def tell(roster: Roster, agent: Agent, now: float) -> None:
    """Let duties have their turn, and the agent do what they asked for."""
    roster.step(now)
    while not agent.idle:
        agent.step(0.0)
    agent.step(0.0)


def foreseeing(agent: Agent, counted: ArrivalRates | None = None) -> tuple[Forecaster, Roster]:
    """A forecaster whose period is a second, and who has begun."""
    duty = Forecaster(agent, 1.0, lambda: 1_000.0, counted)
    roster = Roster([duty])
    roster.step(0.0)
    return duty, roster


def place(agent: Agent, tenant: str) -> None:
    """One more VM."""
    agent.run(agent.submit(PlaceVMs(Request(tenant, [VM("A1")]))))


@pytest.fixture
def agent() -> Iterator[Agent]:
    with closing(open_agent(open_store("memory:", create=Zone.synthetic(100)), Policy.named("fast"))) as made:
        yield made


def test_nothing_is_told_anew_unless_something_came(agent: Agent) -> None:
    _, roster = foreseeing(agent)
    place(agent, "a")
    tell(roster, agent, 1.0)
    before = agent.replica.revision
    tell(roster, agent, 2.0)
    assert agent.replica.revision == before
    place(agent, "b")
    tell(roster, agent, 3.0)
    assert agent.replica.revision == before + 2


def test_what_somebody_else_has_just_told_is_left_alone(agent: Agent) -> None:
    _, first = foreseeing(agent)
    _, second = foreseeing(agent)
    place(agent, "a")
    tell(first, agent, 1.0)
    before = agent.replica.revision
    tell(second, agent, 1.0)
    assert agent.replica.revision == before


def test_arrivals_that_the_runner_counts_are_not_read_from_the_feed(agent: Agent) -> None:
    counted = ArrivalRates()
    _, roster = foreseeing(agent, counted)
    place(agent, "a")
    tell(roster, agent, 1.0)
    assert foreseen(agent.replica.registry) is None
    counted.add("A2", "", 1_000.0)
    tell(roster, agent, 2.0)
    found = foreseen(agent.replica.registry)
    assert found is not None
    assert set(found.arrivals) == {"A2"}


def test_one_that_goes_on_from_what_another_remembers_tells_the_same(agent: Agent) -> None:
    one, roster = foreseeing(agent)
    place(agent, "a")
    tell(roster, agent, 1.0)
    other, resumed = foreseeing(agent)
    other.recall(one.memory())
    before = agent.replica.revision
    tell(resumed, agent, 2.0)
    assert agent.replica.revision == before  # nothing came since
    place(agent, "b")
    tell(resumed, agent, 3.0)
    assert agent.replica.revision == before + 2
