"""A commit costs nearly the same whatever its size: where there is much to do, rounds wait to be worth one."""

from __future__ import annotations

import pytest

from roost.agent.agent import Agent
from roost.agent.courier import Delivery, Group
from roost.agent.gathering import LONGEST_WAIT
from roost.agent.settings import AgentSettings
from roost.agent.verbs.place import PlaceVMs
from roost.model.request import VM, Request
from roost.model.zone import Zone
from roost.rules.policy import Policy
from roost.wiring import open_store

ZONE = Zone.synthetic(100, seed=1)


class Held:
    """A courier that commits, and a clock that goes on, when told to."""

    def __init__(self) -> None:
        self.now = 100.0
        self.sent: list[Group] = []
        self._back: list[Delivery] = []
        self.waits: list[float] = []
        self.store = open_store("memory:", create=ZONE)
        settings = AgentSettings(enough=4, patience=0.5, group=8)
        self.agent = Agent(self.store, self, Policy.named("fast"), settings=settings, clock=lambda: self.now)
        self._asked = 0

    def ask(self, times: int, tenant: str = "") -> None:
        """So many requests come, each of another tenant or all of one, and the agent looks at them."""
        for _ in range(times):
            self._asked += 1
            self.agent.submit(PlaceVMs(Request(tenant or f"t{self._asked}", [VM("A1")])))
        self.agent.step()

    def answer(self, took: float = 0.01) -> None:
        """The store has committed the oldest group; the agent hears of it."""
        group = self.sent.pop(0)
        self._back.append(Delivery(group.round.number, group.commit(self.store), seconds=took))
        self.agent.step()

    @property
    def sizes(self) -> list[int]:
        """Of the groups that are on their way."""
        return [len(group.proposals) for group in self.sent]

    def send(self, group: Group) -> None:
        self.sent.append(group)

    def receive(self, seconds: float = 0.0) -> list[Delivery]:
        self.waits.append(seconds)
        back, self._back = self._back, []
        return back

    def follow(self, revision: int) -> None:
        pass

    def close(self) -> None:
        pass


@pytest.fixture
def held() -> Held:
    return Held()


def test_a_request_that_comes_alone_waits_for_nobody(held: Held) -> None:
    for _ in range(3):
        held.ask(1)
        assert held.sizes == [1]
        held.answer()


def test_few_wait_for_the_answer_of_the_round_under_way_and_enough_do_not(held: Held) -> None:
    held.ask(2)
    held.ask(3)
    assert held.sizes == [2]
    held.ask(1)
    assert held.sizes == [2, 4]


def test_who_was_just_answered_is_waited_for(held: Held) -> None:
    held.ask(3)
    held.ask(1)
    held.answer()
    assert held.sizes == [], "one waits; the three who were answered may ask again"
    held.ask(2)
    assert held.sizes == []
    held.ask(1)
    assert held.sizes == [4]


def test_what_duties_ask_for_counts_with_the_others_and_keeps_nobody_waiting(held: Held) -> None:
    held.ask(1)
    duty = held.agent.ticket(PlaceVMs(Request("duty", [VM("A1")])))
    duty.duty = True
    held.agent.under_way.queue(duty)
    held.agent.step()
    assert held.sizes == [1]
    held.ask(8)
    assert len(held.sizes) == 2, "enough wait in all"
    held.answer()
    assert sum(held.sizes) == 9


def test_those_of_one_tenant_who_go_one_by_one_are_not_waited_for(held: Held) -> None:
    held.ask(6, "same")
    for left in range(5, 0, -1):
        assert (held.sizes, len(held.agent.under_way.held)) == ([1], left)
        held.answer()
    assert held.sizes == [1]


def test_nobody_is_waited_for_longer_than_a_part_of_what_the_commit_took(held: Held) -> None:
    held.ask(3)
    held.ask(1)
    held.answer(took=0.01)
    held.now += 0.004
    held.agent.step()
    assert held.sizes == []
    held.now += 0.002
    held.agent.step()
    assert held.sizes == [1]
    held.ask(1)
    held.answer(took=60.0)
    assert held.sizes == []
    held.now += 1.01 * LONGEST_WAIT
    held.agent.step()
    assert held.sizes == [1]


def test_more_than_a_group_takes_are_not_waited_for(held: Held) -> None:
    held.ask(8)
    held.ask(8)
    held.ask(8)
    held.answer()
    assert held.sizes == [8, 8]


def test_an_agent_that_may_wait_does_so_for_no_longer_than_until_its_round_is_worth_it(held: Held) -> None:
    held.agent.step(5.0)
    assert held.waits[-1] == 5.0, "nothing to do"
    held.ask(3)
    held.ask(1)
    held.agent.step(5.0)
    assert held.waits[-1] == 5.0, "for an answer"
    held.answer(took=0.01)
    held.agent.step(5.0)
    assert held.waits[-1] == pytest.approx(0.005)
    held.now += 0.005
    held.agent.step(5.0)
    assert held.waits[-1] <= 0.0
    assert held.sizes == [1]
