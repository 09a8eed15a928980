"""Looks at the feed keep a distance: they take little of a busy machine. Who waits for news has them at once."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing

import pytest

from roost.agent import courier
from roost.agent.agent import Agent
from roost.agent.courier import ThreadCourier
from roost.agent.verbs.place import PlaceVMs
from roost.agent.verbs.release import ReleaseVMs
from roost.model.request import VM, Request
from roost.model.zone import Zone
from roost.rules.policy import Policy
from roost.store.feed import Feed
from roost.store.memory import MemoryStore
from roost.wiring import open_agent, open_store

LONG = 3_600.0  # seconds: nobody waits for that


class Counting:
    """A store that counts looks at its feed."""

    def __init__(self, store: MemoryStore) -> None:
        self._store, self.looks = store, 0

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)

    def changes(self, since: int, limit: int = 1_000, *, patient: bool = False) -> Feed:
        self.looks += 1
        return self._store.changes(since, limit, patient=patient)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Counting, Agent]]:
    """Looks are so far apart that there is no second one unless somebody waits for it."""
    monkeypatch.setattr(courier, "SHORTEST_REST", LONG)
    monkeypatch.setattr(courier, "LONGEST_REST", LONG)
    memory = open_store("memory:", create=Zone.synthetic(100))
    assert isinstance(memory, MemoryStore)
    store = Counting(memory)
    with closing(Agent(store, ThreadCourier(store), Policy.named("fast"))) as agent:  # type: ignore[arg-type]
        yield store, agent


def test_one_look_serves_many_commits(world: tuple[Counting, Agent]) -> None:
    store, agent = world
    for number in range(20):
        (answer,) = agent.run(agent.submit(PlaceVMs(Request(f"t{number}", [VM("A1")]))), seconds=20)
        assert answer.ok
    assert store.looks <= 2


def test_what_the_feed_has_to_bring_is_looked_for_at_once(world: tuple[Counting, Agent]) -> None:
    store, agent = world
    started = time.monotonic()
    for number in range(3):
        answers = agent.run(agent.submit(PlaceVMs(Request(f"t{number}", [VM("A1")]))), seconds=60)
        answers += agent.run(agent.submit(ReleaseVMs(f"t{number}")), seconds=60)
        assert [answer.status for answer in answers] == ["done", "done"]
    assert store.looks >= 3
    assert time.monotonic() - started < 60
    assert not agent.replica.allocator.vms


def test_who_is_far_behind_catches_up_without_a_rest(
    world: tuple[Counting, Agent], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As long as a look brings as much as it may, there is more."""
    store, agent = world
    monkeypatch.setattr(courier, "ROWS", 5)
    other = open_agent(store._store, Policy.named("fast"), "other")
    for number in range(50):
        other.run(other.submit(PlaceVMs(Request(f"o{number}", [VM("A1")]))))
    agent.run(agent.submit(PlaceVMs(Request("t", [VM("A1")]))), seconds=20)
    (answer,) = agent.run(agent.submit(ReleaseVMs("t")), seconds=20)
    assert answer.ok
    assert len(agent.replica.allocator.tenants) == 50
    other.close()
