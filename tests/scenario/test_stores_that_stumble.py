"""A store that fails in ways nobody expected: whoever waits is answered, and work goes on when it is well again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from threading import Event
from typing import Any

import pytest

from roost.agent.agent import Agent
from roost.agent.courier import Courier, DiskCourier, InlineCourier, ThreadCourier
from roost.agent.verbs.place import PlaceVMs
from roost.model.errors import StoreUnavailable
from roost.model.request import VM, Request
from roost.model.zone import Zone
from roost.rules.policy import Policy
from roost.store.contract import Outcome
from roost.store.feed import Feed
from roost.store.memory import MemoryStore
from roost.wiring import open_store


class Stumbling:
    """A store that fails when it is told to."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self.commits: list[Exception] = []  # to fail with, one after another
        self.reads: list[Exception] = []
        self.disk = Event()  # set: it answers
        self.disk.set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def commit(self, *arguments: Any, **named: Any) -> list[Outcome]:
        """Commit, unless it is to fail."""
        if self.commits:
            raise self.commits.pop(0)
        self.disk.wait()
        return self._store.commit(*arguments, **named)

    writing = False

    def prepare(self, *arguments: Any, **named: Any) -> Callable[[], list[Outcome]]:
        """Leave all of it to the thread that waits for the disk."""
        return partial(self.commit, *arguments, **named)

    def changes(self, *arguments: Any, **named: Any) -> Feed:
        """Read the feed, unless it is to fail."""
        if self.reads:
            raise self.reads.pop(0)
        return self._store.changes(*arguments, **named)


COURIERS: dict[str, Callable[[Any], Courier]] = {
    "inline": InlineCourier,
    "disk": DiskCourier,
    "threads": lambda store: ThreadCourier(store, patience=0.0),
}


@pytest.fixture(params=list(COURIERS))
def world(request: pytest.FixtureRequest) -> Iterator[tuple[Stumbling, Agent]]:
    """A store that can stumble, and an agent on it."""
    memory = open_store("memory:", create=Zone.synthetic(100))
    assert isinstance(memory, MemoryStore)
    store = Stumbling(memory)
    with closing(Agent(store, COURIERS[request.param](store), Policy.named("fast"))) as agent:
        yield store, agent


def place(agent: Agent, tenant: str) -> str:
    """What came of a request."""
    (answer,) = agent.run(agent.submit(PlaceVMs(Request(tenant, [VM("A1")])), f"key-{tenant}"), seconds=20)
    return answer.status


def test_a_failure_nobody_expected_is_answered_and_the_next_commit_works(world: tuple[Stumbling, Agent]) -> None:
    store, agent = world
    store.commits = [RuntimeError("the disk is on fire")]
    assert place(agent, "a") == "unavailable"
    assert place(agent, "a") == "done"
    assert place(agent, "b") == "done"


def test_a_feed_that_cannot_be_read_costs_no_answer(world: tuple[Stumbling, Agent]) -> None:
    store, agent = world
    errors: list[Exception] = [StoreUnavailable("away")]
    if isinstance(agent.courier, ThreadCourier):  # in the agent's own thread a bug shows as one
        errors.append(RuntimeError("odd"))
    for number in range(6):
        store.reads = [errors[number % len(errors)]]
        assert place(agent, f"t{number}") == "done"
    store.reads = []
    while agent.replica.revision < store.head()[0]:
        agent.step(0.01)
    agent.check_invariants()


@pytest.mark.parametrize("world", ["disk", "threads"], indirect=True)
def test_a_disk_that_takes_long_keeps_no_agent_from_deciding(world: tuple[Stumbling, Agent]) -> None:
    store, agent = world
    store.disk.clear()
    first = agent.submit(PlaceVMs(Request("first", [VM("A1")])))
    second = agent.submit(PlaceVMs(Request("second", [VM("A1")])))
    try:
        for _ in range(5):
            agent.step()
        third = agent.submit(PlaceVMs(Request("third", [VM("A1")])))
        agent.step()
        assert third.decision is not None, "it waits for the disk"
        assert [ticket.answer for ticket in (first, second, third)] == [None, None, None], "nothing is durable yet"
    finally:
        store.disk.set()
    assert [answer.status for answer in agent.run(first, second, third)] == ["done"] * 3
