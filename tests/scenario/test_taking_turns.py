"""What takes an agent long comes in turns, and between them everybody else has theirs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from unittest.mock import Mock

import msgspec
import pytest

from roost.agent import agent as agent_module
from roost.agent.agent import Agent
from roost.agent.courier import InlineCourier
from roost.agent.settings import ROUND_SECONDS, AgentSettings
from roost.agent.ticket import Ticket
from roost.agent.verbs import placing
from roost.agent.verbs.entry import SetEntry
from roost.agent.verbs.place import PlaceVMs
from roost.agent.verbs.release import ReleaseVMs
from roost.duties.requeue import Requeue
from roost.model.registry import WAITING
from roost.model.request import VM, Constraints, Request
from roost.model.waiting import Waiting
from roost.model.zone import Zone
from roost.placing.search import Search
from roost.rules.policy import Policy
from roost.store.contract import Decline, Place, Store
from roost.wiring import open_store
from tests.property.interleaved import HeldCourier
from tests.property.operators import quarantine_cluster

TOGETHER = Constraints(colocate="rack")


class Ticking:
    """A clock that goes on by a second each time somebody looks at it."""

    def __init__(self) -> None:
        self.now, self.pace = 0.0, 0.0

    def __call__(self) -> float:
        self.now += self.pace
        return self.now


@pytest.fixture
def clock() -> Ticking:
    return Ticking()


@pytest.fixture
def store() -> Iterator[Store]:
    with closing(open_store("memory:", create=Zone.synthetic(200, seed=1))) as store:
        yield store


@pytest.fixture
def agent(store: Store, clock: Ticking) -> Iterator[Agent]:
    settings = AgentSettings(favourites=False)
    made = Agent(store, InlineCourier(store), Policy.named("fast"), "a", seed=1, settings=settings, clock=clock)
    with closing(made) as agent:
        yield agent


def ask(agent: Agent, tenant: str, vms: int = 1, constraints: Constraints | None = None, kind: str = "A0") -> Ticket:
    return agent.submit(PlaceVMs(Request(tenant, [VM(kind)] * vms, constraints)))


def test_an_impossible_co_location_is_found_by_counting_not_by_trying_every_rack(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = agent.allocator.engine
    assign = Mock(side_effect=engine.assign)
    monkeypatch.setattr(engine, "assign", assign)
    largest = max(int(rack["machines"]) for rack in agent.allocator.view.racks) * 100
    ticket = ask(agent, "t", largest, TOGETHER)
    agent.run(ticket)
    assert ticket.answer is not None
    assert ticket.answer.status == "declined"
    assert ticket.decision is not None
    assert len(agent.allocator.view.racks) > 3
    assert assign.call_count == len(ticket.decision.trial.machines) + 1, "it was tried in more than one rack"


def test_small_requests_do_not_wait_for_all_of_the_large_ones_before_them(agent: Agent) -> None:
    large = [ask(agent, f"large-{i}", 40) for i in range(6)]
    small = [ask(agent, f"small-{i}") for i in range(6)]
    agent.step()
    agent.step()
    agent.step()
    assert all(ticket.answer for ticket in small)
    assert not all(ticket.answer for ticket in large)
    agent.run(*large)
    assert all(ticket.answer and ticket.answer.ok for ticket in large)


def test_large_requests_leave_as_much_time_as_they_took_while_small_ones_keep_coming(
    agent: Agent, clock: Ticking
) -> None:
    large = [ask(agent, f"large-{i}", 40) for i in range(3)]
    clock.pace = 0.001
    done: list[int] = []
    for turn in range(400):
        ask(agent, f"small-{turn}")
        agent.step()
        done.append(sum(ticket.answer is not None for ticket in large))
        if done[-1] == 3:
            break
    assert done[-1] == 3, "they never had their turn"
    between = [done.count(1), done.count(2)]
    assert min(between) > 2, "one came right after another"


def test_a_round_ends_when_it_has_decided_for_long_enough(agent: Agent, clock: Ticking) -> None:
    tickets = [ask(agent, f"t{i}") for i in range(50)]
    clock.pace = ROUND_SECONDS / 10
    agent.step()
    decided = [ticket for ticket in tickets if ticket.decision is not None]
    assert 1 <= len(decided) < 20
    clock.pace = 0.0
    assert all(answer.ok for answer in agent.run(*tickets))


def test_a_long_feed_is_taken_in_piece_by_piece_and_nothing_is_decided_before_its_end(
    store: Store, agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_module, "FOLLOWED", 10)
    with closing(Agent(store, InlineCourier(store), Policy.named("fast"), "b", seed=2)) as other:
        for i in range(60):  # a transaction each
            other.run(ask(other, f"other-{i}"))
    mine = ask(agent, "mine")
    behind = agent.replica.revision
    agent.step()
    assert agent.replica.revision == behind + 10
    assert mine.decision is None, "it was decided on an outdated copy"
    agent.run(mine)
    assert agent.replica.revision >= behind + 60
    agent.check_invariants()


def test_deleting_a_large_tenant_is_as_large_as_the_tenant(agent: Agent) -> None:
    agent.run(*(ask(agent, f"large-{i}", 40) for i in range(6)))
    gone = [agent.submit(ReleaseVMs(f"large-{i}")) for i in range(6)]
    small = [ask(agent, f"small-{i}") for i in range(6)]
    agent.step()
    agent.step()
    agent.step()
    assert all(ticket.answer for ticket in small)
    assert not all(ticket.answer for ticket in gone)
    assert all(answer.ok for answer in agent.run(*gone))


# ------------------------------------------------------------------------------------------- VMs that stay together

# In racks of two machines there is room in sum for two large VMs and a middling one, but no way to put them there; only
# the one rack of three machines takes them.
PUZZLE = """\
name: puzzle
generations:
  v1: {cores: 10, memory: 100, disk: 1000, nic: 10}
vm_types:
  large: {demand: {cores: 6, memory: 1}, on: [v1]}
  middling: {demand: {cores: 5, memory: 1}, on: [v1]}
clusters:
  - {name: pairs, generation: v1, racks: 8, machines_per_rack: 2}
  - {name: three, generation: v1, racks: 1, machines_per_rack: 3}
"""
MIXED = Request("t", [VM("large"), VM("large"), VM("middling")], TOGETHER)


@pytest.fixture(params=[0, 1, 2, 3, 4])
def puzzled(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Agent]:
    """An agent in such a zone, by one of several lots."""
    (tmp_path / "zone.yaml").write_text(PUZZLE)
    with closing(open_store("memory:", create=Zone.load(tmp_path / "zone.yaml"))) as store:
        made = Agent(store, InlineCourier(store), Policy.named("fast"), "a", seed=request.param)
        with closing(made) as agent:
            yield agent


def test_a_search_goes_on_where_it_stopped_and_finds_the_last_place(
    puzzled: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(placing, "IN_VAIN", 1)
    ticket = puzzled.submit(PlaceVMs(MIXED))
    turns = 0
    while ticket.answer is None:
        puzzled.step()
        turns += ticket.answer is None
    assert ticket.answer.ok
    assert {placement.machine.split("-")[0] for placement in ticket.answer.placements} == {"three"}
    assert ticket.search is not None
    assert turns >= len(ticket.search.tried), "several racks were tried in one turn"
    puzzled.check_invariants()


def test_others_are_served_between_the_turns_of_a_search(puzzled: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placing, "IN_VAIN", 1)
    quarantine_cluster(puzzled.allocator, "three")
    long = puzzled.submit(PlaceVMs(MIXED))
    puzzled.step()
    assert long.answer is None
    short = puzzled.submit(PlaceVMs(Request("other", [VM("large")])))
    puzzled.run(short)
    assert long.answer is None
    puzzled.run(long)
    assert long.answer is not None


def test_a_search_that_takes_too_many_turns_is_cut_short_and_says_so(
    puzzled: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(placing, "IN_VAIN", 1)
    monkeypatch.setattr(placing, "IN_ALL", 6)  # two in each of three racks
    quarantine_cluster(puzzled.allocator, "three")
    ticket = puzzled.submit(PlaceVMs(MIXED))
    (answer,) = puzzled.run(ticket)
    assert answer.status == "declined"
    assert "cut short: 5 places that may have room for all were not tried" in answer.detail


def test_a_search_to_the_end_is_not_said_to_be_cut_short(puzzled: Agent) -> None:
    quarantine_cluster(puzzled.allocator, "three")
    (answer,) = puzzled.run(puzzled.submit(PlaceVMs(MIXED)))
    assert answer.status == "declined"
    assert "cut short" not in answer.detail


def test_a_turn_of_a_search_ends_by_the_clock_whatever_it_has_tried(puzzled: Agent, clock: Ticking) -> None:
    search = Search(1_000_000, 1_000_000, clock, 0.01)
    clock.pace = 0.004  # every look at it, one for each place that was tried
    quarantine_cluster(puzzled.allocator, "three")
    puzzled.allocator.decide(MIXED, search=search)
    assert 1 <= len(search.tried) < 8
    assert search.goes_on
    tried = len(search.tried)
    puzzled.allocator.decide(MIXED, search=search)
    assert len(search.tried) > tried, "it began anew"


def test_a_small_request_that_searches_on_takes_turns_with_others_as_large_ones_do(
    puzzled: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(placing, "IN_VAIN", 1)
    quarantine_cluster(puzzled.allocator, "three")
    searching = [puzzled.submit(PlaceVMs(msgspec.structs.replace(MIXED, tenant=f"s{i}"))) for i in range(4)]
    puzzled.step()
    small = [puzzled.submit(PlaceVMs(Request(f"small-{i}", [VM("middling")]))) for i in range(3)]
    for _ in range(8):
        puzzled.step()
    assert all(ticket.answer for ticket in small)
    assert not any(ticket.answer for ticket in searching)
    puzzled.run(*searching)


def test_a_rehearsal_can_search_on_as_the_real_thing_does(puzzled: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placing, "IN_VAIN", 1)
    ticket, proposal = puzzled.rehearse(PlaceVMs(MIXED))
    while ticket.unfinished:
        assert isinstance(proposal, Decline)
        ticket, proposal = puzzled.rehearse(PlaceVMs(MIXED), search=ticket.search)
    assert isinstance(proposal, Place)


def test_vms_that_waited_are_placed_again_though_the_search_for_room_takes_several_turns(
    puzzled: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(placing, "IN_VAIN", 1)
    for i, vm in enumerate(MIXED.vms):
        waiting = Waiting(tenant="t", spec=vm, constraints=TOGETHER, since=1.0, cause="c")
        puzzled.run(puzzled.submit(SetEntry(WAITING, f"t/{i}", msgspec.json.encode(waiting).decode())))
    requeue = Requeue(puzzled, time.monotonic, patience=0.0)
    requeue.step(time.monotonic())
    while not puzzled.idle:
        puzzled.step(0.001)
    assert set(puzzled.allocator.tenants["t"].vms) == {"t/0", "t/1", "t/2"}


@pytest.mark.parametrize("duty", [False, True])  # then they wait in two lines
def test_an_agent_whose_requests_wait_for_an_answer_says_that_it_has_nothing_to_do(duty: bool) -> None:
    store = open_store("memory:", create=Zone.synthetic(100))
    courier = HeldCourier(store)
    agent = Agent(store, courier, Policy.named("fast"), "one")
    first, second = (agent.submit(PlaceVMs(Request("web", [VM("A0")]))) for _ in range(2))
    third = agent.submit(PlaceVMs(Request("web", [VM("A0")])), duty=duty)
    agent.step()
    if duty:
        agent.step()  # the other line has had its turn
    rounds = agent.counters.rounds
    assert [agent.step() for _ in range(3)] == [False] * 3, "the second waits for the first of its tenant"
    assert agent.counters.rounds == rounds
    courier.commit()
    assert agent.step(), "there is an answer"
    courier.commit()
    agent.step()
    assert first.answer is not None
    agent.step()
    courier.commit()
    agent.step()
    assert second.answer is not None
    assert third.answer is not None
